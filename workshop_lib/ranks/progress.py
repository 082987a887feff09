"""A run's progress, put together from what the ranks have published, and shown as text."""

import io
import sys
from collections.abc import Sequence
from typing import Any

from workshop_lib.training import diverged

from .call.messages import Point, Published, PublishedPoint
from .call.output import Row
from .timeline import timeline

MAX_POINTS = 100
SHARES_OF_LAST_S = 1.0
DIVERGED = "The training has diverged, so it no longer learns: try a smaller learning rate, or a longer warm-up."
LINES_EVERY_S = 10.0  # time between printed lines where no terminal can redraw one


class Progress:
    """What the ranks have published about a training, as curves over the steps of the run."""

    def __init__(self):
        self.info: Any = None  # a RunInfo
        self.phase = ""  # what rank 0 does before the first step
        self.step: Any = None  # the last PublishedPoint of rank 0, or its StepEvent
        self.epochs: list[dict] = []
        self.trace: list[list] = []  # [rank] StepTrace of the last steps
        self.curve: list[Point] = []
        self._last: list[PublishedPoint] = []  # the ranks' points at the end of the curve
        self._span = 1.0  # how many steps a point of the curve spans before the next point begins

    def take(self, data: list[Published]) -> bool:
        """Add what each rank published last; return whether there was anything new about the training."""
        lead = data[0]
        self.info = lead.get("info")
        self.phase = lead.get("phase", "")
        known = [{point["done"]: point for point in of_rank.get("points", ())} for of_rank in data]
        after = self._last[0]["done"] if self._last else 0
        new = sorted(done for done in set.intersection(*map(set, known)) if done > after)
        for done in new:
            self._add([points[done] for points in known])
        if new:
            self.step = self._last[0]
            self.trace = [of_rank["trace"] for of_rank in data]
        elif not known[0] and "step" in lead:  # under plain mpiexec, just one rank is known
            self.step = lead["step"]
        news = bool(new) or len(self.epochs) < len(lead.get("epochs", ()))
        self.epochs = lead.get("epochs", self.epochs)
        return news

    def _add(self, points: list[PublishedPoint]) -> None:
        lead = points[0]
        goes_on = bool(self._last) and self._last[0]["epoch"] == lead["epoch"]  # sums start again in each epoch
        before = [point["sums"] for point in self._last] if goes_on else [[0.0] * 3] * len(points)
        sums = [
            [now - then for now, then in zip(point["sums"], old, strict=True)]
            for point, old in zip(points, before, strict=True)
        ]
        self._last = points
        self._append(Point(lead["done"], lead["lr"], sums))

    def _append(self, point: Point) -> None:
        """Add a point, or merge it into the last one. The first point stays as it is, no matter how long the run is."""
        if len(self.curve) > 2 and self.curve[-1].done - self.curve[-2].done < self._span:
            point = merged(self.curve.pop(), point)
        self.curve.append(point)
        if len(self.curve) > MAX_POINTS:
            first, *later = self.curve
            self.curve = [first, *(merged(*later[i : i + 2]) for i in range(0, len(later), 2))]
            # New points span as many steps as the merged points do now. If they spanned fewer, the curve would soon be
            # full again, and the old points would be merged again and again.
            self._span = (point.done - first.done) / (len(self.curve) - 1)

    @property
    def done(self) -> int:
        """How many steps of the run are done."""
        step = self.step
        return (step["epoch"] - 1) * step["steps_per_epoch"] + step["step"] if step else 0

    @property
    def total(self) -> int:
        """How many steps the whole run has; 1 while that is unknown."""
        return self.info["epochs"] * self.info["steps_per_epoch"] if self.info else 1

    def figures(self) -> list[str]:
        """The results of the last steps in words: loss over all ranks, learning rate, speed."""
        if self.step is None:
            return []
        loss = self.step["loss"] if not self.curve else None
        if self.curve:
            loss_sum, _, samples = self.curve[-1].of_ranks()[-1]
            loss = loss_sum / samples if samples else None
        last_loss = [] if loss is None else [f"loss {loss:.3f}"]
        speed = f"{self.step['samples_per_s']:,.0f} samples/s{self.emulated}"
        return [*last_loss, f"learning rate {self.step['lr']:.3g}", speed]

    @property
    def emulated(self) -> str:
        """What stands behind the run's times and speeds: " (emulated)", or "" if they are measured."""
        return " (emulated)" if self.info and self.info.get("machine") else ""

    def shares(self) -> list[str]:
        """How all ranks together spent the last second, in words; empty if that is unknown."""
        recent = timeline(self.trace, SHARES_OF_LAST_S)
        if len(self.trace) < 2 or not recent.collectives_known:
            return []
        return [f"{kind} {share:.0%}" for kind, share in recent.mean_shares().items()]


def merged(first: Point, second: Point | None = None) -> Point:
    """Two neighboring points merged into one; the first point if there is no second."""
    if second is None:
        return first
    sums = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(first.sums, second.sums, strict=True)]
    return Point(second.done, second.lr, sums)


class TextView:
    """Shows one progress line while training, with the ranks' output above it. Other views have the same methods."""

    def __init__(self, n: int, trains: bool = False):
        self.n = n
        self.trains = trains
        self.epochs_shown = 0
        self.bar: Any = None
        self.on_terminal = sys.stdout.isatty()
        self.line_shown_s = 0.0
        self.progress = Progress()
        self.stop_requested = False
        self.interrupted = False  # by the notebook's own stop button, or Ctrl-C

    def output(self, items: Sequence[str | Row]) -> None:
        """Show lines that ranks printed, and rows of what they displayed."""
        lines = [line for item in items for line in ([item] if isinstance(item, str) else item.new_lines())]
        if lines:
            self.write("\n".join(lines))

    def write(self, text: str) -> None:
        """Print these lines at once: a message to the page for each line would be too many."""
        if self.bar:
            self.bar.write(text, file=sys.stdout)
        else:
            print(text, flush=True)

    def unfinished(self, lines: list[str]) -> None:
        """Show the lines that ranks are still writing. As text, nothing is shown before a line is finished."""

    def update(self, data: list[Published], elapsed_s: float, running: list[int]) -> None:
        """Show what each rank published last, given the ranks that still run; called about ten times a second."""
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


def epoch_line(row: dict, emulated: str = "") -> str:
    """One epoch's result in one line, with `emulated` at its end, and a sentence if the training has diverged."""
    loss = row["train_loss"]
    shown = "not finite"
    if loss is not None:
        shown = f"{loss:.4f}" if loss < 1000 else f"{loss:.1e}"
    line = (
        f"epoch {row['epoch']}: train loss {shown}, test accuracy "
        f"{row['test_accuracy']:.2%}, {row['seconds']:.1f} s, {row['samples_per_s']:,.0f} samples/s{emulated}"
    )
    return f"{line}\n{DIVERGED}" if diverged(row) else line
