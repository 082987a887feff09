"""A run's progress: what ranks publish while they train, and the curves put together from it."""

from typing import Any, NamedTuple, TypedDict

from . import diverged
from .timeline import timeline

MAX_POINTS = 100
SHARES_OF_LAST_S = 1.0
DIVERGED = "The training has diverged, so it no longer learns: try a smaller learning rate, or a longer warm-up."


class PublishedPoint(TypedDict):
    """A rank's state after a step. done counts the steps of the run; sums start again at zero in each epoch."""

    done: int
    epoch: int
    step: int
    steps_per_epoch: int
    lr: float
    samples_per_s: float
    sums: list[float]  # loss, correct answers, samples


class PublishedRun(TypedDict, total=False):
    """What one rank has published about its training. Each message has some of the keys; the last value counts."""

    stops_when_asked: bool  # tells the notebook that this call ends cleanly if it is asked to (ranks' Published)
    phase: str  # what the rank does before the first step
    info: dict[str, Any]
    points: list[PublishedPoint]
    trace: list[Any]  # StepTrace of the last steps
    epochs: list[dict[str, Any]]
    step: Any  # the StepEvent itself, only under plain mpiexec, where just one rank is known


class Point(NamedTuple):
    """What happened since the previous point, in the same steps on all ranks."""

    done: int  # steps of the run, so far
    lr: float
    sums: list[list[float]]  # [rank] loss, correct answers, samples

    def of_ranks(self) -> list[list[float]]:
        """The sums of each rank, followed by the sums of all ranks together."""
        return [*self.sums, [sum(column) for column in zip(*self.sums, strict=True)]]


class Progress:
    """What the ranks have published about a training run, as curves over the steps of the run."""

    def __init__(self):
        self.info: Any = None  # a RunInfo
        self.phase = ""  # what rank 0 does before the first step
        self.step: Any = None  # the last PublishedPoint of rank 0, or its StepEvent
        self.epochs: list[dict] = []
        self.trace: list[list] = []  # [rank] StepTrace of the last steps
        self.curve: list[Point] = []
        self._last: list[PublishedPoint] = []  # the ranks' points at the end of the curve
        self._span = 1.0  # how many steps a point of the curve spans before the next point begins

    def take(self, data: list[PublishedRun]) -> bool:
        """Add what each rank published last; return whether there was anything new about the run."""
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
