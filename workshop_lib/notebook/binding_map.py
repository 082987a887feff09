"""Where running ranks are: a panel for each host, a row for each rank, a square for each core it may use."""

from matplotlib.patches import Rectangle

from workshop_lib.notebook.figures import COLOURS, FONT_SIZE, GREY, RecordFigure

ROOM_FOR_NUMBERS = 24  # cores of a host: with more, there is no room for a number in each square
MOST_ROWS = 64


def draw(abouts: list[dict], title: str = "") -> RecordFigure:
    """Draw what `team.about()` returned: each rank's host, allowed cores (numbers) and threads.

    Columns are the cores that any of a host's ranks may use. Raises ValueError when there are no ranks, or
    more than fit.
    """
    if not 0 < len(abouts) <= MOST_ROWS:
        raise ValueError(f"there are {len(abouts)} ranks to draw; give 1 to {MOST_ROWS} of them")
    hosts: dict[str, list[dict]] = {}
    for about in abouts:
        hosts.setdefault(about["host"], []).append(about)
    heights = [len(ranks) + 1.2 for ranks in hosts.values()]
    figure = RecordFigure(figsize=(12, 0.9 + 0.5 * sum(heights)), facecolor="white")
    panels = figure.subplots(len(hosts), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (host, ranks) in zip(panels, hosts.items(), strict=True):
        _panel(axes, host, ranks)
    if title:
        figure.suptitle(title, x=0.02, ha="left", fontsize=FONT_SIZE + 2, weight="bold")
    figure.tight_layout()
    return figure


def _panel(axes, host: str, ranks: list[dict]) -> None:
    columns = {core: column for column, core in enumerate(sorted({c for r in ranks for c in r["cores"]}))}
    for row, about in enumerate(ranks):
        colour = COLOURS[about["rank"] % len(COLOURS)]
        for core, column in columns.items():
            allowed = core in about["cores"]
            look = {"fc": colour, "ec": "white"} if allowed else {"fc": "none", "ec": "#D9D9D9"}
            axes.add_patch(Rectangle((column, row + 0.1), 0.95, 0.8, **look))
            if allowed and len(columns) <= ROOM_FOR_NUMBERS:
                where = (column + 0.475, row + 0.5)
                axes.annotate(
                    str(core), where, ha="center", va="center", fontsize=FONT_SIZE - 2,
                    bbox={"fc": "white", "ec": "none", "pad": 1.5},
                )  # fmt: skip
    axes.set(xlim=(0, max(8, len(columns))), ylim=(len(ranks), 0))
    axes.set_yticks([row + 0.5 for row in range(len(ranks))], [_label(about) for about in ranks])
    axes.set_xticks([])
    axes.tick_params(length=0, labelsize=FONT_SIZE - 1)
    axes.spines[:].set_visible(False)
    axes.set_title(f"{host}: {len(columns)} cores", loc="left", fontsize=FONT_SIZE, color=GREY)


def _label(about: dict) -> str:
    threads = about["threads"]
    told = "" if threads is None else f", {threads} thread{'s' * (threads > 1)}"
    return f"rank {about['rank']}{told}"
