"""How long something has taken, without the time for which the machine was asleep."""

import time

LONGEST_STEP_S = 5.0


class Clock:
    """The seconds since its start in which this process ran.

    Whoever waits for something reads it many times a second. If two readings are further apart than LONGEST_STEP_S,
    a laptop was closed or a virtual machine paused, and the ranks did not run either. Of such a gap, only
    LONGEST_STEP_S count. So even the clock of a process that hardly ever runs goes on.
    """

    def __init__(self):
        self._counted_s = 0.0
        self._read_at = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """The seconds so far; reading them counts those since the last reading."""
        now = time.monotonic()
        self._counted_s += min(now - self._read_at, LONGEST_STEP_S)
        self._read_at = now
        return self._counted_s

    def skip(self) -> None:
        """Leave out the time since the last reading."""
        self._read_at = time.monotonic()
