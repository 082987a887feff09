"""Undo what an OpenMP library does to the cores that a process may run on."""

import ctypes
import os
import re
from collections.abc import Sequence
from pathlib import Path

from workshop_lib.machine.load import this_process

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
    variable = next((name for name in variables if os.environ.get(name, "false").lower() != "false"), None)
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

    The library knows only the number of these cores. There are two candidates for the cores themselves: the cores of
    all threads together, some of which began before, and all cores of the machine. The first candidate with the right
    number of cores is returned.
    """
    path = next(iter(_openmp_libraries(os.getpid())), None)
    if path is None:
        return set()
    library = ctypes.CDLL(path)
    number = library.omp_get_num_procs()
    threads = [int(task.name) for task in (PROCESSES / "self" / "task").iterdir()]
    of_threads = set().union(*map(_affinity_of, threads))
    everything = set(range(os.cpu_count() or 1))
    return next((cores for cores in (of_threads, everything) if len(cores) == number), set())


def _cores_of_a_launcher() -> set[int]:
    """The cores of the process that started this rank's launcher; empty unless the launcher has loaded OpenMP.

    torchrun and DeepSpeed's launcher import PyTorch, so they are pinned themselves, and each rank inherits that.
    """
    parents = [process.pid for process in this_process().parents()]
    outside = [process for process in parents if not _openmp_libraries(process)]
    return _affinity_of(outside[0]) if outside and outside[0] != parents[0] else set()


def _affinity_of(thread: int) -> set[int]:
    """The cores that a thread or process may run on; empty if it has ended."""
    try:
        return os.sched_getaffinity(thread)
    except OSError:
        return set()


def _openmp_libraries(process: int) -> list[str]:
    """The files of the OpenMP libraries that a process of this user has loaded."""
    try:
        rows = (PROCESSES / str(process) / "maps").read_text().splitlines()
    except OSError:
        return []
    files = [row.split(maxsplit=5)[5] for row in rows if "/" in row]
    return [file for file in files if OPENMP_LIBRARY.match(Path(file).name)]
