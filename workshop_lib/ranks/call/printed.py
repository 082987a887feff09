"""How much one call may print on a rank: its lines are counted, and cut off beyond a limit.

Between two calls, a rank's threads may print too. That is kept, and the next call that is shown prints it first.
"""

import contextlib
import io
import sys
from collections.abc import Iterator

MAX_LINES = 5_000
MAX_CHARACTERS = 500_000


class Printed:
    """Counts the lines that a call writes to a stream, and cuts off what exceeds the limits."""

    def __init__(self, stream):
        self.stream = stream
        self.lines = 0
        self.characters = 0
        self.is_cut = False
        self._write = stream.write

    def write(self, text: str) -> int:
        redraws = text.startswith("\r") and "\n" not in text  # a progress bar, which stays on one line
        if not redraws and not self.is_cut:
            self.characters += len(text)
            self.is_cut = self.lines + text.count("\n") > MAX_LINES or self.characters > MAX_CHARACTERS
            if self.is_cut:
                text = text[: MAX_CHARACTERS - self.characters + len(text)]
                text = "".join(text.splitlines(keepends=True)[: MAX_LINES - self.lines])
                text += (
                    f"\n(cut off here: a cell shows {MAX_LINES:,} lines or {MAX_CHARACTERS:,} characters per rank)\n"
                )
        elif self.is_cut:
            return len(text)
        self.lines += text.count("\n")
        return self._write(text)


@contextlib.contextmanager
def limited(shown: bool = True) -> Iterator[None]:
    """A context manager: what this rank prints inside it is counted and limited.

    shown: whether anybody sees it. If so, what threads have printed since the last call is printed first.
    """
    streams = (sys.stdout, sys.stderr)
    between = [_written_between_calls(stream) for stream in streams]
    for stream in streams:
        stream.write = Printed(stream).write  # type: ignore[method-assign]
    try:
        if shown:
            between = [_print(kept, stream) for kept, stream in zip(between, streams, strict=True)]
        yield
    finally:
        for kept, stream in zip(between, streams, strict=True):
            if hasattr(stream, "pub_thread"):  # a kernel's stream, which sends what it gets to the last call's output
                stream.write = kept.write  # type: ignore[method-assign]
            else:
                del stream.write


def _written_between_calls(stream) -> Printed:
    """What threads have written to this stream since the last call; from now on, the stream does not keep it."""
    write = vars(stream).pop("write", None)
    return write.__self__ if write else Printed(io.StringIO())


def _print(kept: Printed, stream) -> Printed:
    """Print what threads wrote between two calls; return what keeps their next text."""
    for line in kept.stream.getvalue().split("\n"):
        last = line.rstrip("\r").rpartition("\r")[2]  # the last state of a progress bar
        if last:
            print(f"(between cells) {last}", file=stream)
    return Printed(io.StringIO())
