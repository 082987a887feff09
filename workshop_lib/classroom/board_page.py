"""How the board of a room looks: one page of HTML and SVG, without scripts, readable from the last row and on a phone.

The texts that it gets are escaped already (board.py), and the page's own policy lets a browser load and run nothing at
all. Whatever color distinguishes, shape distinguishes as well.
"""

import base64
import hashlib
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

MOST_QUESTIONS, MOST_NOTEBOOKS, MOST_EXERCISES = 20, 40, 25  # questions and exercises per notebook
MOST_SPEEDS = 8

STYLE = Path(__file__).with_name("board.css").read_text(encoding="utf-8")
_STYLE_SHA256 = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_SHA256}'; base-uri 'none'; form-action 'none'"
ABOUT = (
    "A circle is a guess, a diamond is what somebody’s machine measured, and an upright line is the median of its row."
)
MARKS = {"guess": '<circle class="guess" r="6"/>', "measured": '<path class="measured" d="M-8 0L0-8 8 0 0 8z"/>'}


@dataclass
class Participant:
    """What one learner shares, with each text in it escaped."""

    name: str
    cores: float | None = None
    guesses: dict[tuple[str, str, str], tuple[float, float | None]] = field(default_factory=dict)
    ranges: dict[tuple[str, str, str], tuple[float, float]] = field(default_factory=dict)  # of the questions' sliders
    solved: set[tuple[str, str]] = field(default_factory=set)
    speeds: dict[tuple[str, float], float] = field(default_factory=dict)


class Problem(NamedTuple):
    """A file that is left out because no learner's progress can be read from it, and why."""

    file: str
    reason: str


@dataclass
class Room:
    """What is in the folder. `active` learners have shared something lately; `note` is about the folder as a whole."""

    folder: str
    read_at: str
    learners: list[Participant] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    active: int = 0
    note: str = ""


class Strip(NamedTuple):
    """A row of marks, each with the name of the learner it belongs to."""

    label: str
    mark: str  # "guess" or "measured"
    values: Sequence[tuple[float, str]]
    said: str  # HTML that stands beside the marks


def page(room: Room, renew_s: int = 0) -> str:
    """The whole page. It reloads itself after `renew_s` seconds, unless that is 0."""
    counts: Counter[str] = Counter()
    for learner in room.learners:
        counts.update({notebook for notebook, *_ in [*learner.guesses, *learner.solved]})
    notebooks = sorted(name for name, _ in counts.most_common(MOST_NOTEBOOKS))
    parts = [_head(room, notebooks), "<main>"]
    parts += [_notebook(name, room.learners) for name in notebooks]
    parts += [_speeds(room.learners), _problems(room.problems), "</main>", _foot(room)]
    renew = f'<meta http-equiv="refresh" content="{renew_s}">' if renew_s else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{renew}<title>The room</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _head(room: Room, notebooks: list[str]) -> str:
    checks = sum(len(learner.solved) for learner in room.learners)
    guesses = sum(len(learner.guesses) for learner in room.learners)
    numbers = [(len(room.learners), "people"), (room.active, "in the last ten minutes")]
    numbers += [(checks, "checks solved"), (guesses, "guesses")]
    counts = "".join(f"<span><b>{n:,}</b>{words}</span>" for n, words in numbers)
    if room.problems:
        counts += f'<span class="bad"><b>{len(room.problems)}</b><a href="#problems">unreadable</a></span>'
    links = "".join(f'<a href="#{name}">{_title(name)}</a>' for name in notebooks)
    note = f'<p class="bad">{room.note}</p>' if room.note else ""
    nav = f'<nav aria-label="Notebooks">{links}</nav>'
    about = f'<p class="faint">{ABOUT}</p>'
    return f'<header><h1>The room</h1>{note}<p class="counts">{counts}</p>{nav}{about}</header>'


def _title(notebook: str) -> str:
    return notebook.replace("_", " ")


def _section(title: str, cards: Iterable[str], about: str = "", name: str = "") -> str:
    content = "".join(f"<article>{card}</article>" for card in cards)
    if not content:
        return ""
    target = f' id="{name}"' if name else ""
    about = f'<p class="faint">{about}</p>' if about else ""
    return f'<section><h2{target}>{title}</h2>{about}<div class="cards">{content}</div></section>'


def _notebook(notebook: str, learners: list[Participant]) -> str:
    asked: dict[tuple[str, str], list] = defaultdict(list)
    ranges: dict[tuple[str, str], Counter] = defaultdict(Counter)
    solved: Counter[str] = Counter()
    for learner in learners:
        for (name, question, unit), (guess, measured) in learner.guesses.items():
            if name == notebook:
                asked[question, unit].append((learner.name, guess, measured))
                ranges[question, unit][learner.ranges.get((name, question, unit))] += 1  # None if it has none
        solved.update(exercise for name, exercise in learner.solved if name == notebook)
    most = sorted(asked, key=lambda question: -len(asked[question]))[:MOST_QUESTIONS]
    cards = [_question(*each, asked[each], ranges[each].most_common(1)[0][0]) for each in asked if each in most]
    rows = [_bar(name, n, len(learners)) for name, n in solved.most_common(MOST_EXERCISES)]
    if rows:
        cards.append(f"<h3>Checks solved</h3>{''.join(rows)}")
    return _section(_title(notebook), cards, name=notebook)


