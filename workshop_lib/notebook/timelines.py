"""Steps as bars over time, one band a rank: backward and its messages; or computing, waiting, messages."""

from functools import partial

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from workshop_lib.notebook import bars
from workshop_lib.notebook.figures import FONT_SIZE, GREY, RecordFigure
from workshop_lib.ranks.timeline import KINDS, Timeline

BACKWARD, ALLREDUCE = "#0072B2", "#E69F00"


def overlap(panels: dict[str, list[dict]]) -> RecordFigure:
    """Draw one step of each panel, by title; on a common axis, so that their lengths can be compared.

    Each rank's entry holds milliseconds since the start of its backward: "backward", when that had
    ended; "ready", when each gradient was there; "messages", (sent, arrived) of each allreduce, in order;
    and "end", when all gradients were averaged.
    """
    if not panels or not all(panels.values()):
        raise ValueError("give at least one panel, and in each the times of at least one rank")
    rows = [1 + max(len(of_rank["messages"]) for of_rank in team) for team in panels.values()]
    heights = [len(team) * (n + 1.1) for team, n in zip(panels.values(), rows, strict=True)]
    figure = RecordFigure(figsize=(12, 1.9 + 0.8 * len(panels) + 0.3 * sum(heights)), facecolor="white")
    grid = figure.add_gridspec(len(panels), 1, height_ratios=heights)
    right = 1.16 * max(of_rank["end"] for team in panels.values() for of_rank in team)
    for at, (title, team) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[at])
        _panel(axes, title, team, rows[at])
        axes.set_xlim(-0.01 * right, right)
        if at == len(panels) - 1:
            axes.set_xlabel("milliseconds since the start of backward", fontsize=FONT_SIZE)
    tall = figure.get_figheight()
    figure.subplots_adjust(left=0.16, right=0.98, top=1 - 0.5 / tall, bottom=1.35 / tall, hspace=0.3)
    _legend(figure)
    return figure


def _panel(axes, title: str, team: list[dict], rows: int) -> None:
    axes.set_title(title, loc="left", fontsize=FONT_SIZE, weight="bold")
    labels, places, top = [], [], 0.0
    for rank, times in enumerate(team):
        axes.barh(top, times["backward"], 0.8, left=0, color=BACKWARD)
        axes.vlines(times["ready"], top - 0.4, top + 0.4, color="white", lw=1.4)
        labels.append(f"rank {rank}: backward")
        places.append(top)
        for number, (sent, arrived) in enumerate(times["messages"]):
            y = top + 1 + number
            axes.barh(y, arrived - sent, 0.8, left=sent, color=ALLREDUCE, hatch="//", edgecolor="white")
            name = "all gradients" if len(times["messages"]) == 1 else f"bucket {number}"
            labels.append(name)
            places.append(y)
        axes.vlines(times["end"], top - 0.5, top + rows - 0.5, color="black", lw=2, ls=(0, (4, 2)))
        axes.text(times["end"], top - 0.1, f"  {times['end']:.0f} ms", va="center", fontsize=FONT_SIZE, weight="bold")
        top += rows + 1.1
    axes.set_ylim(top - 1.3, -0.8)
    axes.set_yticks(places, labels)
    axes.tick_params(labelsize=FONT_SIZE - 1)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#D9D9D9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _legend(figure: RecordFigure) -> None:
    handles = [
        Patch(color=BACKWARD, label="backward; a white line where a gradient is ready"),
        Patch(facecolor=ALLREDUCE, hatch="//", edgecolor="white", label="allreduce, from sent to arrived"),
        Line2D([], [], color="black", lw=2, ls=(0, (4, 2)), label="all gradients averaged"),
    ]
    figure.legend(handles=handles, loc="lower center", ncols=3, frameon=False, fontsize=FONT_SIZE - 2, labelcolor=GREY)


STEP_LOOKS = dict(zip(KINDS, bars.LOOKS.values(), strict=True))


def steps(panels: dict[str, Timeline]) -> RecordFigure:
    """Draw what each rank did in the steps of each panel, by title, on a common axis.

    The number at the end of a band is the share of its time for which this rank waited. Raises ValueError
    when there is nothing to draw.
    """
    if not panels or not all(found.steps for found in panels.values()):
        raise ValueError("give at least one panel, and in each at least one step that all ranks have")
    right_ms = 1.13e3 * max(found.seconds for found in panels.values())
    parts = {
        title: (len(found.pieces), partial(_bands, found=found, right_ms=right_ms)) for title, found in panels.items()
    }
    begins = Line2D([], [], color="black", lw=1.2, ls=(0, (4, 2)), label="a step begins")
    x_label = "milliseconds since the first of these steps began"
    return bars.stacked(parts, x_label, [*bars.patches(STEP_LOOKS), begins])


def _bands(axes, found: Timeline, right_ms: float) -> None:
    zero_s = found.steps[0][1]
    for rank, (pieces, shares) in enumerate(zip(found.pieces, found.shares(), strict=True)):
        for kind, start_s, end_s in pieces:
            colour, hatch = STEP_LOOKS[kind]
            width, left = 1e3 * (end_s - start_s), 1e3 * (start_s - zero_s)
            axes.barh(rank, width, 0.72, left=left, color=colour, hatch=hatch, edgecolor="white", lw=0)
        end_ms = 1e3 * (pieces[-1].end_s - zero_s)
        text = f"  waits {shares['waiting']:.0%}"
        axes.text(end_ms, rank, text, va="center", fontsize=FONT_SIZE, weight="bold")
    for _, start_s in found.steps:
        axes.axvline(1e3 * (start_s - zero_s), color="black", lw=1.2, ls=(0, (4, 2)))
    axes.set_xlim(0, right_ms)
