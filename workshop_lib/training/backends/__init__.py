"""One short file a framework: exactly what changes in a training script to use it.

A backend is looked up by name, and its framework imported only when it is created.
"""

import importlib
from importlib.util import find_spec

REGISTRY = {
    "mpi": "workshop_lib.training.backends.mpi:Mpi",
    "ddp": "workshop_lib.training.backends.ddp:Ddp",
    "fsdp": "workshop_lib.training.backends.fsdp:Fsdp",
    "deepspeed": "workshop_lib.training.backends.deepspeed:Deepspeed",
    "horovod": "workshop_lib.training.backends.horovod:Horovod",
    "horovod-tf": "workshop_lib.training.backends.horovod_tf:HorovodTf",
    "horovod-keras": "workshop_lib.training.backends.horovod_keras:HorovodKeras",
}
FRAMEWORKS = {
    "mpi": ("torch", "mpi4py"),
    "ddp": ("torch",),
    "fsdp": ("torch",),
    "deepspeed": ("torch", "deepspeed"),
    "horovod": ("torch", "mpi4py", "horovod"),
    "horovod-tf": ("tensorflow", "mpi4py", "horovod"),
    "horovod-keras": ("tensorflow", "keras", "mpi4py", "horovod"),
}


def available() -> list[str]:
    """Names of the backends whose framework is installed; imports none of them."""
    return [name for name in REGISTRY if not missing(name)]


def missing(name: str) -> list[str]:
    """The packages that the backend `name` needs and that are not installed."""
    return [package for package in FRAMEWORKS[name] if find_spec(package) is None]


def require(name: str) -> None:
    """Raise ValueError when there is no backend `name`, or when its framework is missing."""
    if name not in REGISTRY:
        raise ValueError(f"backend {name!r}: use {', '.join(REGISTRY)}")
    if lacking := missing(name):
        setting = " HOROVOD=" if {"horovod", "tensorflow", "keras"} & set(lacking) else ""
        raise ValueError(f"{name} needs {' and '.join(lacking)}: run `make setup{setting}`")


def create(name: str, world, device):
    """The backend `name` for this rank. Raises ValueError when its framework is missing."""
    require(name)
    module, _, class_name = REGISTRY[name].partition(":")
    return getattr(importlib.import_module(module), class_name)(world, device)
