"""How the board of a room looks: one page of HTML and SVG, without scripts, readable from the last row and on a phone.

Everything that comes from a file is escaped where it is put into the page, and the page's policy (HEADERS) lets a
browser load and run nothing at all. Whatever color distinguishes, shape distinguishes as well.
"""

import base64
import hashlib
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from workshop_lib.classroom.sharing import GAMES, Result
from workshop_lib.words import plural

MOST_QUESTIONS = 60
MOST_NOTEBOOKS = 40
MOST_EXERCISES = 25
MOST_SPEEDS = 8
MOST_PLACES = 4
MOST_NAMES = 6
MOST_PROBLEMS = 30
FENCE = 5.0  # a value further from the middle half than this many times its width is drawn at the edge
REFRESH_S = 5

STYLE = Path(__file__).with_name("board.css").read_text(encoding="utf-8")
_STYLE_SHA256 = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_SHA256}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


MARKS = {
    "guess": '<circle class="guess" r="6"/>',
    "measured": '<path class="measured" d="M-8 0L0-8 8 0 0 8z"/>',
    "left": '<path class="beyond" d="M5-7L-6 0 5 7z"/>',
    "right": '<path class="beyond" d="M-5-7L6 0-5 7z"/>',
}
CURRENT = ' aria-current="page"'


class Problem(NamedTuple):
    """A file that is not a result, and why not."""

    file: str
    reason: str


@dataclass
class Room:
    """What is in the folder. `active` learners have shared something lately; `note` is about the folder as a whole."""

    folder: str
    read_at: str
    results: list[Result] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    active: int = 0
    note: str = ""


class Strip(NamedTuple):
    """A row of marks, each with the name of the learner it belongs to."""

    label: str
    mark: str  # "guess" or "measured"
    values: Sequence[tuple[float, str]]
    said: str  # HTML that stands beside the marks


def page(room: Room, notebook: str = "", renew: bool | None = None) -> str:
    """The whole page, about one notebook or about all of them.

    renew: whether the page reloads itself, with a link to change that; None for a page that is written to a file.
    """
    notebooks = Counter(name for result in room.results for name in _notebooks(result))
    known = sorted(name for name, _ in notebooks.most_common(MOST_NOTEBOOKS))
    one = notebook if notebook in known else ""
    shown = [one] if one else known
    parts = [_head(room, known, one, renew), "<main>", _questions(room.results, shown), _solved(room.results, shown)]
    parts += [] if one else [_speeds(room.results), _games(room.results)]
    parts += [_problems(room.problems), "</main>", _foot(room)]
    again = f'<meta http-equiv="refresh" content="{REFRESH_S}">' if renew else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{again}<title>The room</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body>{''.join(parts)}</body></html>"
    )


def _notebooks(result: Result) -> set[str]:
    return {item["notebook"] for item in [*result["predictions"], *result["solved"]]}


def _head(room: Room, notebooks: list[str], chosen: str, renew: bool | None) -> str:
    checks = sum(len(result["solved"]) for result in room.results)
    guesses = sum(len(result["predictions"]) for result in room.results)
    numbers = [(len(room.results), "people"), (room.active, "in the last ten minutes")]
    numbers += [(checks, "checks solved"), (guesses, "guesses")]
    counts = "".join(f"<span><b>{n:,}</b>{words}</span>" for n, words in numbers)
    if n := len(room.problems):
        words = "files aren’t results" if n > 1 else "file isn’t a result"
        counts += f'<span class="bad"><b>{n:,}</b><a href="#problems">{words}</a></span>'
    links = [(_address(name, bool(renew)), _short(name), name == chosen) for name in ["", *notebooks]]
    links.append((_address(chosen, not renew), "❚❚ pause" if renew else "▶ go on", False))
    nav = "".join(f'<a href="{url}"{CURRENT if current else ""}>{escape(text)}</a>' for url, text, current in links)
    nav = "" if renew is None else f'<nav aria-label="Notebooks">{nav}</nav>'
    note = f'<p class="bad">{escape(room.note)}</p>' if room.note else ""
    return f'<header><h1>The room</h1>{note}<p class="counts">{counts}</p>{nav}</header>'


def _address(notebook: str, renew: bool) -> str:
    return "/?" + urlencode({"notebook": notebook} | ({} if renew else {"still": "1"}))


