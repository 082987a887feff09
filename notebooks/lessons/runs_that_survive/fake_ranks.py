"""Fake ranks for the supervisor of 13b_runs_that_survive: no process is started, and each does what a scene says."""

import os
import signal
from collections.abc import Callable
from unittest import mock

RESTARTS = 2
FIRST_PID = 2**30  # no process has such a number
MOST_STARTS = 50
MOST_LOOKS = 200  # without waiting; nothing changes between two of them
STOPPED = signal.SIGSTOP << 8 | 0x7F  # the status of a process that is stopped
# What a rank does, by the status that `os.waitpid` has for it; None for a rank that goes on.
STATUS = {"ends": 0, "raises": 1 << 8, "dies": int(signal.SIGKILL), "stops": STOPPED, "waits": None}

Scene = list[list[str]]  # what each rank does at its first start, at its second, and so on


class Endless(BaseException):
    """Raised where a supervisor would wait or start ranks forever."""


class FakeRanks:
    """Ranks that only this object knows. `os.waitpid`, `os.wait` and `os.kill` answer for them while `supervise` runs.

    starts: (attempt, rank) of each start. end: how the supervisor ended. left: whether a rank of an earlier attempt
    still ran when the next one began, or any rank when the supervisor ended.
    """

    def __init__(self, scene: Scene):
        self.scene = scene
        self.starts: list[tuple[int, int]] = []
        self.status: dict[int, int | None] = {}  # by process number, of all ranks that nobody has waited for
        self.reported: set[int] = set()  # the stopped ranks that the supervisor knows of
        self.left = False
        self.looks = 0
        self.end = ""

    def run(self, supervise: Callable) -> "FakeRanks":
        """Call the learner's supervisor, and return this object. Raises NotImplementedError for a stub."""
        fakes = ((os.waitpid, self.waitpid), (os.wait, self.wait), (os.kill, self.kill))
        names = supervise.__globals__.items()
        own = {name: fake for name, value in names for real, fake in fakes if value is real}  # from os import waitpid
        with (
            mock.patch.multiple(os, waitpid=self.waitpid, wait=self.wait, kill=self.kill),
            mock.patch.dict(supervise.__globals__, own),
        ):
            try:
                supervise(self.start, len(self.scene[0]), RESTARTS)
                self.end = "returned"
            except (NotImplementedError, KeyboardInterrupt):
                raise
            except Endless:
                self.end = "never ended"
            except BaseException as error:
                self.end = f"raised {type(error).__name__}: {error}"
        self.left |= self.running and self.end != "never ended"
        return self

    @property
    def running(self) -> bool:
        return any(status in (None, STOPPED) for status in self.status.values())

    def start(self, rank: int, attempt: int) -> int:
        if len(self.starts) == MOST_STARTS:
            raise Endless
        of_rank = [at for at, started in self.starts if started == rank]
        if self.starts and self.starts[-1][0] != attempt:
            self.left |= self.running
        pid = FIRST_PID + len(self.starts)
        self.status[pid] = STATUS[self.scene[min(len(of_rank), len(self.scene) - 1)][rank]]
        self.starts.append((attempt, rank))
        return pid

    def wait(self) -> tuple[int, int]:
        return self.waitpid(-1, 0)

    def waitpid(self, pid: int, options: int) -> tuple[int, int]:
        waited_for = sorted(self.status, key=lambda each: self.status[each] != 0) if pid == -1 else [pid]
        if not set(waited_for) & set(self.status):
            raise ChildProcessError(10, "No child processes")
        for each in waited_for:
            status = self.status[each]
            if status == STOPPED and options & os.WUNTRACED and each not in self.reported:
                self.reported.add(each)
                return each, status
            if status not in (None, STOPPED):
                del self.status[each]
                return each, status
        self.looks += 1
        if not options & os.WNOHANG or self.looks > MOST_LOOKS:
            raise Endless
        return 0, 0

    def kill(self, pid: int, number: int) -> None:
        self.looks += 1
        if self.looks > MOST_LOOKS:
            raise Endless
        if pid not in self.status:
            raise ProcessLookupError(3, "No such process")
        if number == signal.SIGKILL or (number in (signal.SIGTERM, signal.SIGINT) and self.status[pid] is None):
            self.status[pid] = int(number)
        if number == signal.SIGCONT and self.status[pid] == STOPPED:
            self.status[pid] = None
