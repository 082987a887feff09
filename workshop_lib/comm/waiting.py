"""Waiting for a message that may never come, but not for ever."""

import threading
import time

from mpi4py import MPI

LIMIT_S = 30.0
NAP_S = 5e-4  # of the thread that keeps messages moving


def wait(request: MPI.Request, what: str, limit_s: float = LIMIT_S, nap_s: float = 0.0) -> MPI.Status:
    """Until `request` is complete; returns its status.

    nap_s: seconds to sleep between looks, for a rank that has nothing else to do and should leave its core to
    those that have. At 0 it only gives way to a process that waits for the core.
    Raises TimeoutError saying `what` did not come within limit_s seconds. MPI may then still write into the
    request's buffer: the ranks have to be restarted.
    """
    status, end = MPI.Status(), time.monotonic() + limit_s
    while not request.Test(status):
        if time.monotonic() > end:
            raise _too_long(what, limit_s)
        time.sleep(nap_s)
    return status


class Meanwhile:
    """Lets `request` proceed while this rank computes, in a thread that looks at it every half millisecond.

    MPI moves messages only inside its own calls: without the thread, a collective of more than one round
    stands still while any of its ranks computes.
    """

    def __init__(self, request: MPI.Request):
        self.request, self.end_s, self.done = request, None, False
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()

    def _look(self) -> None:
        while not self.request.Test():
            if self.end_s is None:
                time.sleep(NAP_S)
            elif time.monotonic() > self.end_s:
                return
            else:
                time.sleep(0)  # somebody waits now
        self.done = True

    def wait(self, what: str, limit_s: float = LIMIT_S) -> None:
        """Until it is complete; the errors are those of the function `wait`."""
        self.end_s = time.monotonic() + limit_s
        self.thread.join()
        if not self.done:
            raise _too_long(what, limit_s)


def _too_long(what: str, limit_s: float) -> TimeoutError:
    return TimeoutError(
        f"rank {MPI.COMM_WORLD.rank} waited {limit_s:g} s for {what}: another rank is slow, stuck or gone; "
        "restart the ranks, or allow more time with limit_s"
    )
