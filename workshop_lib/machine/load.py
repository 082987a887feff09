"""How many of this machine's cores other programs use. Times measured while they run say little."""

import os
import sys
import time
from typing import NamedTuple

import psutil

from workshop_lib.machine.cores import affinity, core_ids, usable_cores, usable_threads
from workshop_lib.words import plural

IDLE = ("idle", "iowait", "guest", "guest_nice")  # guest time is already part of user time
SHORTEST_S = 0.2  # shortest interval to measure, because systems count CPU time in hundredths of a second
# A quiet machine shows no speed-up above MOST times the number of ranks, and none below LEAST: on two cores, two ranks
# with the slowest backend (fsdp) are 0.79 times as fast as one.
MOST = 1.05
LEAST = 2 / 3
SPARE_SHARE = 0.15  # fraction of the wanted cores that others may use unnoticed, as a quiet system does now and then


class Sample(NamedTuple):
    """One reading: the clock, the CPU seconds that anyone used on this process's cores, and those it used itself.

    This process's own CPU seconds include those of all its child processes.
    """

    at_s: float
    used_s: float
    own_s: float


def sample() -> Sample:
    """Return a Sample taken now. This takes a few milliseconds."""
    of_cores = psutil.cpu_times(percpu=True)
    cores = [of_cores[core] for core in affinity() if core < len(of_cores)]
    used_s = sum(sum(times) - sum(getattr(times, name, 0.0) for name in IDLE) for times in cores)
    this = this_process()
    return Sample(time.monotonic(), used_s, sum(map(_cpu_s, [this, *this.children(recursive=True)])))


def this_process() -> psutil.Process:
    """This process under its id in /proc, which may show another PID namespace's ids, as after `unshare -pf`."""
    return psutil.Process(int(os.readlink("/proc/self")) if sys.platform == "linux" else None)


def _cpu_s(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and of its children that have ended, or 0 if they cannot be read."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system + times.children_user + times.children_system


def cores_of_others(before: Sample, after: Sample) -> float:
    """Return how many cores other programs used on average, or 0 if the samples are too close together to tell."""
    if after.at_s - before.at_s < SHORTEST_S:
        return 0.0
    used_s = after.used_s - before.used_s
    own_s = after.own_s - before.own_s
    return max(0.0, (used_s - own_s) / (after.at_s - before.at_s))


def are_left(others: float, wanted: int, usable: int, total: int) -> bool:
    """Return whether other programs leave us the cores we want, or all that we may use if we want more than that."""
    return total - others >= (1 - SPARE_SHARE) * min(wanted, usable)


def doubt(speedup: float, ranks: int, backend: str = "", oversubscribed: bool | None = None) -> str:
    """Return a sentence if this speed-up against one rank is almost certainly wrong, else an empty string.

    Other programs slow down single runs, and so a speed-up can seem far too high or far too low. oversubscribed:
    whether the ranks shared cores, which makes them slow without other programs; by default, as on this machine.
    """
    if oversubscribed is None:
        oversubscribed = ranks > usable_cores()
    if speedup > MOST * ranks:
        slowed_down = "one rank"
    elif speedup < LEAST and not oversubscribed:
        slowed_down = plural(ranks, "rank")
    else:
        return ""
    who = f"{plural(ranks, 'rank')} with {backend}" if backend else plural(ranks, "rank")
    return (
        f"{who} seem {speedup:.2f} times as fast as one. That's almost certainly wrong: other programs slowed down "
        f"what ran on {slowed_down}. Close them, and measure again."
    )


class Meter:
    """Measures how many cores other programs use, from the moment the meter is created."""

    def __init__(self):
        self.usable = usable_threads()
        self.total = len(affinity())
        unit = "core" if self.total == len(core_ids(affinity())) else "hardware thread"
        self.all = plural(self.total, unit)  # in words
        self._began = sample()

    def others(self) -> float:
        """Return how many cores other programs have used on average since the meter was created."""
        return cores_of_others(self._began, sample())

    def warning(self, wanted: int, so: str = "so don't trust these times") -> str:
        """Return a sentence if other programs did not leave us `wanted` cores, else an empty string."""
        others = self.others()
        if are_left(others, wanted, self.usable, self.total):
            return ""
        return f"Other programs were using {others:.1f} of {self.all}, {so}."

    def report(self, wanted: int) -> None:
        """Print the warning, if there is one."""
        if warning := self.warning(wanted):
            print(warning)
