"""Undo what an OpenMP library does to the cores that a process may run on."""

import ctypes
import os
import re
from collections.abc import Sequence
from pathlib import Path

PROCESSES = Path("/proc")
OPENMP_LIBRARY = re.compile(r"lib(gomp|omp|iomp5)\b")


def give_back_cores(variables: Sequence[str]) -> str:
    """Undo what an OpenMP library did to this thread's affinity; return a sentence on what was done, or an empty text.

    If one of these variables (OMP_PROC_BIND and others) asks for it, the library pins the thread that loads it. That
    is the thread that imports PyTorch, and all processes started from this thread inherit its one core. An affinity
    that something else chose (taskset, a scheduler, a cgroup) stays. Only Linux has affinities.
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
    return f"{variable} had pinned this process (cores {sorted(before)}): it has {sorted(cores)} again"


def _cores_before_openmp() -> set[int]:
    """The cores that this process could use when it loaded its OpenMP library; empty if they are unknown.

    The library knows only the number of these cores. There are three candidates for the cores themselves: the cores of
    all threads together, some of which began before; the places between which the library moves its threads; and all
    cores of the machine. The first candidate with the right number of cores is returned.
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
    """The cores of all places of this OpenMP library."""
    cores: set[int] = set()
    for place in range(library.omp_get_num_places()):
        numbers = (ctypes.c_int * library.omp_get_place_num_procs(place))()
        library.omp_get_place_proc_ids(place, numbers)
        cores.update(numbers)
    return cores


def _cores_of_a_launcher() -> set[int]:
    """The cores of the process that started this rank's launcher; empty unless the launcher has loaded OpenMP.

    torchrun and DeepSpeed's launcher import PyTorch, so they are pinned themselves, and each rank inherits that.
    """
    parent = os.getppid()
    if not _openmp_libraries(parent):
        return set()
    while _openmp_libraries(parent):
        parent = _parent_of(parent)
    return _affinity_of(parent)


def _affinity_of(thread: int) -> set[int]:
    """The cores that a thread or process may run on; empty if it has ended."""
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
    """The files of the OpenMP libraries that a process of this user has loaded."""
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