def _question(
    question: str, unit: str, answers: list[tuple[str, float, float | None]], span: tuple[float, float] | None
) -> str:
    """A question with its guesses and, hidden until somebody follows the link, what was measured and who was closest.

    The link leads to an address of its own in the page, so what it reveals stays when the page reloads itself.
    """
    rows = [_strip("guessed", "guess", [(guess, name) for name, guess, _ in answers])]
    both = [(name, guess, measured) for name, guess, measured in answers if measured is not None]
    title = f"<h3>{question}</h3>"
    if not both:
        return title + strips(rows, unit, span)
    name, guess, measured = min(both, key=lambda each: abs(each[1] - each[2]))
    closest = f'<p class="faint">Closest: <b>{name}</b> ({short(guess)}, measured {short(measured)})</p>'
    all_rows = [*rows, _strip("measured", "measured", [(measured, name) for name, _, measured in both])]
    target = "measured-" + hashlib.sha256(f"{question} {unit}".encode()).hexdigest()[:8]
    reveal = f'<p class="reveal"><a href="#{target}">Reveal what {len(both)} measured</a></p>'
    hidden = f'<div class="hidden">{strips(rows, unit, span)}{reveal}</div>'
    return f'<div id="{target}">{title}<div class="shown">{strips(all_rows, unit, span)}{closest}</div>{hidden}</div>'


def _strip(label: str, mark: str, values: Sequence[tuple[float, str]]) -> Strip:
    median = statistics.median(value for value, _ in values)
    return Strip(label, mark, values, f"<b>{short(median)}</b> median of {len(values)}")


def strips(rows: Sequence[Strip], unit: str, span: tuple[float, float] | None = None, from_zero: bool = False) -> str:
    """Rows of marks over one axis, as HTML. A value outside the axis is drawn at its end.

    span: the ends of the axis, such as those of a question's slider; without it, the axis covers the values.
    """
    values = [value for row in rows for value, _ in row.values]
    low, high = span or (0.0 if from_zero else min(values), max(values))
    width = (high - low) or 1.0

    def place(value: float) -> str:
        return f"{2 + 96 * min(1, max(0, (value - low) / width)):.2f}%"

    drawn = "".join(_row(row.label, _marks(row, place), row.said) for row in rows)
    ends = f"<span>{short(low)}</span><span>{short(high)} {unit}</span>"
    return f'{drawn}<div class="row"><span></span><div class="ends">{ends}</div><span></span></div>'


def _row(label: str, drawn: str, said: str) -> str:
    return f'<div class="row"><span>{label}</span>{drawn}<span class="said">{said}</span></div>'


def _marks(row: Strip, place: Callable[[float], str]) -> str:
    """An SVG that is as wide as there is room. x is in percent, so the marks keep their size."""
    parts = ['<line class="base" x1="0" x2="100%" y1="22" y2="22"/>']
    lanes = (22, 14, 30) if len(row.values) > 3 else (22,)  # three lanes keep equal values apart
    for index, (value, name) in enumerate(row.values):
        y = lanes[index % len(lanes)]
        title = f"<title>{name}: {short(value)}</title>"
        parts.append(f'<svg overflow="visible" x="{place(value)}" y="{y}">{MARKS[row.mark]}{title}</svg>')
    median = statistics.median(value for value, _ in row.values)
    parts.append(f'<line class="median" x1="{place(median)}" x2="{place(median)}" y1="2" y2="42"/>')
    label = f"{row.label}: {len(row.values)} values, median {short(median)}"
    return f'<svg role="img" aria-label="{label}" height="44">{"".join(parts)}</svg>'


def _bar(label: str, n: int, of: int) -> str:
    bar = f'<rect class="rest" width="100%" height="22"/><rect class="bar" width="{100 * n / of:.1f}%" height="22"/>'
    svg = f'<svg role="img" aria-label="{n} of {of}" height="22">{bar}</svg>'
    return _row(label, svg, f"<b>{n} of {of}</b>")


def _speeds(learners: list[Participant]) -> str:
    measured: dict[tuple[str, float], list] = defaultdict(list)
    for learner in learners:
        for key, speed in learner.speeds.items():
            measured[key].append((speed, f"{learner.name}, {_count(learner.cores or 0, 'core')}"))
    most = sorted(measured, key=lambda key: -len(measured[key]))[:MOST_SPEEDS]
    rows = []
    for backend, ranks in sorted(most):
        values = measured[backend, ranks]
        speed, who = max(values)
        said = f"<b>{short(speed)}</b><br>{who}"
        rows.append(Strip(f"{backend}, {_count(ranks, 'rank')}", "measured", values, said))
    about = "Each diamond is a machine. Beside them stands the fastest."
    return _section("Samples per second", [strips(rows, "samples/s", from_zero=True)] if rows else [], about)


def _count(n: float, what: str) -> str:
    return f"{short(n)} {what}" if n == 1 else f"{short(n)} {what}s"


def _problems(problems: list[Problem]) -> str:
    items = [f"<li><code>{each.file}</code>: {each.reason}.</li>" for each in problems]
    title = '<h2 id="problems" class="bad">Unreadable files</h2>'
    return f"<section>{title}<ul>{''.join(items)}</ul></section>" if items else ""


def _foot(room: Room) -> str:
    how = f"<code>.venv/bin/workshop share {room.folder}</code>"
    return f'<footer class="faint"><p>To take part: {how}</p><p>Read at {room.read_at}.</p></footer>'


def short(value: float) -> str:
    """A number as text: three digits if it is small, all digits if it is large, a power of ten if it is extreme."""
    size = abs(value)
    if size >= 1e9 or 0 < size < 1e-4:
        return f"{value:.2e}"
    return f"{value:,.3g}" if size < 1000 else f"{value:,.0f}"
