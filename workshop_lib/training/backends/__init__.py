"""One short file per backend: exactly what changes in a training script to use it.

A backend is looked up by name, and its framework is imported only when it is created.
"""

import importlib
from importlib.util import find_spec

from workshop_lib.errors import InputError

# Of each backend, the file here and the class in it.
REGISTRY = {
    "mpi": ("mpi", "Mpi"),
    "ddp": ("ddp", "Ddp"),
    "fsdp": ("fsdp", "Fsdp"),
    "deepspeed": ("deepspeed", "Deepspeed"),
    "horovod": ("horovod", "Horovod"),
    "horovod-tf": ("horovod_tf", "HorovodTf"),
    "horovod-keras": ("horovod_keras", "HorovodKeras"),
}
# What has to be installed. PyTorch always: the trainer and the checkpoints are written with it.
FRAMEWORKS = {
    "mpi": ("torch", "mpi4py"),
    "ddp": ("torch",),
    "fsdp": ("torch",),
    "deepspeed": ("torch", "deepspeed"),
    "horovod": ("torch", "mpi4py", "horovod"),
    "horovod-tf": ("torch", "tensorflow", "keras", "mpi4py", "horovod"),
    "horovod-keras": ("torch", "tensorflow", "keras", "mpi4py", "horovod"),
}


def available() -> list[str]:
    """Names of the backends whose framework is installed; imports none of them."""
    return [name for name in REGISTRY if not missing(name)]


def missing(name: str) -> list[str]:
    """The packages that the backend `name` needs and that are not installed."""
    return [package for package in FRAMEWORKS[name] if find_spec(package) is None]


def require(name: str) -> None:
    """Raise InputError when there is no backend `name`, or when its framework is missing."""
    if name not in REGISTRY:
        raise InputError(f"backend {name!r}: use {', '.join(REGISTRY)}")
    if lacking := missing(name):
        setting = " HOROVOD=" if {"horovod", "tensorflow", "keras"} & set(lacking) else ""
        raise InputError(f"{name} needs {' and '.join(lacking)}: run `make setup{setting}`")


def create(name: str, world, device):
    """The backend `name` for this rank. Raises InputError when its framework is missing."""
    require(name)
    file, class_name = REGISTRY[name]
    return getattr(importlib.import_module(f"{__name__}.{file}"), class_name)(world, device)
