"""The options of a training run, each declared once.

The command line, the options in a record, what a resumed run must share with its checkpoint, and what runs must share
in a figure all follow from these declarations.

This file imports neither PyTorch nor NumPy, so that a wrong option is refused before anything slow begins.
"""

import math
import operator
import typing
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

from workshop_lib.errors import InputError
from workshop_lib.machine import catalogue
from workshop_lib.training.backends import CHOOSE_TRANSPORT, REGISTRY
from workshop_lib.training.schedules import DECAYS, SCALINGS, WARMUPS

ZERO_STAGES = (0, 1, 2, 3)
DEFAULT_ZERO_STAGE = 2
DEVICES = ("auto", "cpu", "cuda", "xpu")
ON_XPU = ("mpi", "ddp", "fsdp")  # backends for Intel's GPUs; DeepSpeed and Horovod need other builds there
EMULATED = ("mpi", "ddp", "fsdp")  # backends whose messages an emulated machine carries
NETWORKS = ("workshop", "classic", "vit")
OPTIMIZERS = ("sgd", "adam", "lars", "lamb", "muon")
BY_LAYER = ("lars", "lamb", "muon")  # these optimizers need each layer's norm or its whole matrix
WITHOUT_MOMENTUM = ("adam", "lamb")
DEFAULT_MOMENTUM = 0.9


# Bounds for numeric options: how a message words each one, and the comparison that a valid value passes.
BOUNDS = {"at_least": ("of at least", operator.ge), "above": ("above", operator.gt), "below": ("below", operator.lt)}


# Why several runs may need the same value of an option.
RESUME = "a run that resumes needs the same value as the run that wrote the checkpoint"
SPEED = "runs whose speeds are compared need the same value"
RESULT = "runs whose accuracies are compared need the same value"
WORKERS = "runs in a figure of accuracy against workers need the same value"
RECIPE = "runs of one recipe in such a figure need the same value"


class Rule(NamedTuple):
    """What an option means, which values of its type it takes, and why several runs may need the same value."""

    help: str
    choices: tuple
    same_for: tuple[str, ...]  # RESUME, SPEED, RESULT, WORKERS or RECIPE
    bounds: dict[str, float]  # keys are names in BOUNDS

    def problem(self, value: Any, kind: type) -> str | None:
        """Return what to use instead of `value` for an option of type `kind`, or None if the value is fine."""
        if self.choices:
            is_one = isinstance(value, kind) and value in self.choices
            return None if is_one else f"use one of {', '.join(map(str, self.choices))}"
        if kind is bool:
            return None if isinstance(value, bool) else "use True or False"
        if kind is str:  # everything is fine, because it may be a path in any form that Python takes
            return None
        numbers = (int, float) if kind is float else (int,)
        is_number = isinstance(value, numbers) and not isinstance(value, bool) and math.isfinite(value)
        if is_number and all(BOUNDS[name][1](value, bound) for name, bound in self.bounds.items()):
            return None
        within = " and ".join(f"{BOUNDS[name][0]} {bound}" for name, bound in self.bounds.items())
        return f"use {'a whole number' if kind is int else 'a number'} {within}"


def option(default: Any, help: str, choices: tuple = (), *, same_for: tuple[str, ...] = (), **bounds: float) -> Any:
    """Return a dataclass field for TrainOptions, with its Rule."""
    return field(default=default, metadata={"rule": Rule(help, choices, same_for, bounds)})


