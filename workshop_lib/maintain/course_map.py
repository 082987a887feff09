"""The map of the workshop: the core path, and the tracks that leave it.

Each notebook's source names its track on its first line, `# %% [markdown] track="measuring"`, and states its title and
its minutes in that cell. The picture and the table follow from these, so a new notebook is on the map by itself.
`generate` writes the picture to notebooks/map.svg and the table into the README. Notebook 00 and the book show both.
"""

import html
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from workshop_lib.course.exercises import CORE_PATH
from workshop_lib.notebook import palette

TIME = re.compile(r"\*\*Time\*\* [^.]*\.")  # the sentence on time in a notebook's first cell
TITLE = re.compile(r"^# (.+)", re.MULTILINE)
TABLE = re.compile(r"(?<=<!-- the map -->\n).*?(?=<!-- end of the map -->)", re.DOTALL)
STEP_MINUTES = 5  # minutes are estimates, so the map rounds them


@dataclass(frozen=True)
class Track:
    """A track leaves the core path at the notebook whose number is `after`."""

    name: str
    after: str
    color: str


TRACKS = (
    Track("frameworks", "02", palette.BLUE),
    Track("clusters and data", "05", palette.GREEN),
    Track("when things break", "05", palette.VERMILION),
    Track("your own script", "05", "#882255"),
    Track("large models", "06", palette.PURPLE),
    Track("large batches", "07", palette.YELLOW),
    Track("measuring", "08", palette.LIGHT_BLUE),
)
KNOWN = (CORE_PATH, *(track.name for track in TRACKS))


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


def table(
    stops: Iterable[Stop], here: str = "", folder: str = "", solved: Callable[[str], tuple[int, int]] | None = None
) -> str:
    """The tracks as a Markdown table: their notebooks with links and minutes, and the hours of each track.

    here: the notebook that shows the table. folder: where links find the notebooks, such as "notebooks/".
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
            link = text if each.name == here else f"[{text}]({folder}{each.name}.ipynb)"
            counts.append(solved(each.name) if solved else (0, 0))
            is_done = counts[-1][0] == counts[-1][1] > 0
            entries.append(f"{link} ({rounded(each.minutes)}){' ✓' if is_done else ''}")
        name = f"**{track}**" if track == CORE_PATH else track
        row = [name, " · ".join(entries), in_hours(sum(rounded(each.minutes) for each in of_track))]
        if solved:
            done, asked = map(sum, zip(*counts, strict=True))
            row.append(f"{done} of {asked}")
        rows.append(row)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def with_table(page: str, stops: Iterable[Stop]) -> str:
    """The README with its table of tracks as these notebooks give it."""
    written = table(stops, folder="notebooks/")
    return TABLE.sub(lambda _: f"{written}\n", page)


# The picture's measures, in its own units: CSS pixels at full width.
CORE_X = 34
LABEL_X = 64
STOPS_X = 288  # the first stop of a track
BETWEEN_STOPS = 52
CORE_ROW = 46
TRACK_ROW = 50
RADIUS = 17
LEAST_WIDTH = 520
STYLE = """\
text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; font-size: 15px; fill: #000 }
.number { font-size: 14px; font-weight: bold; text-anchor: middle }
.name { font-weight: bold }
.minutes { fill: #595959; font-weight: normal }
circle { fill: #fff; stroke-width: 4 }
path { fill: none; stroke-width: 6; stroke-linecap: round }"""


def picture(stops: Iterable[Stop]) -> str:
    """The map as an SVG: the core path from top to bottom, and each track to the right from where it leaves."""
    of_track = by_track(stops)
    lines: list[str] = []
    circles: list[str] = []
    y = 30
    top, bottom = y, y
    for each in of_track.get(CORE_PATH, []):
        bottom = y
        circles += [*_circle(CORE_X, y, palette.INK, each), _label(y + 5, each.label, f"{rounded(each.minutes)} min")]
        for track in TRACKS:
            if track.after == each.number and track.name in of_track:
                y += TRACK_ROW
                lines.append(_branch(track, y, len(of_track[track.name])))
                for at, stop_of_track in enumerate(of_track[track.name]):
                    circles += _circle(STOPS_X + at * BETWEEN_STOPS, y, track.color, stop_of_track)
                minutes = sum(rounded(each.minutes) for each in of_track[track.name])
                circles.append(_label(y - 8, track.name, in_hours(minutes)))
        y += CORE_ROW
    height = y
    longest = max((len(of_track.get(track.name, [])) for track in TRACKS), default=0)
    width = max(LEAST_WIDTH, STOPS_X + longest * BETWEEN_STOPS - BETWEEN_STOPS + RADIUS + 10)
    lines.append(f'<path d="M{CORE_X},{top} V{bottom}" stroke="{palette.INK}"/>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
            f"<title>{html.escape(in_words(of_track))}</title>",
            f"<style>\n{STYLE}\n</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="{palette.PAPER}"/>',
            *lines,
            *circles,
            "</svg>\n",
        ]
    )


def in_words(of_track: dict[str, list[Stop]]) -> str:
    """What the picture shows, for people who can't see it."""
    tracks = []
    for name, of_one in of_track.items():
        numbers = ", ".join(each.number for each in of_one)
        tracks.append(f"{name}: {numbers}")
    return f"A map of the notebooks. {'; '.join(tracks)}."


def _circle(x: int, y: int, color: str, each: Stop) -> list[str]:
    title = f"<title>{html.escape(each.title)}, {rounded(each.minutes)} minutes</title>"
    return [
        f'<circle cx="{x}" cy="{y}" r="{RADIUS}" stroke="{color}">{title}</circle>',
        f'<text class="number" x="{x}" y="{y + 5}">{each.number}</text>',
    ]


def _label(y: int, name: str, time: str) -> str:
    spans = f'<tspan class="name">{html.escape(name)}</tspan> <tspan class="minutes">{time}</tspan>'
    return f'<text x="{LABEL_X}" y="{y}">{spans}</text>'


def _branch(track: Track, y: int, count: int) -> str:
    end = STOPS_X + (count - 1) * BETWEEN_STOPS
    bend = f"C{CORE_X},{y} {CORE_X},{y} {LABEL_X},{y}"
    return f'<path d="M{CORE_X},{y - TRACK_ROW} V{y - TRACK_ROW // 2} {bend} H{end}" stroke="{track.color}"/>'
