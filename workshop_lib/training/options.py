"""What a training run can be told, checked before anything starts."""

import math
from dataclasses import dataclass, fields

from workshop_lib.training.backends import REGISTRY
from workshop_lib.training.schedules import DECAYS, SCALINGS

PRECISIONS = ("fp32", "bf16")
ZERO_STAGES = (0, 1, 2, 3)
DEFAULT_ZERO_STAGE = 2
OPTIMIZERS = ("sgd", "adam")
MOMENTUM = 0.9  # of sgd, Nesterov's
DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class TrainOptions:
    """Options of one run, the same on every rank. Raises ValueError naming a wrong value.

    zero_stage is deepspeed's alone; precision is what the network computes in;
    batch_size is per rank, warmup_epochs may be a fraction, train_samples keeps only the first
    so many training samples, max_steps ends the run after so many optimizer steps, checkpoint
    is a file that rank 0 writes at each epoch's end and at a stop; resume continues from it.
    """

    backend: str = "mpi"
    zero_stage: int | None = None
    precision: str = "fp32"
    epochs: int = 2
    batch_size: int = 64
    lr: float = 0.1
    lr_scaling: str = "none"
    warmup_epochs: float = 0.5
    decay: str = "linear"
    optimizer: str = "sgd"
    device: str = "auto"
    seed: int = 1
    data_dir: str | None = None
    checkpoint: str | None = None
    resume: bool = False
    max_steps: int | None = None
    train_samples: int | None = None

    def __post_init__(self):
        choices = {
            "backend": tuple(REGISTRY),
            "lr_scaling": SCALINGS,
            "decay": DECAYS,
            "optimizer": OPTIMIZERS,
            "device": DEVICES,
            "precision": PRECISIONS,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} {getattr(self, name)!r}: use {_listed(allowed)}")
        self._check_backend()
        for name in ("epochs", "batch_size"):
            self._check_whole(name, at_least=1)
        for name in ("max_steps", "train_samples"):
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
        if self.precision != "fp32" and self.backend in ("horovod-tf", "horovod-keras"):
            raise ValueError(f"precision {self.precision!r}: {self.backend} computes in fp32 here; use fp32")

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

    def as_dict(self) -> dict:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _listed(names: tuple[str, ...]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
