"""Shows that a few ranks do the arithmetic of many workers: trains as four workers on all ranks, and in one process."""

import numpy as np
import torch

from workshop_lib.training import world
from workshop_lib.training.backends.mpi import Mpi
from workshop_lib.training.backends.pytorch import TorchBackend
from workshop_lib.training.callbacks import methods_of
from workshop_lib.training.options import TrainOptions
from workshop_lib.training.trainer import Trainer

WORKERS = 4
STEPS = 10


def difference_from_one_process() -> float:
    """The largest difference of two networks' weights, as a share of the largest weight.

    All ranks call it, and it blocks. One network is trained on all ranks as four workers, the other by each rank alone.
    """
    cpu = torch.device("cpu")
    together = _weights(Mpi(world.detect(), cpu))
    alone = _weights(TorchBackend(world.World(0, 1, 0, "single"), cpu))
    return float(np.abs(together - alone).max() / np.abs(alone).max())


def _weights(backend) -> np.ndarray:
    options = TrainOptions(
        emulate_workers=WORKERS, epochs=1, train_samples=STEPS * WORKERS * 64, network="classic", momentum=0.5
    )
    trainer = Trainer(options, backend, methods_of([]))
    trainer.run()
    return np.concatenate([weight.ravel() for weight in trainer.learner.weights()])
