"""The dashboard's charts as SVG, drawn without a plotting library because the ranks need the cores.

Whatever color distinguishes, line widths, markers or stripes distinguish as well. Text has the page's own color.
"""

import math
from collections.abc import Callable

from matplotlib.ticker import MaxNLocator

from workshop_lib.notebook.palette import BLUE, GREEN, LIGHT_BLUE, PURPLE, VERMILION, YELLOW
from workshop_lib.training.progress import Point
from workshop_lib.training.timeline import COMMUNICATING, COMPUTING, KINDS, WAITING, Timeline

WIDTH = 940
LARGEST_WIDTH_PX = 1300  # on a projector, the drawing and its text grow up to this width
SMALLEST_WIDTH_PX = 580  # beside the files in a window of 1,024 pixels; in a narrower column, the drawing scrolls
PLOT_HEIGHT = 118
ROW_HEIGHT = 17
CURVES_HEIGHT = PLOT_HEIGHT + 84
STRIPS_TOP = 44
MAX_RANKS = 16  # with more ranks, this many have lines and rows of their own
STRIP_LEFT = 62
STRIP_WIDTH = 524
SHARES_LEFT = 606
SHARE_WIDTH = 104
MIXED = "computing and communicating (inside backward, not told apart)"


def curves(curve: list[Point], epochs: list[dict], steps_per_epoch: int) -> str:
    """An SVG of loss, accuracy and learning rate by step: thin lines for single ranks, thick ones for all together.

    The accuracy chart also marks the test accuracy after each epoch. Its axis fits the last three quarters of
    the curve: nobody could tell 98 % from 99 % on an axis that also shows the first steps' 10 %.
    """
    n = len(curve[0].sums)
    steps = curve[-1].done
    sums = [point.of_ranks() for point in curve]

    def lines(of: Callable[[list[float]], float]) -> list[list[tuple[int, float]]]:
        drawn: list[list[tuple[int, float]]] = [[] for _ in range(n + 1)]
        for point, row in zip(curve, sums, strict=True):
            for line, of_rank in zip(drawn, row, strict=True):
                value = of(of_rank) if of_rank[2] else math.nan
                # If a training run diverges, its loss becomes infinite, then NaN. The line ends before that.
                if math.isfinite(value):
                    line.append((point.done, value))
        return drawn[: min(n, MAX_RANKS)] + drawn[-1:]

    loss = lines(lambda row: max(row[0] / row[2], 1e-6))
    accuracy = lines(lambda row: 100 * row[1] / row[2])
    tested = [(row["epoch"] * steps_per_epoch, 100 * row["test_accuracy"]) for row in epochs]
    recent = [y for line in [*accuracy, tested] for x, y in line if x > steps / 4]
    low = min([*recent, 99.0])
    ends = range(steps_per_epoch, steps + 1, steps_per_epoch * (1 + steps // steps_per_epoch // 10))

    losses = [y for line in loss for _, y in line] or [0.1, 1.0]
    axes = Axes(48, 268, "Training loss (cross-entropy)", steps, (min(losses), max(losses)), log=True)
    parts = [axes.frame(ends), _rank_lines(axes, loss)]
    axes = Axes(372, 268, "Accuracy in %", steps, (low, 100.0))
    parts += [axes.frame(ends), _rank_lines(axes, [[p for p in line if p[1] >= low] for line in accuracy])]
    parts.append(_tested(axes, [point for point in tested if point[1] >= low]))
    axes = Axes(700, 224, "Learning rate", steps, (0.0, max(point.lr for point in curve) or 1.0))
    parts += [axes.frame(ends), axes.line([(point.done, point.lr) for point in curve], GREEN, 2.5)]
    return drawing(CURVES_HEIGHT, "".join(parts) + _curves_key(CURVES_HEIGHT - 8, n))


def room(n: int) -> str:
    """Empty drawings that reserve the height of the charts of a training run on n ranks."""
    return drawing(CURVES_HEIGHT, "") + drawing(_strips_height(n, False), "")


class Axes:
    """One chart's position and scales: x from 0 to x_end steps, y over y_range, on a logarithmic scale if `log`."""

    top = 24

    def __init__(self, left: float, width: float, title: str, x_end: float, y_range: tuple, log: bool = False):
        self.left = left
        self.width = width
        self.bottom = self.top + PLOT_HEIGHT
        self.title = title
        self.x_end = x_end
        low, high = y_range
        self.scale = math.log10 if log else float
        self.y_ticks = log_ticks(low, high) if log else ticks(low, high)
        low = min(low, self.y_ticks[0])
        high = max(high, self.y_ticks[-1])
        self.x_unit = width / x_end
        self.y_unit = PLOT_HEIGHT / (self.scale(high) - self.scale(low))
        self.y_zero = self.bottom + self.scale(low) * self.y_unit

    def at(self, x: float, y: float) -> tuple[float, float]:
        """The position of the point (x, y) in the drawing, where x is in steps."""
        return self.left + x * self.x_unit, self.y_zero - self.scale(y) * self.y_unit

    def frame(self, epoch_ends: range) -> str:
        """The chart's title, its ticks with their numbers, and a dashed line at each of `epoch_ends`."""
        bottom = self.bottom
        right = self.left + self.width
        parts = [_text(self.left, 13, self.title, weight="bold")]
        for y in self.y_ticks:
            level = self.at(0, y)[1]
            parts.append(_text(self.left - 6, level + 4, f"{y:g}" if y < 10_000 else f"{y:,.0f}", "end"))
            parts.append(f'<path d="M{self.left} {level:.1f}H{right}" {_FAINT}/>')
        for x in ticks(0, self.x_end, 4):
            if x <= self.x_end:
                parts.append(_text(self.at(x, 1)[0], bottom + 16, f"{x:g}", "middle"))
        for x in epoch_ends:
            where = self.at(x, 1)[0]
            parts.append(f'<path d="M{where:.1f} {self.top}V{bottom}" {_FAINT} stroke-dasharray="4 3"/>')
        parts.append(_text(self.left + self.width / 2, bottom + 32, "step", "middle"))
        return "".join(parts)

    def line(self, points: list[tuple], color: str, width: float, more: str = "") -> str:
        path = " ".join("{:.1f},{:.1f}".format(*self.at(x, y)) for x, y in points)
        stroke = f'fill="none" stroke="{color}" stroke-width="{width}" stroke-linejoin="round"'
        return f'<polyline points="{path}" {stroke} {more}/>'


def _rank_lines(axes: Axes, lines: list[list[tuple]]) -> str:
    """A thin line per rank and, on top of them, the last line in bold: all ranks together."""
    thin = [axes.line(line, LIGHT_BLUE, 1, f'data-rank="{rank}"') for rank, line in enumerate(lines[:-1])]
    return "".join(thin) + axes.line(lines[-1], BLUE, 2.5, 'data-rank="all"')


def _tested(axes: Axes, points: list[tuple]) -> str:
    if not points:
        return ""
    marks = "".join(_square(*axes.at(*point)) for point in points)
    x, y = axes.at(*points[-1])
    value = f"<g {_HALO}>{_text(x - 7, y + 14, f'{points[-1][1]:.2f}', 'end', weight='bold')}</g>"
    return axes.line(points, VERMILION, 1.5, 'stroke-dasharray="2 3"') + marks + value


def _square(x: float, y: float) -> str:
    return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" fill="{VERMILION}"/>'


def _curves_key(y: float, n: int) -> str:
    each = "each rank" if n <= MAX_RANKS else f"the first {MAX_RANKS} ranks"
    entries = (
        (48, f'<path d="M48 {y - 4}h26" stroke="{LIGHT_BLUE}"/>', each),
        (236, f'<path d="M236 {y - 4}h26" stroke="{BLUE}" stroke-width="2.5"/>', "all ranks together"),
        (388, _square(401, y - 4), "test, after an epoch"),
        (572, f'<path d="M572 {y - 4}h26" {_FAINT} stroke-dasharray="4 3"/>', "end of an epoch"),
    )
    return "".join(sign + _text(x + 32, y, text) for x, sign, text in entries)


def strips(shown: Timeline, recent: Timeline, name: str, note: str = "") -> str:
    """An SVG of what each rank did in the few steps of `shown`, and how it divided its time in the steps of `recent`.

    Among many ranks, it shows those that computed longest in `recent`, for which the others waited.
    `name` must be unique in the page, because it identifies the stripes. `note` is a sentence under the chart.
    """
    mixed = not shown.collectives_known and len(shown.pieces) > 1
    fills = {COMPUTING: PURPLE if mixed else BLUE} | {kind: f"url(#{name}-{kind})" for kind in (WAITING, COMMUNICATING)}
    n = len(shown.pieces)
    shares_of = recent.shares()
    drawn = list(range(n))
    where = "each rank"
    if n > MAX_RANKS:
        drawn = sorted(drawn, key=lambda rank: shares_of[rank][COMPUTING], reverse=True)[:MAX_RANKS]
        where = f"{MAX_RANKS} of {n} ranks"
    top = STRIPS_TOP
    seconds = shown.seconds or 1.0
    bottom = top + len(drawn) * ROW_HEIGHT
    zero = shown.steps[0][1]
    steps = f"The last {len(shown.steps)} steps" if len(shown.steps) > 1 else "The last step"
    parts = [_patterns(name), _text(STRIP_LEFT, 13, f"{steps} on {where}", weight="bold")]
    for row, rank in enumerate(drawn):
        shares = shares_of[rank]
        y = top + row * ROW_HEIGHT
        parts.append(f'<g data-strip="{rank}">' + _text(STRIP_LEFT - 6, y + 12, f"rank {rank}", "end"))
        for kind in KINDS:
            bars = []
            for piece, start_s, end_s in shown.pieces[rank]:
                if piece == kind and end_s > start_s:
                    x = STRIP_LEFT + STRIP_WIDTH * (start_s - zero) / seconds
                    width = STRIP_WIDTH * (end_s - start_s) / seconds
                    bars.append(f"M{x:.1f} {y}h{width:.1f}v{ROW_HEIGHT - 4}h-{width:.1f}z")
            if bars:
                parts.append(f'<path d="{"".join(bars)}" fill="{fills[kind]}"/>')
        for column, kind in enumerate(() if mixed else KINDS):
            x = SHARES_LEFT + SHARE_WIDTH * (column + 1) - 12
            parts.append(_text(x, y + 12, f"{shares[kind]:.0%}", "end"))
        parts.append("</g>")
    parts.append(_step_marks(shown, top, bottom))
    for ms in ticks(0, 1000 * seconds, 8):
        if ms <= 1000 * seconds:
            at = STRIP_LEFT + STRIP_WIDTH * ms / (1000 * seconds)
            parts.append(f'<path d="M{at:.1f} {bottom}v4" stroke="currentColor"/>')
            parts.append(_text(at, bottom + 17, f"{ms:g}", "middle"))
    parts.append(_text(STRIP_LEFT + STRIP_WIDTH / 2, bottom + 32, "time in ms", "middle"))
    parts += [_strips_key(fills, recent.seconds, mixed), _text(STRIP_LEFT, bottom + 50, note)]
    return drawing(_strips_height(n, bool(note)), "".join(parts))


def _strips_height(n: int, with_note: bool) -> float:
    return STRIPS_TOP + min(n, MAX_RANKS) * ROW_HEIGHT + (58 if with_note else 38)


def _step_marks(shown: Timeline, top: float, bottom: float) -> str:
    """A line where the first rank begins each step, with the step's number where there is room."""
    parts = []
    free_from = 0.0
    zero = shown.steps[0][1]
    for step, start_s in shown.steps:
        x = STRIP_LEFT + STRIP_WIDTH * (start_s - zero) / (shown.seconds or 1.0)
        parts.append(f'<path d="M{x:.1f} {top - 12}V{bottom}" {_FAINT}/>')
        if free_from <= x <= STRIP_LEFT + STRIP_WIDTH - 60:  # further right, the number would run into the shares
            parts.append(_text(x + 3, top - 5, f"step {step}"))
            free_from = x + 70
    return "".join(parts)


def _strips_key(fills: dict[str, str], recent_s: float, mixed: bool) -> str:
    """The heading above the shares, which is also the key to the colors."""
    if mixed:
        box = f'<rect x="{SHARES_LEFT - 14}" y="3" width="12" height="12" fill="{fills[COMPUTING]}"/>'
        words = MIXED.partition(" (")
        return box + _text(SHARES_LEFT + 4, 13, words[0]) + _text(SHARES_LEFT + 4, 29, words[1][1:] + words[2])
    parts = [_text(SHARES_LEFT - 6, 13, f"Share of the last {recent_s:.1f} s", weight="bold")]
    for column, kind in enumerate(KINDS):
        x = SHARES_LEFT + SHARE_WIDTH * column - 6
        parts.append(f'<rect x="{x}" y="25" width="14" height="12" fill="{fills[kind]}"/>')
        parts.append(_text(x + 18, 36, kind))
    return "".join(parts)


def _patterns(name: str) -> str:
    """Stripes that survive a print in gray: waiting is light with slanted lines, communicating dark with white ones."""

    def pattern(kind: str, color: str, size: float, turn: int, stripe: str) -> str:
        place = f'width="{size}" height="{size}" patternUnits="userSpaceOnUse"'
        return (
            f'<pattern id="{name}-{kind}" {place} patternTransform="rotate({turn})">'
            f'<rect width="{size}" height="{size}" fill="{color}"/>'
            f'<rect width="1.5" height="{size}" fill="{stripe}"/></pattern>'
        )

    waiting = pattern(WAITING, YELLOW, 6, 45, "#000")
    communicating = pattern(COMMUNICATING, GREEN, 4, 90, "#fff")
    return f"<defs>{waiting}{communicating}</defs>"


# Keeps text readable on top of lines, in the color of JupyterLab's page.
_HALO = 'stroke="var(--jp-layout-color0, transparent)" stroke-width="4" paint-order="stroke"'
_FAINT = 'fill="none" stroke="currentColor" stroke-opacity="0.3"'


def _text(x: float, y: float, text: str, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{text}</text>'


def drawing(height: float, content: str) -> str:
    """An SVG of this height around `content`, as wide as the page allows, in a box that scrolls it if it is wider."""
    width = f"width:100%;min-width:{SMALLEST_WIDTH_PX}px;max-width:{LARGEST_WIDTH_PX}px;height:auto"
    look = f'style="{width}" font-size="12" fill="currentColor"'
    box = f'viewBox="0 0 {WIDTH} {height:g}"'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {box} {look}>{content}</svg>'
    return f'<div style="overflow-x:auto">{svg}</div>'


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Evenly spaced round numbers that cover the range from low to high."""
    return [float(value) for value in MaxNLocator(about, steps=[1, 2, 5, 10]).tick_values(low, high)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten from low to high; only powers, or some of them, if these are too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [float(f"{m}e{power}") for power in powers for m in (1, 2, 5)]
    first = max((i for i, y in enumerate(values) if y <= low), default=0)
    last = min((i for i, y in enumerate(values) if y >= high), default=len(values) - 1)
    values = values[first : max(last, first + 1) + 1]
    if len(values) <= 7:
        return values
    round_values = [y for y in values if f"{y:e}".startswith("1.0")]
    return round_values[:: 1 + len(round_values) // 8]
