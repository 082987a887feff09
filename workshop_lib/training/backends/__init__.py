"""One short file per backend: exactly what changes in a training script to use it.

REGISTRY has one entry per backend. The command line, the sweep, the doctor and the tests' ladder follow from it. Tests
check the lists that don't: the table in book/command_line.md, the styles of curves, and the backends that `workshop
predict` knows. A backend's framework is imported only when the backend is created.
"""

import importlib
from dataclasses import dataclass
from importlib.util import find_spec

from workshop_lib.errors import InputError
from workshop_lib.machine import installation, packages


@dataclass(frozen=True)
class Entry:
    """What is known of a backend before its framework is imported.

    packages: what must be installed. PyTorch is always one of them, because the trainer and the checkpoints use it.
    chooses_transport: whether the backend takes `comm`: PyTorch's own transport, or MPI.
    has_zero_stages: whether the backend takes `zero_stage`.
    """

    file: str  # in this folder, without .py
    class_name: str
    packages: tuple[str, ...]
    chooses_transport: bool = False
    has_zero_stages: bool = False

    @property
    def framework(self) -> str:
        """The framework that computes: TensorFlow or PyTorch."""
        return "TensorFlow" if "tensorflow" in self.packages else "PyTorch"


HOROVOD_IN_TENSORFLOW = ("torch", "tensorflow", "keras", "mpi4py", "horovod")
# Backends in the order in which tables and legends list them.
REGISTRY = {
    "mpi": Entry("mpi", "Mpi", ("torch", "mpi4py")),
    "ddp": Entry("ddp", "Ddp", ("torch",), chooses_transport=True),
    "fsdp": Entry("fsdp", "Fsdp", ("torch",), chooses_transport=True),
    "deepspeed": Entry("deepspeed", "Deepspeed", ("torch", "deepspeed"), has_zero_stages=True),
    "horovod": Entry("horovod", "Horovod", ("torch", "mpi4py", "horovod")),
    "horovod-tf": Entry("horovod_tf", "HorovodTf", HOROVOD_IN_TENSORFLOW),
    "horovod-keras": Entry("horovod_keras", "HorovodKeras", HOROVOD_IN_TENSORFLOW),
}
CHOOSE_TRANSPORT = [name for name, entry in REGISTRY.items() if entry.chooses_transport]
# The extra of the set-up (installation.NEEDED_BY) that installs each package which the core lacks.
EXTRAS = {"deepspeed": "deepspeed", "tensorflow": "horovod", "keras": "horovod", "horovod": "horovod"}


def available() -> list[str]:
    """Return the names of the backends whose framework is installed, without importing any of them."""
    return [name for name in REGISTRY if not missing(name)]


def missing(name: str, comm: str = "auto") -> list[str]:
    """Return the packages that the backend `name` needs and that are not installed."""
    needed = REGISTRY[name].packages + (("mpi4py",) if comm == "mpi" else ())
    return [package for package in needed if find_spec(package) is None]


def require(name: str, comm: str = "auto") -> None:
    """Raise InputError if there is no backend `name`, or if a package that it needs is missing."""
    if name not in REGISTRY:
        raise InputError(f"backend {name!r}: use {', '.join(REGISTRY)}")
    if lacking := missing(name, comm):
        extras = {EXTRAS[package] for package in lacking if package in EXTRAS}
        for extra in extras:
            if why := installation.why_missing(extra):
                raise InputError(why)
        remedy = packages.remedy(packages.EXTRAS.get(lacking[0], ""))
        if "horovod" in extras:
            remedy = "run `make setup HOROVOD=` in the workshop's checkout"
        raise InputError(f"{name} needs {' and '.join(lacking)}: {remedy}")


def create(name: str, world, device, comm: str = "auto"):
    """Create the backend `name` for this rank. Only backends that choose their transport use `comm`.

    Raises InputError if there is no such backend, or if a package that it needs is missing.
    """
    require(name, comm)
    entry = REGISTRY[name]
    backend = getattr(importlib.import_module(f"{__name__}.{entry.file}"), entry.class_name)
    return backend(world, device, comm) if entry.chooses_transport else backend(world, device)
