"""Checks before any rank starts, which refuse numbers, files and places that a training run could not use."""

import os

from workshop_lib.machine import world
from workshop_lib.notebook.results import records
from workshop_lib.ranks import session
from workshop_lib.ranks.launch import allocation
from workshop_lib.training import checkpoint
from workshop_lib.training.backends import REGISTRY
from workshop_lib.training.data import mnist
from workshop_lib.training.options import TrainOptions


def before_ranks(options: TrainOptions, ranks: int, out: str | None) -> None:
    """Raise InputError, or a subclass, naming what this number of ranks could not use.

    Files and GPUs are checked only for ranks on this host. Other hosts may have different ones, so their ranks check
    for themselves.
    """
    options.global_batch(ranks)
    if _on_this_host():
        _check_files(options, ranks)
    if out is not None:
        records.require_place(out)


def _on_this_host() -> bool:
    if os.environ.get(session.ATTACH, "0") != "0":
        return False
    job = allocation.find()
    return job is None or allocation.is_here(job.hosts[0])


def _check_files(options: TrainOptions, ranks: int) -> None:
    if options.data_dir is not None or options.train_samples is not None:
        train = mnist.load("train", options.data_dir)
        options.train_size(train.total)
        mnist.classes_and_shape(train, mnist.load("test", options.data_dir))
    if options.device in world.GPU_COLLECTIVES:
        world.count_gpus(options.device)
    if options.checkpoint is not None:
        _check_checkpoint(options, options.checkpoint, ranks)


def _check_checkpoint(options: TrainOptions, path: str, ranks: int) -> None:
    if options.resume:
        framework = REGISTRY[options.backend].framework
        total = mnist.load("train", options.data_dir).total
        wanted = checkpoint.must_match(options, ranks, options.train_size(total), framework)
        checkpoint.read(path, wanted)
    checkpoint.require_place(path)
