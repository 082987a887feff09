"""One short file a framework: exactly what changes in a training script to use it.

A backend is looked up by name, and its framework imported only when it is created.
"""

import importlib
from importlib.util import find_spec

REGISTRY = {
    "mpi": "workshop_lib.training.backends.mpi:Mpi",
    "ddp": "workshop_lib.training.backends.ddp:Ddp",
}
FRAMEWORKS = {"mpi": ("torch", "mpi4py"), "ddp": ("torch",)}


def available() -> list[str]:
    """Names of the backends whose framework is installed; imports none of them."""
    return [name for name in REGISTRY if not missing(name)]


def missing(name: str) -> list[str]:
    """The packages that the backend `name` needs and that are not installed."""
    return [package for package in FRAMEWORKS[name] if find_spec(package) is None]


def create(name: str, world, device):
    """The backend `name` for this rank. Raises ValueError when its framework is missing."""
    if name not in REGISTRY:
        raise ValueError(f"backend {name!r}: use {', '.join(REGISTRY)}")
    if lacking := missing(name):
        raise ValueError(f"backend {name!r} needs {' and '.join(lacking)}: run make setup")
    module, _, class_name = REGISTRY[name].partition(":")
    return getattr(importlib.import_module(module), class_name)(world, device)
