"""How the board of a room looks: one page of HTML and SVG, without scripts, readable from the last row and on a phone.

The texts that it gets are escaped already (board.py), and the page's own policy lets a browser load and run nothing at
all. Whatever color distinguishes, shape distinguishes as well.
"""

import base64
import hashlib
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from workshop_lib.notebook.prediction import formatted

STYLE = Path(__file__).with_name("board.css").read_text(encoding="utf-8")
_STYLE_SHA256 = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_SHA256}'; base-uri 'none'; form-action 'none'"
ABOUT = (
    "A circle is a guess, a diamond is what somebody’s machine measured, and an upright line is the median of its row."
)
MARKS = {"guessed": '<circle class="guess" r="6"/>', "measured": '<path class="measured" d="M-8 0L0-8 8 0 0 8z"/>'}
Values = Sequence[tuple[float, str]]  # each with the name of the learner it belongs to


@dataclass
class Participant:
    """What one learner shares, with each text in it escaped: guesses with what was measured, and solved exercises."""

    name: str
    guesses: dict[tuple[str, str, str], tuple[float, float | None]] = field(default_factory=dict)
    solved: set[tuple[str, str]] = field(default_factory=set)


class Problem(NamedTuple):
    """A file that is left out because no learner's progress can be read from it, and why."""

    file: str
    reason: str


@dataclass
class Room:
    """What is in the folder."""

    folder: str
    learners: list[Participant] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def page(room: Room, renew_s: int = 0) -> str:
    """The whole page. It reloads itself after `renew_s` seconds, unless that is 0."""
    notebooks = sorted({name for learner in room.learners for name, *_ in [*learner.guesses, *learner.solved]})
    sections = "".join(_notebook(name, room.learners) for name in notebooks)
    renew = f'<meta http-equiv="refresh" content="{renew_s}">' if renew_s else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{renew}<title>The room</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body>{_head(room, notebooks)}<main>{sections}{_problems(room.problems)}</main>{_foot(room)}</body></html>\n"
    )


def _head(room: Room, notebooks: Iterable[str]) -> str:
    checks = sum(len(learner.solved) for learner in room.learners)
    guesses = sum(len(learner.guesses) for learner in room.learners)
    numbers = [(len(room.learners), "people"), (checks, "checks solved"), (guesses, "guesses")]
    counts = "".join(f"<span><b>{n:,}</b>{words}</span>" for n, words in numbers)
    if room.problems:
        counts += f'<span class="bad"><b>{len(room.problems)}</b><a href="#problems">unreadable</a></span>'
    links = "".join(f'<a href="#{name}">{_title(name)}</a>' for name in notebooks)
    nav = f'<nav aria-label="Notebooks">{links}</nav>'
    return f'<header><h1>The room</h1><p class="counts">{counts}</p>{nav}<p class="faint">{ABOUT}</p></header>'


def _title(notebook: str) -> str:
    return notebook.replace("_", " ")


def _notebook(notebook: str, learners: list[Participant]) -> str:
    asked: dict[tuple[str, str], list] = defaultdict(list)
    solved: Counter[str] = Counter()
    for learner in learners:
        for (name, question, unit), (guess, measured) in learner.guesses.items():
            if name == notebook:
                asked[question, unit].append((learner.name, guess, measured))
        solved.update(exercise for name, exercise in learner.solved if name == notebook)
    cards = [_question(*each, answers) for each, answers in asked.items()]
    rows = [_bar(name, n, len(learners)) for name, n in solved.most_common()]
    if rows:
        cards.append(f"<h3>Checks solved</h3>{''.join(rows)}")
    content = "".join(f"<article>{card}</article>" for card in cards)
    return f'<section><h2 id="{notebook}">{_title(notebook)}</h2><div class="cards">{content}</div></section>'


def _question(question: str, unit: str, answers: list[tuple[str, float, float | None]]) -> str:
    """A question with its guesses and, hidden until somebody follows the link, what was measured.

    The link leads to an address of its own in the page, so what it reveals stays when the page reloads itself.
    """
    guessed = [(guess, name) for name, guess, _ in answers]
    measured = [(value, name) for name, _, value in answers if value is not None]
    title = f"<h3>{question}</h3>"
    alone = _strips({"guessed": guessed}, unit)
    if not measured:
        return title + alone
    both = _strips({"guessed": guessed, "measured": measured}, unit)
    target = "measured-" + hashlib.sha256(f"{question} {unit}".encode()).hexdigest()[:8]
    reveal = f'<p class="reveal"><a href="#{target}">Reveal what {len(measured)} measured</a></p>'
    return f'<div id="{target}">{title}<div class="shown">{both}</div><div class="hidden">{alone}{reveal}</div></div>'


def _strips(rows: dict[str, Values], unit: str) -> str:
    """Rows of marks over one axis, as HTML."""
    values = [value for row in rows.values() for value, _ in row]
    low, high = min(values), max(values)
    drawn = "".join(_strip(label, row, low, (high - low) or 1.0) for label, row in rows.items())
    ends = f"<span>{formatted(low)}</span><span>{formatted(high)} {unit}</span>"
    return f'{drawn}<div class="row"><span></span><div class="ends">{ends}</div><span></span></div>'


def _strip(label: str, values: Values, low: float, width: float) -> str:
    """A row of marks, as wide as there is room: x is in percent, so the marks keep their size."""

    def place(value: float) -> str:
        return f"{2 + 96 * (value - low) / width:.2f}%"

    parts = ['<line class="base" x1="0" x2="100%" y1="22" y2="22"/>']
    for index, (value, name) in enumerate(values):
        y = 14 + 8 * (index % 3)  # three lanes keep equal values apart
        title = f"<title>{name}: {formatted(value)}</title>"
        parts.append(f'<svg overflow="visible" x="{place(value)}" y="{y}">{MARKS[label]}{title}</svg>')
    median = statistics.median(value for value, _ in values)
    parts.append(f'<line class="median" x1="{place(median)}" x2="{place(median)}" y1="2" y2="42"/>')
    words = f"{label}: {len(values)} values, median {formatted(median)}"
    drawn = f'<svg role="img" aria-label="{words}" height="44">{"".join(parts)}</svg>'
    return _row(label, drawn, f"<b>{formatted(median)}</b> median of {len(values)}")


def _bar(exercise: str, n: int, of: int) -> str:
    return _row(
        exercise, f'<progress max="{of}" value="{n}" aria-label="{exercise}"></progress>', f"<b>{n} of {of}</b>"
    )


def _row(label: str, drawn: str, said: str) -> str:
    return f'<div class="row"><span>{label}</span>{drawn}<span class="said">{said}</span></div>'


def _problems(problems: list[Problem]) -> str:
    items = [f"<li><code>{each.file}</code>: {each.reason}.</li>" for each in problems]
    title = '<h2 id="problems" class="bad">Unreadable files</h2>'
    return f"<section>{title}<ul>{''.join(items)}</ul></section>" if items else ""


def _foot(room: Room) -> str:
    how = f"<code>.venv/bin/workshop share {room.folder}</code>"
    return f'<footer class="faint"><p>To take part: {how}</p><p>Read at {time.strftime("%H:%M:%S")}.</p></footer>'
