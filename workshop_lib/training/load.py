"""What other programs take of this machine's cores: times measured beside them say little."""

import time
from typing import NamedTuple

import psutil

from workshop_lib.training.cores import affinity, usable_cores

IDLE = ("idle", "iowait", "guest", "guest_nice")  # guests are counted as user time too
SHORTEST_S = 0.2  # systems count CPU time in hundredths of a second
SPARE_SHARE = 0.15  # of the cores wanted, which others may take unnoticed: what a quiet system does now and then


class Sample(NamedTuple):
    """A moment: seconds of a clock, CPU seconds used on this process's cores by anyone, and by its own processes."""

    at_s: float
    used_s: float
    own_s: float


def sample() -> Sample:
    """Now. Takes some milliseconds."""
    of_cores = psutil.cpu_times(percpu=True)
    cores = [of_cores[core] for core in affinity() if core < len(of_cores)]
    used_s = sum(sum(times) - sum(getattr(times, name, 0.0) for name in IDLE) for times in cores)
    this = psutil.Process()
    return Sample(time.monotonic(), used_s, sum(map(_cpu_s, [this, *this.children(recursive=True)])))


def _cpu_s(process: psutil.Process) -> float:
    """CPU seconds of a process, and of those that it started and that have ended."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system + times.children_user + times.children_system


def cores_of_others(before: Sample, after: Sample) -> float:
    """How many cores programs other than our own used on average; 0 if the samples are too close to tell."""
    if after.at_s - before.at_s < SHORTEST_S:
        return 0.0
    used_s, own_s = after.used_s - before.used_s, after.own_s - before.own_s
    return max(0.0, (used_s - own_s) / (after.at_s - before.at_s))


def are_left(others: float, wanted: int, usable: int, total: int) -> bool:
    """Whether others leave us the cores that we want, or as many as we may use of all at best."""
    return total - others >= (1 - SPARE_SHARE) * min(wanted, usable)


class Meter:
    """Measures what other programs take, from when it is made."""

    def __init__(self):
        self.usable, self.total = usable_cores(), len(affinity())
        self._began = sample()

    def others(self) -> float:
        """Cores that other programs have used since, on average."""
        return cores_of_others(self._began, sample())

    def warning(self, wanted: int, so: str = "so don't trust these times") -> str:
        """A sentence, if others did not leave us `wanted` cores; empty otherwise."""
        others = self.others()
        if are_left(others, wanted, self.usable, self.total):
            return ""
        cores = f"{self.total} core{'s' * (self.total > 1)}"
        return f"Other programs were using {others:.1f} of {cores}, {so}."

    def report(self, wanted: int) -> None:
        """Print the warning, if there is one."""
        if warning := self.warning(wanted):
            print(warning)
