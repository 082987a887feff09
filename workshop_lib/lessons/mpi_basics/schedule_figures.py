"""Figures of the deadlock explorer in 01_mpi_basics: a run with a lane per rank, its calls, the messages, who waits."""

from collections import defaultdict
from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from workshop_lib.lessons.mpi_basics import explorer
from workshop_lib.lessons.mpi_basics.rank_thread import RankCall
from workshop_lib.lessons.mpi_basics.schedule import Schedule
from workshop_lib.notebook import figures, palette
from workshop_lib.notebook.figures import SMALL, RecordFigure

COLUMNS = 9  # a figure shows at most this many columns, the last ones
WIDE = 0.84
HIGH = 0.5
CALLED = palette.TINTS[4]
WAITING = palette.TINTS[1]


LANE = {"color": palette.GRAY, "linewidth": 1.2, "linestyle": "-", "marker": "", "zorder": 1}


def explore(program: Callable, ranks: int = 2) -> RecordFigure | None:
    """Run `program(comm)` in every order in which its messages can match, and draw a run that fails, or else the first.

    Draws nothing for an exercise that is not solved yet.
    """
    try:
        return draw(explorer.explore(program, ranks))
    except NotImplementedError:
        print("This function isn't solved yet, so there is nothing to explore.")
        return None


@figures.styled
def draw(exploration: explorer.Exploration) -> RecordFigure:
    """Draw the run that an exploration shows, under its verdict."""
    text = " ".join([exploration.text, *exploration.notes])
    lines = 1 + len(text) // 120
    tall = 1.3 + 0.22 * lines + 0.95 * len(exploration.run.ranks)
    figure, axes = figures.canvas((12, tall), f"{exploration.headline}.", text)
    figure.in_words = str(exploration)
    _lanes(axes, exploration.run)
    return figure


def columns(run: Schedule) -> dict[RankCall, int]:
    """Return the column of each call.

    Calls that ended together share a column, and no call comes before what it waited for.
    """
    together: dict[float, list[RankCall]] = defaultdict(list)
    for rank in run.ranks:
        last = 0.0
        for call in rank.calls:
            last = max(call.moment, last + 1e-3)
            together[last].append(call)
    free = [0] * len(run.ranks)
    column: dict[RankCall, int] = {}
    for moment in sorted(together):
        calls = together[moment]
        arrived = [sender for sender, receiver in run.messages if receiver in calls and sender in column]
        lanes = [call.rank for call in calls + arrived]
        between = range(min(lanes), max(lanes) + 1)  # lanes in which the arrows must not cross a call
        at = max([free[lane] for lane in between] + [column[sender] + 1 for sender in arrived])
        column |= dict.fromkeys(calls, at)
        for lane in between:
            free[lane] = at + 1
    return column


def _lanes(axes: Axes, run: Schedule) -> None:
    column = columns(run)
    last = max(column.values(), default=0)
    first = max(0, last - COLUMNS + 1)
    axes.set(xlim=(-0.5, max(last - first, 4) + 1.9), ylim=(len(run.ranks) - 0.45, -0.5))
    for rank in run.ranks:
        axes.text(-0.55, rank.number, f"rank {rank.number}", ha="right", va="center", weight="bold")
        shown = [call for call in rank.calls if column[call] >= first]
        end = max((column[call] - first for call in shown), default=-0.5)
        axes.plot([-0.5, end + 0.6 * rank.ended], [rank.number, rank.number], **LANE)
        for call in shown:
            _call(axes, column[call] - first, call, run)
        if rank.ended:
            axes.text(end + 0.66, rank.number, "ends", va="center", fontsize=SMALL, color=palette.GRAY)
    if first:
        axes.text(-0.45, -0.42, "… earlier calls are left out", fontsize=SMALL, color=palette.GRAY)
    for sender, receiver in run.messages:
        if min(column[sender], column[receiver]) >= first and sender.rank != receiver.rank:
            _message(axes, (column[sender] - first, sender.rank), (column[receiver] - first, receiver.rank))


def _call(axes: Axes, x: float, call: RankCall, run: Schedule) -> None:
    y = call.rank
    returned = {"fc": CALLED, "ec": palette.BLUE, "lw": 1.2, "label": "a call that has returned"}
    waiting = {"fc": WAITING, "ec": palette.VERMILION, "lw": 2.2, "label": "a call that hasn't returned"}
    look = waiting if call.open else returned
    corner = (x - WIDE / 2, y - HIGH / 2)
    axes.add_patch(FancyBboxPatch(corner, WIDE, HIGH, boxstyle="round,pad=0,rounding_size=0.06", zorder=2, **look))
    size = SMALL if len(call.name) < 10 else SMALL - 2
    axes.text(x, y - 0.09, call.name, ha="center", va="center", fontsize=size, weight="bold", zorder=4)
    axes.text(x, y + 0.13, f"line {call.line.number}", ha="center", va="center", fontsize=SMALL, zorder=4)
    if call.open:
        text = f"waits for\n{run.waits_for(call.open[0])}"
        axes.text(x + WIDE / 2 + 0.08, y, text, va="center", fontsize=SMALL, color=palette.VERMILION, weight="bold")


def _message(axes: Axes, start: tuple[float, int], end: tuple[float, int]) -> None:
    down = 1 if end[1] > start[1] else -1
    ends = (start[0], start[1] + down * HIGH / 2), (end[0], end[1] - down * HIGH / 2)
    bend = {"connectionstyle": "arc3,rad=0.25"} if abs(end[1] - start[1]) > 1 else {}
    axes.add_patch(
        FancyArrowPatch(*ends, **bend, arrowstyle="-|>", mutation_scale=16, lw=1.8, color=palette.INK, zorder=3)
    )
