"""What some tests need beyond the core's packages, and what happens where it is missing.

Such a test is skipped with one line that says what to install, and the last lines of the run count the skipped tests
by it. With WORKSHOP_REQUIRE_HOROVOD=1, tests that need Horovod fail instead; with WORKSHOP_REQUIRE_ALL=1, all of them.
"""

import functools
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec

import pytest

from workshop_lib.machine import installation
from workshop_lib.paths import ROOT
from workshop_lib.ranks.launch import launchers, which_mpi
from workshop_lib.training.backends import EXTRAS, REGISTRY


def runs(*words: str) -> bool:
    """Whether this command can be started here and succeeds."""
    try:
        return subprocess.run(words, cwd=ROOT, capture_output=True, timeout=20).returncode == 0
    except OSError:
        return False


# Whether a thing that isn't a package is there, and what to do if not.
MACHINE: dict[str, tuple[Callable[[], bool], str]] = {
    "book": (
        lambda: find_spec("myst_nb") is not None,
        "what makes the book is not installed: `make book-packages` does that",
    ),
    "cores": (
        lambda: hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1,
        "pinning can only be seen on Linux, with two cores",
    ),
    "debootstrap": (
        lambda: shutil.which("debootstrap") is not None,
        "a bare Debian is made by debootstrap (Debian: apt-get install debootstrap)",
    ),
    "git": (
        lambda: (ROOT / ".git").exists() and runs("git", "rev-parse", "HEAD"),
        "which files belong to the repository is known only in a clone: install git, and get one with `git clone`",
    ),
    "jax": (lambda: find_spec("jax") is not None, "JAX is not installed: install it in .venv to test book/jax.md"),
    "linux": (lambda: sys.platform == "linux", "only Linux has what is tested: /proc, and news of stopped processes"),
    "openmpi": (
        lambda: launchers.flavor(tuple(which_mpi.mpiexec())) == "openmpi",
        "only Open MPI's mpiexec lets a program stand in for ssh: run `make setup MPI=`",
    ),
    "root": (
        lambda: runs("unshare", "--mount", "--uts", "true"),
        "only root can be another user, mount, or rename this host: run the tests as root, where `unshare` works",
    ),
    "shared_memory": (
        lambda: sys.platform != "linux" or (os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").total >= 2**24),
        "the workers of a DataLoader need 16 MB in /dev/shm: mount a tmpfs there (in a container, --shm-size=64m)",
    ),
    "shellcheck": (
        lambda: shutil.which("shellcheck") is not None,
        "shellcheck is not installed (Debian: apt-get install shellcheck)",
    ),
}

NEEDED_BY_NOTEBOOKS = {
    "03_horovod_pytorch": ("horovod",),
    "04_horovod_tensorflow": ("horovod", "tensorflow"),
    "06b_deepspeed": ("deepspeed",),
    "09_feeding_the_ranks": ("shared_memory",),
}


def needs(*names: str) -> pytest.MarkDecorator:
    """The mark of a test that needs all of these: keys of MACHINE, or packages."""
    return pytest.mark.needs(*names)


def needs_backend(name: str) -> pytest.MarkDecorator:
    """The mark of a test of this backend, which may be named as its runs are: with a stage of ZeRO, or over MPI."""
    backend = re.sub("-mpi$|-[0-3]$", "", name)
    return needs(*(REGISTRY[backend].packages if backend in REGISTRY else ()))


@functools.cache
def why_not(name: str) -> str:
    """Why this is missing and what to do, in one line; empty if it is there."""
    if name in MACHINE:
        is_there, why = MACHINE[name]
        return "" if is_there() else why
    if find_spec(name):
        return ""
    extra = EXTRAS.get(name)
    return (extra and installation.why_missing(extra)) or f"{name} is not installed: `make extras` installs it"


def require(*names: str) -> None:
    """Skip the test, or let it fail if so required, unless all of these are there."""
    for name in names:
        if why := why_not(name):
            missing(name, why)


def missing(name: str, why: str) -> None:
    """Skip the test, or let it fail if so required, because this is missing."""
    for variable in (f"WORKSHOP_REQUIRE_{name.upper()}", "WORKSHOP_REQUIRE_ALL"):
        if os.environ.get(variable) == "1":
            pytest.fail(f"{why} ({variable}=1 requires it)", pytrace=False)
    pytest.skip(why)


def pytest_configure(config):
    config.addinivalue_line("markers", "needs(*names): skipped where one of these is missing")


@pytest.hookimpl(tryfirst=True)  # before the test's fixtures
def pytest_runtest_setup(item):
    for mark in item.iter_markers("needs"):
        require(*mark.args)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around pytest's own, so that these are the last lines
def pytest_terminal_summary(terminalreporter):
    """Count the skipped tests by what was missing, so that nobody takes a part of the tests for all."""
    result = yield
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    if reasons:
        terminalreporter.section(f"not everything was tested: {len(skipped)} skipped", yellow=True)
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count:5} {reason}")
    return result
