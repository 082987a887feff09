"""One short file per backend: exactly what changes in a training script to use it.

A backend is looked up by name, and its framework is imported only when it is created.
"""

import importlib
from importlib.util import find_spec

from workshop_lib import installation
from workshop_lib.errors import InputError

# The file in this folder and the class in it, for each backend.
REGISTRY = {
    "mpi": ("mpi", "Mpi"),
    "ddp": ("ddp", "Ddp"),
    "fsdp": ("fsdp", "Fsdp"),
    "deepspeed": ("deepspeed", "Deepspeed"),
    "horovod": ("horovod", "Horovod"),
    "horovod-tf": ("horovod_tf", "HorovodTf"),
    "horovod-keras": ("horovod_keras", "HorovodKeras"),
}
# Packages that each backend needs. PyTorch is always one of them, because the trainer and the checkpoints use it.
FRAMEWORKS = {
    "mpi": ("torch", "mpi4py"),
    "ddp": ("torch",),
    "fsdp": ("torch",),
    "deepspeed": ("torch", "deepspeed"),
    "horovod": ("torch", "mpi4py", "horovod"),
    "horovod-tf": ("torch", "tensorflow", "keras", "mpi4py", "horovod"),
    "horovod-keras": ("torch", "tensorflow", "keras", "mpi4py", "horovod"),
}
# Backends that can choose their transport: PyTorch's own, or MPI.
CHOOSE_COMM = ("ddp", "fsdp")


def available() -> list[str]:
    """Return the names of the backends whose framework is installed, without importing any of them."""
    return [name for name in REGISTRY if not missing(name)]


def missing(name: str, comm: str = "auto") -> list[str]:
    """Return the packages that the backend `name` needs and that are not installed."""
    needed = FRAMEWORKS[name] + (("mpi4py",) if comm == "mpi" else ())
    return [package for package in needed if find_spec(package) is None]


def require(name: str, comm: str = "auto") -> None:
    """Raise InputError if there is no backend `name`, or if a package that it needs is missing."""
    if name not in REGISTRY:
        raise InputError(f"backend {name!r}: use {', '.join(REGISTRY)}")
    if lacking := missing(name, comm):
        extra = "horovod" if {"horovod", "tensorflow", "keras"} & set(lacking) else "deepspeed"
        if why := installation.why_missing(extra):
            raise InputError(why)
        setting = " HOROVOD=" if extra == "horovod" else ""
        raise InputError(f"{name} needs {' and '.join(lacking)}: run `make setup{setting}`")


def create(name: str, world, device, comm: str = "auto"):
    """Create the backend `name` for this rank. Only backends in CHOOSE_COMM use `comm`.

    Raises InputError if there is no such backend, or if a package that it needs is missing.
    """
    require(name, comm)
    file, class_name = REGISTRY[name]
    backend = getattr(importlib.import_module(f"{__name__}.{file}"), class_name)
    return backend(world, device, comm) if name in CHOOSE_COMM else backend(world, device)