def _short(notebook: str) -> str:
    if not notebook:
        return "all"
    number, _, rest = notebook.partition("_")
    return f"{number} {rest.replace('_', ' ')}"


def _section(title: str, cards: Iterable[str], about: str = "") -> str:
    content = "".join(f"<article>{card}</article>" for card in cards)
    about = f'<p class="faint">{about}</p>' if about else ""
    return f'<section><h2>{title}</h2>{about}<div class="cards">{content}</div></section>' if content else ""


def _questions(results: list[Result], notebooks: list[str]) -> str:
    asked: dict[tuple[str, str, str], list] = defaultdict(list)
    for result in results:
        for each in result["predictions"]:
            if each["notebook"] in notebooks:
                of = (each["notebook"], each["question"], each["unit"])
                asked[of].append((result["name"], each["guess"], each["measured"]))
    most = sorted(asked, key=lambda of: -len(asked[of]))[:MOST_QUESTIONS]
    cards = [_question(of[0], of[1], of[2], asked[of]) for of in asked if of in most]
    about = "Each circle is a guess, each diamond what was measured on that person’s machine. The bars are medians."
    return _section("Guessed and measured", cards, about)


def _question(notebook: str, question: str, unit: str, answers: list[tuple[str, float, float | None]]) -> str:
    guessed = [(guess, name) for name, guess, _ in answers]
    measured = [(value, name) for name, _, value in answers if value is not None]
    rows = [
        Strip(label, mark, values, _median(values))
        for label, mark, values in (("guessed", "guess", guessed), ("measured", "measured", measured))
        if values
    ]
    title = f"<h3>{escape(notebook.partition('_')[0])} · {escape(question)}</h3>"
    apart = [(abs(guess - value), name, guess, value) for name, guess, value in answers if value is not None]
    closest = ""
    if apart:
        _, name, guess, value = min(apart)
        closest = f'<p class="faint">Closest: <b>{escape(name)}</b> ({number(guess)}, measured {number(value)})</p>'
    return title + strips(rows, unit) + closest


def _median(values: Sequence[tuple[float, str]]) -> str:
    return f"<b>{number(statistics.median(value for value, _ in values))}</b> median of {len(values)}"


def strips(rows: Sequence[Strip], unit: str, from_zero: bool = False) -> str:
    """Rows of marks over one axis, as HTML. A value far outside the axis is drawn as a triangle at its end."""
    spans = [_span([value for value, _ in row.values]) for row in rows]
    low = 0.0 if from_zero else min(span[0] for span in spans)
    high = max(span[1] for span in spans)
    width = (high - low) or 1.0

    def at(value: float) -> str:
        return f"{2 + 96 * min(1, max(0, (value - low) / width)):.2f}%"

    drawn = "".join(
        f'<div class="row"><span>{escape(row.label)}</span>{_marks(row, at, low, high)}'
        f'<span class="said">{row.said}</span></div>'
        for row in rows
    )
    ends = f"<span>{number(low)}</span><span>{number(high)} {escape(unit)}</span>"
    return f'{drawn}<div class="row"><span></span><div class="ends">{ends}</div><span></span></div>'


