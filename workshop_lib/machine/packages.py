"""Packages that not every installation of the library has, and what to do where one of them is missing."""

from importlib.util import find_spec

from workshop_lib.paths import IS_CHECKOUT

# The modules that only ranks and notebooks need: pyproject.toml's extra `notebooks` brings them.
OF_NOTEBOOKS = (
    "IPython",
    "cloudpickle",
    "hostlist",
    "ipykernel",
    "ipyparallel",
    "ipywidgets",
    "jupyter_core",
    "jupyterlab",
    "matplotlib",
    "mpi4py",
    "pandas",
    "tqdm",
    "zmq",
)
# The extra that brings each module which may be missing.
EXTRAS = {"torch": "torch", "deepspeed": "deepspeed", **dict.fromkeys(OF_NOTEBOOKS, "notebooks")}


def remedy(extra: str) -> str:
    """What to do where a package of this extra is missing."""
    return "run `make setup`" if IS_CHECKOUT else f'pip install "distributed-dl-workshop[{extra}]"'


def missing_for_notebooks() -> list[str]:
    """The modules that ranks and notebooks need and that are not installed."""
    return [module for module in OF_NOTEBOOKS if find_spec(module) is None]