@dataclass(frozen=True)
class TrainOptions:
    """Options of one run, the same on every rank. Raises InputError naming a wrong value and what to use instead.

    None means that an option is not given. For momentum and zero_stage, which only some optimizers and backends have,
    the default then replaces None.
    """

    backend: str = option("mpi", "How gradients are averaged", tuple(REGISTRY))
    zero_stage: int | None = option(None, f"DeepSpeed's ZeRO stage ({DEFAULT_ZERO_STAGE} if not given)", ZERO_STAGES)
    comm: str = option(
        "auto",
        f"What carries the messages of {' and '.join(CHOOSE_TRANSPORT)}; auto takes NCCL on GPUs and gloo on CPUs",
        ("auto", "mpi"),
    )
    network: str = option(
        "workshop",
        "The model; classic has dropout, as in 2017's examples; vit is a transformer",
        NETWORKS,
        same_for=(RESUME, SPEED, RESULT, WORKERS),
    )
    precision: str = option(
        "fp32", "Number format of matrix products and convolutions", ("fp32", "bf16"), same_for=(RESUME, SPEED, RESULT)
    )
    epochs: int = option(2, "Passes over the training data", same_for=(RESUME, RESULT, WORKERS), at_least=1)
    batch_size: int = option(64, "Samples per rank in each step", same_for=(WORKERS,), at_least=1)
    lr: float = option(0.1, "Peak learning rate, before scaling", same_for=(SPEED, RESULT, RECIPE), above=0)
    lr_scaling: str = option(
        "none", "Learning-rate scaling with the number of workers", SCALINGS, same_for=(SPEED, RESULT, RECIPE)
    )
    warmup: str = option(
        "linear", "Learning rate during warm-up: rising from 0, or constant at lr", WARMUPS, same_for=(RESUME, RECIPE)
    )
    warmup_epochs: float = option(
        0.5,
        "Epochs until the learning rate is at its peak; may be a fraction",
        same_for=(RESUME, RESULT, RECIPE),
        at_least=0,
    )
    decay: str = option(
        "linear", "How the learning rate falls after warm-up", DECAYS, same_for=(RESUME, RESULT, RECIPE)
    )
    optimizer: str = option("sgd", "The update rule", OPTIMIZERS, same_for=(RESUME, SPEED, RESULT, RECIPE))
    momentum: float | None = option(
        None,
        f"Momentum of all optimizers except adam and lamb ({DEFAULT_MOMENTUM} if not given)",
        same_for=(RESUME, RECIPE),
        at_least=0,
        below=1,
    )
    weight_decay: float = option(
        0.0,
        "Each step shrinks the weights by this share, times the learning rate",
        same_for=(RESUME, RESULT, RECIPE),
        at_least=0,
    )
    label_smoothing: float = option(
        0.0, "Share of each target, spread over all classes", same_for=(RESUME, RESULT, RECIPE), at_least=0, below=1
    )
    nesterov: bool | None = option(None, "Nesterov momentum, which sgd has by default", same_for=(RESUME, RECIPE))
    device: str = option("auto", "Where to compute; cuda and xpu take one GPU per rank", DEVICES)
    seed: int = option(1, "One seed for weights, data order and ranks", same_for=(RESUME,), at_least=0)
    data_dir: str | None = option(
        None, "A folder with another data set in MNIST's format, IDX", same_for=(RESUME, SPEED, RESULT, WORKERS)
    )
    checkpoint: str | None = option(None, "File that rank 0 writes after each epoch and when the run is stopped")
    resume: bool = option(False, "Continue from the checkpoint")
    max_steps: int | None = option(None, "End after this many optimizer steps", same_for=(RESULT, WORKERS), at_least=1)
    train_samples: int | None = option(
        None, "Use only this many training samples, from the beginning", same_for=(RESUME, RESULT, WORKERS), at_least=1
    )
    machine: str | None = option(
        None,
        "A machine that the ranks emulate, from `workshop machines` or a file: all times are those that it would take",
        same_for=(SPEED,),
    )
    stands_for: str | None = option(
        None,
        "A large network for which the small one stands on an emulated machine",
        tuple(catalogue.models()),
        same_for=(SPEED,),
    )
    emulate_workers: int | None = option(
        None, "Emulate this many workers on the ranks that there are", same_for=(SPEED, RESULT), at_least=1
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            kind, *none = typing.get_args(each.type) or (each.type,)  # `int | None` gives int and NoneType
            value = getattr(self, each.name)
            remedy = each.metadata["rule"].problem(value, kind)
            if remedy and not (none and value is None):
                self._refuse(each.name, remedy)
        self._check_backend()
        self._check_optimizer()
        self._check_machine()
        if self.resume and self.checkpoint is None:
            raise InputError("resume needs a checkpoint: name the file to continue from")

    def _refuse(self, name: str, why: str) -> typing.NoReturn:
        raise InputError(f"{name} {getattr(self, name)!r}: {why}")

    def _check_backend(self) -> None:
        entry = REGISTRY[self.backend]
        if entry.has_zero_stages:
            if self.zero_stage is None:
                object.__setattr__(self, "zero_stage", DEFAULT_ZERO_STAGE)
        elif self.zero_stage is not None:
            self._refuse("zero_stage", f"only deepspeed has stages, not {self.backend}; leave it out")
        if self.comm == "mpi" and not entry.chooses_transport:
            self._refuse("comm", f"only for {', '.join(CHOOSE_TRANSPORT)}, not for {self.backend}; leave it out")
        if self.device == "xpu" and self.backend not in ON_XPU:
            self._refuse("device", f"{self.backend} doesn't train on Intel's GPUs here; use one of {', '.join(ON_XPU)}")
        if entry.framework == "TensorFlow":
            if self.precision != "fp32":
                self._refuse("precision", f"{self.backend} computes in fp32 here; use fp32")
            if self.network == "vit":
                self._refuse("network", f"{self.backend} has no transformer here; use workshop or classic")
            if self.optimizer not in ("sgd", "adam"):
                self._refuse("optimizer", f"{self.backend} has sgd and adam here; use one of these")

    def _check_machine(self) -> None:
        if self.machine is not None:
            machine = catalogue.emulated_machine(self.machine)
            if self.backend not in EMULATED:
                self._refuse("backend", f"its messages can't be emulated; on {self.machine} use {', '.join(EMULATED)}")
            if self.device not in ("auto", "cpu"):
                self._refuse("device", f"a rank that emulates {self.machine} computes on a CPU; use auto or cpu")
            trainable = [name for name, model in catalogue.models().items() if machine.trains(model)]
            if self.stands_for is not None and self.stands_for not in trainable:
                self._refuse("stands_for", f"how fast {self.machine} trains it isn't known; use {', '.join(trainable)}")
            if self.stands_for is None and not machine.utilization and not machine.own_time:
                self._refuse("machine", f"how fast it computes isn't known; add stands_for {', '.join(trainable)}")
        if self.stands_for is not None and self.data_dir is not None:
            self._refuse(
                "stands_for", "only a network that trains on MNIST can stand for a large one; leave out data_dir"
            )

    def _check_optimizer(self) -> None:
        if self.optimizer in BY_LAYER and self.zero_stage:
            self._refuse(
                "optimizer",
                "it needs the norm of each layer, and ZeRO's stages 1 to 3 mix parts of layers; use "
                "--zero-stage 0, or --backend fsdp",
            )
        if self.optimizer == "muon" and self.backend == "fsdp":
            self._refuse("optimizer", "it needs whole matrices, and fsdp cuts them up; use ddp")
        if self.optimizer in WITHOUT_MOMENTUM:
            if self.momentum is not None:
                self._refuse("momentum", f"{self.optimizer} has its own; leave it out")
        elif self.momentum is None:
            object.__setattr__(self, "momentum", DEFAULT_MOMENTUM)
        if self.optimizer == "sgd":
            object.__setattr__(self, "nesterov", self.nesterov is not False)
        elif self.nesterov is not None:
            self._refuse("nesterov", f"{self.optimizer} has no such choice; leave it out")

    def workers(self, world_size: int) -> int:
        """Return the number of workers: the ranks whose arithmetic is done, real or emulated.

        Either all real ranks have the same number of workers, or all workers have the same number of real ranks.
        Raises InputError if neither is possible.
        """
        workers = self.emulate_workers or world_size
        if workers % world_size and world_size % workers:
            self._refuse("emulate_workers", f"use a multiple or a part of the {world_size} ranks")
        return workers

    def global_batch(self, world_size: int) -> int:
        """Return the number of samples in a step of all ranks. Raises InputError if they cannot share it equally."""
        samples = self.batch_size * self.workers(world_size)
        if samples % world_size:
            raise InputError(f"global batch {samples}: use a batch_size that {world_size} ranks can share")
        return samples

    def train_size(self, total: int) -> int:
        """Return how many of the `total` training samples are used. Raises InputError if the options ask for more."""
        if self.train_samples and self.train_samples > total:
            self._refuse("train_samples", f"the data has {total:,} training samples; use at most as many")
        return self.train_samples or total

    def warmup_steps(self, steps_per_epoch: int) -> int:
        return round(self.warmup_epochs * steps_per_epoch)

    def as_dict(self) -> dict:
        return asdict(self)


def must_be_same(reason: str) -> list[str]:
    """Return the names of the options that need the same value in several runs. The reason is RESUME, SPEED, …"""
    return [each.name for each in fields(TrainOptions) if reason in each.metadata["rule"].same_for]
