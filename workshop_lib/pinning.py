"""Undo what an OpenMP library does to the cores that a process may run on."""

import ctypes
import os
import re
from collections.abc import Sequence
from pathlib import Path

PROCESSES = Path("/proc")
OPENMP_LIBRARY = re.compile(r"lib(gomp|omp|iomp5)\b")


def give_back_cores(variables: Sequence[str]) -> str:
    """Undo what an OpenMP library did to this thread's affinity; returns what was done, in a sentence, or nothing.

    Told so by one of these variables (OMP_PROC_BIND and others), the library pins the thread that loads it. That is
    the thread that imports PyTorch, and all processes started from it inherit its one core. An affinity that somebody
    else chose (taskset, a scheduler, a cgroup) stays. Only Linux has affinities.
    """
    if not hasattr(os, "sched_setaffinity"):
        return ""
    known = _environment_at_start() | os.environ
    variable = next((name for name in variables if known.get(name, "false").lower() != "false"), None)
    if variable is None:
        return ""
    before = _affinity_of(0)
    cores = _cores_before_openmp() or _cores_of_a_launcher()
    if cores <= before:
        return ""
    os.sched_setaffinity(0, cores)
    return f"{variable} had pinned this process to {_listed(before)}: it has {_listed(cores)} again"


def _listed(cores: set[int]) -> str:
    plural = "s" if len(cores) > 1 else ""
    return f"core{plural} {','.join(map(str, sorted(cores)))}"


def _cores_before_openmp() -> set[int]:
    """The cores that this process had when it loaded its OpenMP library; empty when that's unknown.

    The library knows their number. Which ones they are is known by threads that began earlier, or by the places
    between which the library moves its threads; or they are all that there are.
    """
    path = next(iter(_openmp_libraries(os.getpid())), None)
    if path is None:
        return set()
    library = ctypes.CDLL(path)
    number = library.omp_get_num_procs()
    threads = [int(task.name) for task in (PROCESSES / "self" / "task").iterdir()]
    of_threads = set().union(*map(_affinity_of, threads))
    everything = set(range(os.cpu_count() or 1))
    candidates = (of_threads, _places(library), everything)
    return next((cores for cores in candidates if len(cores) == number), set())


def _places(library: ctypes.CDLL) -> set[int]:
    """All cores of the OpenMP library's places."""
    cores: set[int] = set()
    for place in range(library.omp_get_num_places()):
        numbers = (ctypes.c_int * library.omp_get_place_num_procs(place))()
        library.omp_get_place_proc_ids(place, numbers)
        cores.update(numbers)
    return cores


def _cores_of_a_launcher() -> set[int]:
    """The cores that the process had which started this one's launcher, when the launcher has loaded OpenMP.

    torchrun and DeepSpeed's launcher import PyTorch, so they are pinned themselves, and with them each rank.
    """
    parent = os.getppid()
    if not _openmp_libraries(parent):
        return set()
    while _openmp_libraries(parent):
        parent = _parent_of(parent)
    return _affinity_of(parent)


def _affinity_of(thread: int) -> set[int]:
    """The cores of a thread or process; empty when it's gone."""
    try:
        return os.sched_getaffinity(thread)
    except OSError:
        return set()


def _parent_of(process: int) -> int:
    try:
        fields = (PROCESSES / str(process) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 1
    return int(fields[1])


def _openmp_libraries(process: int) -> list[str]:
    """The files of the OpenMP libraries that a process of this user's has loaded."""
    try:
        rows = (PROCESSES / str(process) / "maps").read_text().splitlines()
    except OSError:
        return []
    files = [row.split(maxsplit=5)[5] for row in rows if "/" in row]
    return [file for file in files if OPENMP_LIBRARY.match(Path(file).name)]


def _environment_at_start() -> dict[str, str]:
    """The variables that this process was started with."""
    try:
        rows = (PROCESSES / "self" / "environ").read_text(errors="replace").split("\0")
    except OSError:
        return {}
    return {name: value for name, _, value in (row.partition("=") for row in rows)}