def _span(values: list[float]) -> tuple[float, float]:
    """The lowest and the highest value, leaving out values beyond FENCE."""
    ordered = sorted(values)
    first = ordered[len(ordered) // 4]
    third = ordered[-1 - len(ordered) // 4]
    room = FENCE * max(third - first, abs(statistics.median(ordered)) / 4, 1e-9)
    within = [value for value in ordered if first - room <= value <= third + room]
    return within[0], within[-1]


def _marks(row: Strip, at: Callable[[float], str], low: float, high: float) -> str:
    """An SVG that is as wide as there is room. x is in percent, so the marks keep their size."""
    parts = ['<line class="base" x1="0" x2="100%" y1="22" y2="22"/>']
    for place, (value, who) in enumerate(row.values):
        beyond = "right" if value > high else "left" if value < low else ""
        x = {"right": "100%", "left": "0"}.get(beyond) or at(value)
        y = 22
        if len(row.values) > 3:
            y += (0, -8, 8)[place % 3]  # three lanes keep equal values apart
        title = f"<title>{escape(who)}: {number(value)}</title>"
        parts.append(f'<svg overflow="visible" x="{x}" y="{y}">{MARKS[beyond or row.mark]}{title}</svg>')
    median = statistics.median(value for value, _ in row.values)
    parts.append(f'<line class="median" x1="{at(median)}" x2="{at(median)}" y1="2" y2="42"/>')
    label = f"{row.label}: {len(row.values)} values, median {number(median)}"
    return f'<svg role="img" aria-label="{escape(label)}" height="44">{"".join(parts)}</svg>'


def _solved(results: list[Result], notebooks: list[str]) -> str:
    counts: dict[str, Counter] = {name: Counter() for name in notebooks}
    for result in results:
        for each in result["solved"]:
            if each["notebook"] in counts:
                counts[each["notebook"]][each["exercise"]] += 1
    cards = []
    for notebook, exercises in counts.items():
        rows = [_bar(name, n, len(results)) for name, n in exercises.most_common(MOST_EXERCISES)]
        cards += [f"<h3>{escape(_short(notebook))}</h3>{''.join(rows)}"] if rows else []
    return _section("Checks solved", cards)


def _bar(label: str, n: int, of: int) -> str:
    bar = f'<rect class="rest" width="100%" height="22"/><rect class="bar" width="{100 * n / of:.1f}%" height="22"/>'
    share = f"{n} of {of}"
    svg = f'<svg role="img" aria-label="{share}" height="22">{bar}</svg>'
    return f'<div class="row"><span>{escape(label)}</span>{svg}<span class="said"><b>{share}</b></span></div>'


def _speeds(results: list[Result]) -> str:
    by_way: dict[tuple[str, int], list] = defaultdict(list)
    for result in results:
        for each in result["speeds"]:
            who = f"{result['name']}, {plural(result['cores'], 'core')}"
            by_way[each["backend"], each["world_size"]].append((each["samples_per_s"], who))
    most = sorted(by_way, key=lambda way: -len(by_way[way]))[:MOST_SPEEDS]
    rows = []
    for backend, ranks in sorted(most):
        values = by_way[backend, ranks]
        speed, who = max(values)
        said = f"<b>{number(speed)}</b><br>{escape(who)}"
        rows.append(Strip(f"{backend}, {plural(ranks, 'rank')}", "measured", values, said))
    about = "Each diamond is a machine, and the bars are medians. Beside them, the fastest."
    return _section("Samples per second", [strips(rows, "samples/s", from_zero=True)] if rows else [], about)


def _games(results: list[Result]) -> str:
    cards = []
    for exercise, game in GAMES.items():
        scores: dict[str, list[str]] = defaultdict(list)  # learners with the same score share a place
        all_scores = [(s["score"], r["name"]) for r in results for s in r["scores"] if s["exercise"] == exercise]
        for score, name in sorted(all_scores, key=lambda each: (-each[0] if game.best is max else each[0], each[1])):
            scores[number(score)].append(name)
        rows = [f"<li><b>{score}</b> {game.unit}: {_some(names)}</li>" for score, names in scores.items()]
        cards += [f"<h3>{game.title}</h3><ol>{''.join(rows[:MOST_PLACES])}</ol>"] if rows else []
    return _section("To beat", cards, "As their notebooks say. Nobody has verified it.")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return escape(", ".join(names[:MOST_NAMES]) + more)


def _problems(problems: list[Problem]) -> str:
    shown = [f"<li><code>{_name(each.file)}</code>: {escape(each.reason)}.</li>" for each in problems[:MOST_PROBLEMS]]
    if len(problems) > MOST_PROBLEMS:
        shown.append(f"<li>and {len(problems) - MOST_PROBLEMS} more</li>")
    title = '<h2 id="problems" class="bad">Files that aren’t results</h2>'
    return f"<section>{title}<ul>{''.join(shown)}</ul></section>" if shown else ""


def _name(file: str) -> str:
    """A file's name, in which characters other than plain text are spelled out, such as \\u202e."""
    plain = ascii(file)[1:-1]
    return escape(plain if len(plain) <= 60 else f"{plain[:57]}…")


def _foot(room: Room) -> str:
    how = f"<code>.venv/bin/workshop share {escape(room.folder)}</code>"
    return f'<footer class="faint"><p>To take part: {how}</p><p>Read at {escape(room.read_at)}.</p></footer>'


def number(value: float) -> str:
    """A number as text: three digits if it is small, all digits if it is large, a power of ten if it is extreme."""
    size = abs(value)
    return f"{value:.2e}" if size >= 1e9 or 0 < size < 1e-4 else f"{value:,.3g}" if size < 1000 else f"{value:,.0f}"
