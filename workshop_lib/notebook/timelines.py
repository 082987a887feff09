"""When backward made the gradients, and when their buckets travelled: bars over time, one band a rank."""

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from workshop_lib.notebook.figures import FONT_SIZE, GREY, RecordFigure

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
        axes.text(
            times["end"],
            top - 0.1,
            f"  {times['end']:.0f} ms",
            va="center",
            fontsize=FONT_SIZE,
            weight="bold",
        )
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
    figure.legend(
        handles=handles, loc="lower center", ncols=3, frameon=False, fontsize=FONT_SIZE - 2, labelcolor=GREY
    )
