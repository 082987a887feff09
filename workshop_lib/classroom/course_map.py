"""The map of the workshop: the core path, and the tracks that leave it, as a table.

Each notebook's source names its track on its first line, `# %% [markdown] track="measuring"`, and states its title and
its minutes in that cell. The table follows from these, and `generate` writes it into the README. The picture beside it,
notebooks/map.svg, is drawn by hand; a test compares it with the table.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from workshop_lib.exercises.exercises import CORE_PATH

TIME = re.compile(r"\*\*Time\*\* [^.]*\.")  # the sentence on time in a notebook's first cell
TITLE = re.compile(r"^# (.+)", re.MULTILINE)
STEP_MINUTES = 5  # minutes are estimates, so the map rounds them


KNOWN = (
    CORE_PATH,
    "frameworks",
    "clusters and data",
    "when things break",
    "your own script",
    "large models",
    "large batches",
    "measuring",
)


@dataclass(frozen=True)
class Stop:
    """A notebook on the map: its name, title and track, and the minutes of its core."""

    name: str
    title: str
    track: str
    minutes: int

    @property
    def number(self) -> str:
        return self.name.partition("_")[0]

    @property
    def label(self) -> str:
        """The title, without what follows a colon."""
        return self.title.partition(":")[0]


def stop(name: str, first_cell: str, track: str) -> Stop:
    """A notebook's place on the map, from its first cell."""
    title = TITLE.search(first_cell)
    time = TIME.search(first_cell)
    minutes = re.search(r"\d+", time[0]) if time else None
    return Stop(name, title[1] if title else name, track, int(minutes[0]) if minutes else 0)


def by_track(stops: Iterable[Stop]) -> dict[str, list[Stop]]:
    """The stops of the core path and of each track, in the order of `KNOWN`; none for a track without notebooks."""
    stops = list(stops)
    found = {name: [each for each in stops if each.track == name] for name in KNOWN}
    return {name: of_track for name, of_track in found.items() if of_track}


def rounded(minutes: int) -> int:
    return STEP_MINUTES * round(minutes / STEP_MINUTES)


def in_hours(minutes: int) -> str:
    """ "55 min", "1.5 h" or "7 h"."""
    return f"{rounded(minutes)} min" if minutes < 60 else f"{round(minutes / 30) / 2:g} h"


def course_table(
    stops: Iterable[Stop],
    here: str = "",
    link: Callable[[str], str] = str,
    solved: Callable[[str], tuple[int, int]] | None = None,
) -> str:
    """The tracks as a Markdown table: their notebooks with links and minutes, and the hours of each track.

    here: the notebook that shows the table. link: returns where a link finds a notebook's file.
    solved: returns how many of a notebook's exercises this learner has solved, and how many there are. With it, the
    table gets a column.
    """
    head = ["track", "notebooks, with the minutes of each", "about"]
    if solved:
        head.append("exercises solved")
    rows = [head, ["---"] * len(head)]
    for track, of_track in by_track(stops).items():
        entries = []
        counts = []
        for each in of_track:
            text = f"{each.number} {each.label}"
            linked = text if each.name == here else f"[{text}]({link(f'{each.name}.ipynb')})"
            counts.append(solved(each.name) if solved else (0, 0))
            is_done = counts[-1][0] == counts[-1][1] > 0
            entries.append(f"{linked} ({rounded(each.minutes)}){' ✓' if is_done else ''}")
        name = f"**{track}**" if track == CORE_PATH else track
        row = [name, " · ".join(entries), in_hours(sum(rounded(each.minutes) for each in of_track))]
        if solved:
            done, asked = map(sum, zip(*counts, strict=True))
            row.append(f"{done} of {asked}")
        rows.append(row)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
