"""Run on every rank: several training runs in one start, each with its outcome in a file.

    train_runs.py FOLDER    reads FOLDER/runs.json, a list of {"name", "options", ...}, and
                            writes FOLDER/<name>.<rank>.json with the record or the error

A run may name a mistake to plant (MISTAKES), a variant of the network (NETWORKS), a backend object ("base"), a step
to stop at, or a checkpoint to continue from a copy of ("copy_of"). "{node}" in a checkpoint's path is the rank plus
"shift": each rank has a file of its own, as on the disks of nodes.
"""

import contextlib
import dataclasses
import json
import shutil
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch

from workshop_lib.machine import world
from workshop_lib.training import trainer
from workshop_lib.training.backends import mpi, pytorch
from workshop_lib.training.backends.pytorch import TorchBackend
from workshop_lib.training.options import TrainOptions


class StopAfter:
    """Asks to stop once this rank has done so many steps."""

    def __init__(self, steps):
        self.steps, self.done = steps, 0

    def on_step(self, event):
        self.done += 1

    def should_stop(self):
        return self.done >= self.steps


def never_averaged(self):
    """A type test that never matches leaves every rank with its own gradients."""


def divide_again(average):
    def average_gradients(self):
        span = average(self)
        self.flat /= 64
        return span

    return average_gradients


def shard_by_local_rank(epoch_batches):
    """As on hosts with one rank each, where every local_rank is 0."""

    def batches(size, batch_size, rank, world_size, *rest):
        return epoch_batches(size, batch_size, 0, world_size, *rest)

    return batches


def never_shard(epoch_batches):
    def batches(size, batch_size, rank, world_size, *rest):
        return epoch_batches(size, batch_size, 0, 1, *rest)

    return batches


def pad_test_rows(load):
    def padded(split, data_dir=None, rank=0, world_size=1):
        rows = load(split, data_dir, rank, world_size)
        if split == "train" or rank != world_size - 1:
            return rows
        images = np.concatenate([rows.images, rows.images[:1]])
        labels = np.concatenate([rows.labels, rows.labels[:1]])
        return dataclasses.replace(rows, images=images, labels=labels)

    return padded


MISTAKES = {
    "never_averaged": [(mpi.Mpi, "average_gradients", lambda _: never_averaged)],
    "divide_again": [(mpi.Mpi, "average_gradients", divide_again)],
    "shard_by_local_rank": [(trainer.shard, "epoch_batches", shard_by_local_rank)],
    "never_shard": [(trainer.shard, "epoch_batches", never_shard)],
    "pad_test_rows": [(trainer.mnist, "load", pad_test_rows)],
}


def smooth(build):
    """The same network without jumps in its gradient: average pooling and SiLU."""

    def build_smooth(*seed_and_network, **named):
        model = build(*seed_and_network, **named)
        for place, layer in enumerate(model):
            if isinstance(layer, torch.nn.MaxPool2d):
                model[place] = torch.nn.AvgPool2d(2)
            elif isinstance(layer, torch.nn.ReLU):
                model[place] = torch.nn.SiLU()
        return model

    return build_smooth


def in_double(function):
    return lambda *arguments: function(*arguments).double()


def smooth_in_keras():
    import keras

    layers = keras.layers
    return [
        (layers, "MaxPooling2D", lambda _: layers.AveragePooling2D),
        (layers, "ReLU", lambda _: partial(layers.Activation, "silu")),
    ]


def stock_keras():
    """Horovod's own optimizer for Keras, whose averaging Keras 3 does not call. It has no list of its
    variables, so nothing is broadcast; all ranks start from one seed."""
    import horovod.tensorflow.keras as stock

    from workshop_lib.training.backends import keras3

    return [
        (keras3, "DistributedOptimizer", lambda _: stock.DistributedOptimizer),
        (keras3, "broadcast_model", lambda _: lambda model: None),
    ]


NETWORKS = {
    "smooth": [(pytorch.torch_cnn, "build", smooth)],
    "double": [(pytorch.torch_cnn, "build", in_double), (pytorch.torch_cnn, "normalize", in_double)],
}


@contextlib.contextmanager
def changed(changes):
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    for owner, name, change in changes:
        setattr(owner, name, change(getattr(owner, name)))
    try:
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)


def run(spec, here):
    backend = None
    if spec.get("backend_object") == "base":
        backend = TorchBackend(here, torch.device("cpu"))
    if "copy_of" in spec and here.rank == 0:  # which reads it for all ranks
        shutil.copy(spec["copy_of"], spec["options"]["checkpoint"])
    callbacks = []
    # Only the last rank has the callback: the others must learn of its wish.
    if "stop_after" in spec and here.rank == here.world_size - 1:
        callbacks.append(StopAfter(spec["stop_after"]))
    options = TrainOptions(**spec["options"])
    if options.checkpoint is not None:
        node = (here.rank + spec.get("shift", 0)) % here.world_size
        options = dataclasses.replace(options, checkpoint=options.checkpoint.replace("{node}", str(node)))
    changes = MISTAKES.get(spec.get("mistake"), []) + NETWORKS.get(spec.get("network"), [])
    if spec.get("mistake") == "stock_keras":
        changes = changes + stock_keras()
    if spec["options"]["backend"] in ("horovod-tf", "horovod-keras") and spec.get("network") == "smooth":
        changes = changes + smooth_in_keras()
    with changed(changes):
        return trainer.train(options, callbacks, here, backend)


def main(folder):
    here = world.detect()
    for spec in json.loads((folder / "runs.json").read_text()):
        try:
            outcome = {"record": run(spec, here)}
        except (RuntimeError, ValueError, ImportError, OSError) as error:  # among them, that its backend is missing
            outcome = {"error": f"{type(error).__name__}: {error}"}
        outcome["world"] = dataclasses.asdict(here)
        (folder / f"{spec['name']}.{here.rank}.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
