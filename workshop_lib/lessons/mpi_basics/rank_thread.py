"""A rank of a program in the deadlock explorer of 01_mpi_basics.

It is a thread that runs only when its schedule resumes it, and only up to its next call that waits.
"""

import ctypes
import linecache
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from workshop_lib.lessons.mpi_basics import fake_mpi
from workshop_lib.lessons.mpi_basics.matching import Line, Operation

COMPUTING_LIMIT_S = 3.0  # how long a rank may compute between two calls
CALLS_LIMIT = 400  # calls per rank
OWN_FILES = (fake_mpi.__file__, __file__)


class Stopped(BaseException):
    """The exception that ends a rank whose run is over; no `except Exception` of the program catches it."""


@dataclass(eq=False)
class RankCall:
    """One call of a rank, and the operations that it starts or waits for."""

    name: str
    line: Line
    operations: list[Operation]
    at_once: bool = False

    @property
    def may_return(self) -> bool:
        return self.at_once or all(operation.done or operation.left for operation in self.operations)


class RankSchedule(Protocol):
    """What a rank needs from its schedule. `start` and `deliver` return False once something has gone wrong."""

    size: int
    baton: threading.Semaphore  # released by the rank that stops running

    def start(self, operation: Operation) -> bool: ...
    def deliver(self, operation: Operation) -> bool: ...
    def fail(self, kind: str, text: str) -> None: ...


class RankThread(threading.Thread):
    """Rank `number` of `program`. Once it has ended, `value` is what it returned, or `error` what it raised."""

    def __init__(self, number: int, program: Callable, stage: RankSchedule):
        super().__init__(daemon=True, name=f"rank {number}")
        self.number = number
        self.program = program
        self.stage = stage
        self.size = stage.size
        self.comm = fake_mpi.FakeComm(number, self.size, self)
        self.calls: list[RankCall] = []
        self.waiting: RankCall | None = None
        self.ended = False
        self.printed = ""
        self.value: Any = None
        self.error: BaseException | None = None
        self._go = threading.Semaphore(0)
        self._stopped = False

    @property
    def ready(self) -> bool:
        return not self.ended and (self.waiting is None or self.waiting.may_return)

    def resume(self) -> None:
        """Run this rank up to its next wait or its end; report a failure if it reaches neither in COMPUTING_LIMIT_S."""
        self._go.release()
        if not self.stage.baton.acquire(timeout=COMPUTING_LIMIT_S):
            text = f"rank {self.number} computes for more than {COMPUTING_LIMIT_S:g} s without calling MPI."
            self.stage.fail("endless", f"{text} Does its loop end?")

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
            self.value = None if self._stopped else self.program(self.comm)
        except BaseException as error:
            self.error = error
        finally:
            self.ended = True
            self.stage.baton.release()

    # The fake communicator calls the methods below, inside the thread.

    def issue(self, name: str, operations: list[Operation], at_once: bool) -> None:
        """Start a call's operations, and wait for them unless the call returns at once."""
        if self._stopped:
            raise Stopped
        call = RankCall(name, operations[0].line, operations, at_once)
        self.calls.append(call)
        if len(self.calls) > CALLS_LIMIT:
            self.stage.fail("endless", f"rank {self.number} makes more than {CALLS_LIMIT} calls. Does its loop end?")
            raise Stopped
        if not all(self.stage.start(operation) for operation in operations):
            raise Stopped
        if not at_once:
            self._wait(call)

    def wait(self, name: str, operations: list[Operation]) -> None:
        """Wait for operations that nonblocking calls have started."""
        if self._stopped:
            raise Stopped
        call = RankCall(name, self.line(), operations)
        self.calls.append(call)
        self._wait(call)

    def _wait(self, call: RankCall) -> None:
        self.waiting = call
        if not call.may_return:
            self.stage.baton.release()
            self._go.acquire()
        if self._stopped:
            raise Stopped
        self.waiting = None
        if not all(self.stage.deliver(operation) for operation in call.operations):
            raise Stopped

    def line(self) -> Line:
        """Return the line of the program that is running, or that has called the code that is running."""
        frame = sys._getframe(1)
        outside = None
        while frame.f_back is not None and frame.f_code is not self.program.__code__:
            if outside is None and frame.f_code.co_filename not in OWN_FILES:
                outside = frame
            frame = frame.f_back
        shown = frame if frame.f_code is self.program.__code__ else outside or frame
        text = linecache.getline(shown.f_code.co_filename, shown.f_lineno).strip()
        return Line(shown.f_lineno, text)
