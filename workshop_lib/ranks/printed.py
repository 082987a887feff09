"""How much one call may print on a rank: its lines are counted, and cut off beyond a limit."""

import contextlib
import sys
from collections.abc import Iterator
from types import MethodType
from typing import cast

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

    @staticmethod
    def by_this_call() -> list["Printed"]:
        """What the call under way has written to stdout and stderr (see `limited`)."""
        return [cast(Printed, cast(MethodType, stream.write).__self__) for stream in (sys.stdout, sys.stderr)]

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
def limited() -> Iterator[None]:
    """A context manager: what this rank prints inside it is counted and limited."""
    streams = [Printed(sys.stdout), Printed(sys.stderr)]
    for printed in streams:
        printed.stream.write = printed.write
    try:
        yield
    finally:
        for printed in streams:
            del printed.stream.write
