"""Run on every rank: scripts of notebooks/scripts in turn, in one process, so that frameworks are imported once.

    scripts_in_turn.py FOLDER SCRIPT...    trains as short() says, into FOLDER/<script>.pt or .keras

Before that, each of them and of the scripts named in WORKSHOP_TEST_REFUSING is started with 3 images, and its sentence
is printed. So the scripts import the frameworks, each in its own way. Keras draws other initial weights than PyTorch.
Here rank 0 broadcasts the library's, which also shows that the scripts do broadcast. PyTorch's samplers shuffle with
torch.randperm, which returns the library's order here. With WORKSHOP_TEST_FAILING_RANK=R, rank R has a folder without
data.
"""

import os
import runpy
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "notebooks" / "scripts"
IMAGES = 1536  # 12 steps on two ranks


def short(folder: Path, name: str) -> list[str]:
    """Arguments of a short training run on the data in `folder`."""
    ending = "keras" if name in ("horovod_tf", "horovod_keras") else "pt"
    words = ["--data", folder / "data", "--images", IMAGES, "--epochs", 1, "--out", folder / f"{name}.{ending}"]
    return [str(word) for word in words]


def broadcast_the_librarys() -> None:
    import horovod.tensorflow as hvd

    from workshop_lib.training.models import keras_cnn

    broadcast = hvd.broadcast_variables

    def assign_and_broadcast(variables, root_rank):
        if hvd.rank() == root_rank:
            for variable, weight in zip(variables, keras_cnn.build(1).get_weights(), strict=False):
                variable.assign(weight)
        broadcast(variables, root_rank)

    hvd.broadcast_variables = assign_and_broadcast


def shuffle_as_the_library():
    """Give DistributedSampler(seed=1) the library's order of an epoch, so that both train on the same samples."""
    import torch

    from workshop_lib.training.data.shard import epoch_permutation

    def randperm(size, generator):
        return torch.tensor(epoch_permutation(size, 1, generator.initial_seed() - 1))

    torch.randperm = randperm


def one_process_group():
    """A second one would meet at the keys that the first has left in torchrun's store, and wait. Returns its end."""
    from torch import distributed

    init, destroy = distributed.init_process_group, distributed.destroy_process_group
    distributed.init_process_group = lambda *args, **options: distributed.is_initialized() or init(*args, **options)
    distributed.destroy_process_group = lambda group=None: None
    return destroy


def refuse(name: str, folder: Path) -> None:
    """Print what a script says of too few images."""
    sys.argv = [name, "--data", str(folder / "data"), "--images", "3"]
    try:
        runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
    except SystemExit as ended:
        print(f"{name} ended: {ended}", flush=True)


def main(folder: Path, names: list[str]) -> None:
    sys.path.insert(0, str(SCRIPTS))
    destroy = one_process_group() if "RANK" in os.environ else lambda: None
    shuffle_as_the_library()
    for name in (*names, *os.environ.get("WORKSHOP_TEST_REFUSING", "").split()):
        refuse(name, folder)
    if {"horovod_tf", "horovod_keras"} & set(names):
        broadcast_the_librarys()
    rank = os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK")
    for name in names:
        sys.argv = [name, *short(folder, name)]
        if rank == os.environ.get("WORKSHOP_TEST_FAILING_RANK"):
            sys.argv += ["--data", str(folder / "missing")]
        runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
    destroy()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
