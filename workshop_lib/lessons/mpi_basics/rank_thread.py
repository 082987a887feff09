"""A rank of a program in the deadlock explorer of 01_mpi_basics.

It is a thread that runs only when its schedule resumes it, and only up to its next call that waits.
"""

import ctypes
import linecache
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workshop_lib.lessons.mpi_basics import fake_mpi
from workshop_lib.lessons.mpi_basics.operations import Line, Operation

COMPUTING_LIMIT_S = 3.0  # how long a rank may compute between two calls
CALLS_LIMIT = 400  # calls per rank
OWN_FILES = (fake_mpi.__file__, __file__)


class Stopped(BaseException):
    """The exception that ends a rank whose run is over; no `except Exception` of the program catches it."""


@dataclass(eq=False)
class RankCall:
    """One call of a rank, and the operations that it starts or waits for."""

    rank: int
    name: str
    line: Line
    operations: tuple[Operation, ...]
    at_once: bool = False

    @property
    def open(self) -> list[Operation]:
        """The operations that the call still waits for."""
        return [each for each in self.operations if not (self.at_once or each.done or each.buffered)]

    @property
    def moment(self) -> int:
        """The run's count of events when the call could return."""
        return max(each.started if self.at_once else each.moment for each in self.operations)


class RankThread(threading.Thread):
    """Rank `number` of `program`. Once it has ended, `value` is what it returned, or `error` what it raised."""

    def __init__(self, number: int, size: int, program: Callable, schedule):
        super().__init__(daemon=True, name=f"rank {number}")
        self.number = number
        self.program = program
        self.schedule = schedule
        self.comm = fake_mpi.FakeComm(number, size, self)
        self.calls: list[RankCall] = []
        self.ended = False
        self.value: Any = None
        self.error: BaseException | None = None
        self._go = threading.Semaphore(0)
        self._stopped = False

    @property
    def open(self) -> list[Operation]:
        """The operations that this rank waits for; none once it has ended."""
        return self.calls[-1].open if self.calls and not self.ended else []

    def resume(self) -> None:
        """Run this rank up to its next wait or its end; report a failure if it reaches neither in COMPUTING_LIMIT_S."""
        self._go.release()
        if not self.schedule.baton.acquire(timeout=COMPUTING_LIMIT_S):
            text = f"rank {self.number} computes for more than {COMPUTING_LIMIT_S:g} s without calling MPI."
            self.schedule.fail("endless", f"{text} Does its loop end?")

    def stop(self) -> None:
        """End the thread, whether it is waiting or computing."""
        self._stopped = True
        self._go.release()
        self.join(0.2)
        if self.is_alive() and self.ident:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(Stopped))
            self.join(1.0)

    def run(self) -> None:
        self._go.acquire()
        try:
            if not self._stopped:
                self.value = self.program(self.comm)
                self.ended = True
        except Stopped:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.schedule.baton.release()

    # The fake communicator calls the methods below, inside the thread.

    def call(self, *operations: Operation, at_once: bool = False) -> None:
        """Start a call's operations, and wait for them unless the call returns at once."""
        self.calls.append(RankCall(self.number, operations[0].name, operations[0].line, operations, at_once))
        if len(self.calls) > CALLS_LIMIT:
            self.schedule.fail("endless", f"rank {self.number} makes more than {CALLS_LIMIT} calls. Does its loop end?")
            raise Stopped
        for operation in operations:
            self.schedule.start(operation)
        self._wait()

    def wait(self, name: str, operation: Operation) -> None:
        """Wait for an operation that a nonblocking call has started."""
        self.calls.append(RankCall(self.number, name, self.line(), (operation,)))
        self._wait()

    def _wait(self) -> None:
        if self.open:
            self.schedule.baton.release()
            self._go.acquire()
        if self._stopped or self.schedule.kind:
            raise Stopped

    def line(self) -> Line:
        """Return the innermost line of the program that is running."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename in OWN_FILES:
            frame = frame.f_back
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        return Line(frame.f_lineno, text)
