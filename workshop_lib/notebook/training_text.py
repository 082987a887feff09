"""The progress of training as text: one line that moves, with the ranks' output above it."""

import io
import sys
from typing import Any

from workshop_lib.ranks.call.view import TextView
from workshop_lib.training.progress import Progress, epoch_line

LINES_EVERY_S = 10.0  # time between printed lines where no terminal can redraw one


class TrainingText(TextView):
    """Shows the progress of training, if the call trains. `trains`: whether it is sure to."""

    def __init__(self, n: int, trains: bool = False):
        super().__init__(n)
        self.trains = trains
        self.epochs_shown = 0
        self.bar: Any = None
        self.on_terminal = sys.stdout.isatty()
        self.line_shown_s = 0.0
        self.progress = Progress()

    def write(self, text: str) -> None:
        if self.bar:
            self.bar.write(text, file=sys.stdout)
        else:
            super().write(text)

    def update(self, data: list[Any], elapsed_s: float, running: list[int]) -> None:
        done_before = self.progress.done
        self.progress.take(data)
        if self.progress.info and self.bar is None:
            from tqdm import tqdm  # commands that train nothing do without it

            self.bar = tqdm(
                total=self.progress.total,
                unit="step",
                file=sys.stdout if self.on_terminal else io.StringIO(),
                leave=False,
                mininterval=0.5,
            )
        if self.bar is not None and self.progress.done > done_before:
            figures = ", ".join(self.progress.figures() + self.progress.shares())
            self.bar.set_postfix_str(figures, False)
            self.bar.update(self.progress.done - self.bar.n)
            if not self.on_terminal and elapsed_s - self.line_shown_s >= LINES_EVERY_S:
                self.output([f"step {self.progress.done} of {self.progress.total}: {figures}"])
                self.line_shown_s = elapsed_s
        for row in self.progress.epochs[self.epochs_shown :]:
            self.output([epoch_line(row, self.progress.emulated)])
            self.epochs_shown += 1

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
