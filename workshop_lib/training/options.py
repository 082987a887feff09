"""What a training run can be told, checked before anything starts."""

import math
from dataclasses import dataclass, fields

from workshop_lib.training.backends import FRAMEWORKS, REGISTRY
from workshop_lib.training.schedules import DECAYS, SCALINGS, WARMUPS

PRECISIONS = ("fp32", "bf16")
ZERO_STAGES = (0, 1, 2, 3)
DEFAULT_ZERO_STAGE = 2
NETWORKS = ("workshop", "classic")
OPTIMIZERS = ("sgd", "adam", "lars", "larc", "lamb", "rmsprop-sgd")
BY_LAYER = ("lars", "larc", "lamb")  # they need each layer's norm
WITHOUT_MOMENTUM = ("adam", "lamb")
DEFAULT_MOMENTUM = 0.9
DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class TrainOptions:
    """Options of one run, the same on every rank. Raises ValueError naming a wrong value.

    zero_stage is deepspeed's alone; precision is what the network computes in; batch_size is per rank,
    warmup_epochs may be a fraction, of a learning rate that rises in a straight line or is constantly lr;
    momentum is that of sgd (Nesterov's, or not), lars, larc and rmsprop-sgd, train_samples keeps only the
    first so many training samples, max_steps ends the run after so many optimizer steps, emulate_workers does
    the arithmetic of so many ranks on those there are, checkpoint is a file that rank 0 writes at each
    epoch's end and at a stop; resume continues from it.
    """

    backend: str = "mpi"
    zero_stage: int | None = None
    network: str = "workshop"
    precision: str = "fp32"
    epochs: int = 2
    batch_size: int = 64
    lr: float = 0.1
    lr_scaling: str = "none"
    warmup: str = "linear"
    warmup_epochs: float = 0.5
    decay: str = "linear"
    optimizer: str = "sgd"
    momentum: float | None = None
    nesterov: bool = True
    device: str = "auto"
    seed: int = 1
    data_dir: str | None = None
    checkpoint: str | None = None
    resume: bool = False
    max_steps: int | None = None
    train_samples: int | None = None
    emulate_workers: int | None = None

    def __post_init__(self):
        choices = {
            "backend": tuple(REGISTRY),
            "network": NETWORKS,
            "lr_scaling": SCALINGS,
            "warmup": WARMUPS,
            "decay": DECAYS,
            "optimizer": OPTIMIZERS,
            "device": DEVICES,
            "precision": PRECISIONS,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} {getattr(self, name)!r}: use {_listed(allowed)}")
        self._check_backend()
        self._check_optimizer()
        for name in ("epochs", "batch_size"):
            self._check_whole(name, at_least=1)
        for name in ("max_steps", "train_samples", "emulate_workers"):
            if getattr(self, name) is not None:
                self._check_whole(name, at_least=1)
        self._check_whole("seed", at_least=0)
        self._check_number("lr", above_zero=True)
        self._check_number("warmup_epochs", above_zero=False)
        if self.resume and self.checkpoint is None:
            raise ValueError("resume needs a checkpoint: name the file to continue from")

    def _check_backend(self) -> None:
        if self.backend == "deepspeed":
            if self.zero_stage is None:
                object.__setattr__(self, "zero_stage", DEFAULT_ZERO_STAGE)
            if self.zero_stage not in ZERO_STAGES:
                raise ValueError(f"zero_stage {self.zero_stage!r}: use 0, 1, 2 or 3")
        elif self.zero_stage is not None:
            raise ValueError(f"zero_stage {self.zero_stage!r}: only deepspeed has stages, not {self.backend}")
        if self.precision != "fp32" and "tensorflow" in FRAMEWORKS[self.backend]:
            raise ValueError(f"precision {self.precision!r}: {self.backend} computes in fp32 here; use fp32")
        if self.network != "workshop" and "tensorflow" in FRAMEWORKS[self.backend]:
            raise ValueError(f"network {self.network!r}: {self.backend} has one network; use workshop")

    def _check_optimizer(self) -> None:
        if self.optimizer not in ("sgd", "adam") and "tensorflow" in FRAMEWORKS[self.backend]:
            raise ValueError(f"optimizer {self.optimizer!r}: {self.backend} has sgd and adam here; use these")
        if self.optimizer in BY_LAYER and self.zero_stage:
            raise ValueError(
                f"optimizer {self.optimizer!r}: it needs the norm of each layer, and ZeRO's stages 1 to 3 "
                "mix parts of layers; use --zero-stage 0, or --backend fsdp"
            )
        if self.optimizer in WITHOUT_MOMENTUM:
            if self.momentum is not None:
                raise ValueError(f"momentum {self.momentum!r}: {self.optimizer} has its own; leave it out")
        elif self.momentum is None:
            object.__setattr__(self, "momentum", DEFAULT_MOMENTUM)
        else:
            self._check_number("momentum", above_zero=False)
            if self.momentum >= 1:
                raise ValueError(f"momentum {self.momentum!r}: use a number below 1")
        if not self.nesterov and self.optimizer != "sgd":
            raise ValueError(f"nesterov {self.nesterov!r}: {self.optimizer} has none; leave it out")

    def _check_whole(self, name: str, at_least: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
            raise ValueError(f"{name} {value!r}: use a whole number, {at_least} or more")

    def _check_number(self, name: str, above_zero: bool) -> None:
        value = getattr(self, name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value < 0 or (above_zero and value == 0):
            wanted = "a number above 0" if above_zero else "0 or a number above 0"
            raise ValueError(f"{name} {value!r}: use {wanted}")

    def workers(self, world_size: int) -> int:
        """Ranks whose arithmetic is done: as many on each rank that there is, or one on as many ranks each.
        Raises ValueError when they cannot be shared out evenly."""
        workers = self.emulate_workers or world_size
        if workers % world_size and world_size % workers:
            raise ValueError(f"emulate_workers {workers}: use a multiple or a part of the {world_size} ranks")
        return workers

    def global_batch(self, world_size: int) -> int:
        """Samples in a step. Raises ValueError when the ranks cannot hold equal parts of it."""
        samples = self.batch_size * self.workers(world_size)
        if samples % world_size:
            raise ValueError(f"global batch {samples}: use a batch_size that {world_size} ranks can share")
        return samples

    def warmup_steps(self, steps_per_epoch: int) -> int:
        return round(self.warmup_epochs * steps_per_epoch)

    def as_dict(self) -> dict:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _listed(names: tuple[str, ...]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
