"""What a call shows while it runs, as plain text. Every other view has the same methods."""

from collections.abc import Sequence
from typing import Any

from .output import Row


class TextView:
    """Prints what ranks print and display, each line with its rank in front.

    A view may ask for the end of the call: `stop_requested` asks the ranks to stop, which functions that look for it
    (engine.stop_asked) do within a few seconds.
    """

    def __init__(self, n: int):
        self.n = n
        self.stop_requested = False
        self.interrupted = False  # by the notebook's own stop button, or Ctrl-C

    def output(self, items: Sequence[str | Row]) -> None:
        """Show lines that ranks printed, and rows of what they displayed."""
        lines = [line for item in items for line in ([item] if isinstance(item, str) else item.new_lines())]
        if lines:
            self.write("\n".join(lines))

    def write(self, text: str) -> None:
        """Print these lines at once: a message to the page for each line would be too many."""
        print(text, flush=True)

    def unfinished(self, lines: list[str]) -> None:
        """Show the lines that ranks are still writing. As text, nothing is shown before a line is finished."""

    def update(self, data: list[dict[str, Any]], elapsed_s: float, running: list[int]) -> None:
        """Show what each rank published last, given the ranks that still run; called about ten times a second."""

    def close(self) -> None:
        """The call has ended, in whatever way."""
