"""How the long run of 02_synchronous_sgd learns, and its test accuracy. Every rank calls these functions."""

import torch
from torch.optim.lr_scheduler import LambdaLR

from workshop_lib.training import schedules
from workshop_lib.training.data import shard
from workshop_lib.training.models import torch_cnn

BATCH = 64  # samples per rank and step
PEAK_LR = 0.1


def recipe(model: torch.nn.Module, comm, epochs: int, samples: int) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """The optimizer and the learning rates that the library uses by default for a run of these sizes.

    samples: of an epoch, on all ranks together.
    """
    per_epoch = shard.steps_per_epoch(samples, BATCH, comm.size)

    def lr(step: int) -> float:
        warmup_steps = round(per_epoch / 2)
        return schedules.lr_at(step, epochs * per_epoch, PEAK_LR, warmup_steps, decay="linear")

    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, nesterov=True, fused=True)
    return optimizer, LambdaLR(optimizer, lr)


def accuracy(model: torch.nn.Module, test, comm) -> float:
    """The share of right answers, from 0 to 1, when each rank answers its own part of the test images."""
    with torch.no_grad():
        answers = model(torch_cnn.normalize(torch.tensor(test.images))).argmax(dim=1).numpy()
    right = comm.allreduce(int((answers == test.labels).sum()))
    return right / test.total
