"""The clock of emulated time that a rank carries, and the streams of its emulated device.

Nothing sleeps. Computing moves the clock on by what an emulated device would need, and whoever waits for a message has
the later of two times: its own, and that at which the message arrives. So times are exact, and the same whatever else
the machine does.
"""

import random
import time


class StreamEvent:
    """A moment in the work of a stream, with the methods of torch.cpu.Event."""

    def __init__(self, *_, **__):
        self.at_s = 0.0

    def record(self, stream: "Stream | None" = None) -> None:
        self.at_s = (stream or CLOCK.stream).now_s

    def wait(self, stream: "Stream | None" = None) -> None:
        (stream or CLOCK.stream).wait_event(self)

    def query(self) -> bool:
        return self.at_s <= CLOCK.stream.now_s

    def synchronize(self) -> None:
        CLOCK.stream.wait_event(self)

    def elapsed_time(self, end: "StreamEvent") -> float:
        """Milliseconds from this event to a later one."""
        return 1e3 * (end.at_s - self.at_s)


class Stream:
    """A queue of work on the emulated device, with the methods of torch.cpu.Stream.

    A stream has its own time. What FSDP issues on its reduce-scatter stream costs time only where another stream waits
    for it, as on a GPU. The program runs ahead of all streams, and never keeps them waiting.
    """

    def __init__(self, priority: int = 0, now_s: float = 0.0):
        self.now_s = now_s

    def wait_stream(self, stream) -> None:
        self.now_s = max(self.now_s, getattr(stream, "now_s", 0.0))

    def wait_event(self, event) -> None:
        """Wait for an event. An event from before the emulation, which may be None, is over."""
        self.now_s = max(self.now_s, getattr(event, "at_s", 0.0))

    def synchronize(self) -> None:
        CLOCK.stream.wait_stream(self)

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event: StreamEvent | None = None) -> StreamEvent:
        event = event or StreamEvent()
        event.record(self)
        return event


class OnStream:
    """The context in which work is issued to `stream`; None leaves the stream as it is."""

    def __init__(self, stream: Stream | None):
        self.stream = stream

    def __enter__(self) -> None:
        self.before = CLOCK.stream
        CLOCK.stream = self.stream or self.before

    def __exit__(self, *_) -> None:
        CLOCK.stream = self.before


class EmulatedClock:
    """The emulated time of this rank, in seconds since its emulation began.

    `now_s` is the time of the stream to which work is issued. `slowness` is the factor on all computing: more than 1
    makes this rank a straggler. `own_time` charges what nobody declares, such as NumPy in a cell, with the CPU time
    that it takes here.
    """

    def __init__(self):
        self.reset()

    def reset(self, rank: int = 0, lateness: float = 0.0, own_time: bool = False) -> None:
        """Begin at 0. lateness: the standard deviation of a step's computing time, as a share of it."""
        self.default = Stream()
        self.stream = self.default
        self.slowness = 1.0
        self.computed_s = 0.0  # how long this device has computed, on all streams
        self.profiled = False  # whether layers have a profile, which is then charged instead of their operations
        self.lateness = lateness
        self.own_time = own_time
        self.cpu_s = time.thread_time()
        self.steps = random.Random(f"how late rank {rank} is")  # the same draws in every run
        self.next_step()

    @property
    def now_s(self) -> float:
        return self.stream.now_s

    def next_step(self) -> None:
        """Draw how late this device is in the next step. The optimizer calls this after each step."""
        drawn = self.steps.gauss(0.0, self.lateness) if self.lateness else 0.0
        self.pace = max(0.0, 1.0 + drawn)

    def compute(self, seconds: float) -> None:
        """Compute for this long on a device that is neither late nor slow."""
        taken_s = seconds * self.pace * self.slowness
        self.stream.now_s += taken_s
        self.computed_s += taken_s

    def wait_until(self, moment_s: float) -> None:
        """Wait for something that happens at this moment."""
        self.stream.now_s = max(self.stream.now_s, moment_s)

    def enter(self) -> float:
        """Charge the CPU time since the last message, and return the time. Each message and each reading calls this."""
        if self.own_time:
            self.compute(time.thread_time() - self.cpu_s)
            self.leave()
        return self.now_s

    def leave(self) -> None:
        """Note where a message ends, because moving it costs CPU time here that the emulated machine doesn't spend."""
        if self.own_time:
            self.cpu_s = time.thread_time()


CLOCK = EmulatedClock()
