"""One short file per backend: exactly what changes in a training script to use it.

A backend is looked up by name, and its framework is imported only when it is created.
"""

import importlib
from importlib.util import find_spec

from workshop_lib import installation
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
# Those whose messages PyTorch carries: by its own means, or over MPI.
CHOOSE_COMM = ("ddp", "fsdp")


def available() -> list[str]:
    """Names of the backends whose framework is installed; imports none of them."""
    return [name for name in REGISTRY if not missing(name)]


def missing(name: str, comm: str = "auto") -> list[str]:
    """The packages that the backend `name` needs and that are not installed."""
    needed = FRAMEWORKS[name] + (("mpi4py",) if comm == "mpi" else ())
    return [package for package in needed if find_spec(package) is None]


def require(name: str, comm: str = "auto") -> None:
    """Raise InputError when there is no backend `name`, or when its framework is missing."""
    if name not in REGISTRY:
        raise InputError(f"backend {name!r}: use {', '.join(REGISTRY)}")
    if lacking := missing(name, comm):
        extra = "horovod" if {"horovod", "tensorflow", "keras"} & set(lacking) else "deepspeed"
        if why := installation.why_missing(extra):
            raise InputError(why)
        setting = " HOROVOD=" if extra == "horovod" else ""
        raise InputError(f"{name} needs {' and '.join(lacking)}: run `make setup{setting}`")


def create(name: str, world, device, comm: str = "auto"):
    """The backend `name` for this rank; `comm` is for those in CHOOSE_COMM. Raises InputError when something that
    it needs is missing."""
    require(name, comm)
    file, class_name = REGISTRY[name]
    backend = getattr(importlib.import_module(f"{__name__}.{file}"), class_name)
    return backend(world, device, comm) if name in CHOOSE_COMM else backend(world, device)
