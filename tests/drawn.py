"""What the tests of figures and tables look at: their points, their words, and whether every word can be read."""

import warnings

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from rich.console import Console


class Shown(list):
    """In place of a cell's output: what was shown in it, one after another."""

    def display(self, widget, display_id=False, raw=False):
        self.append(widget)
        return self

    def update(self, static):
        self.append(static.data)


def printed(table, width: int = 80) -> str:
    """A rich table as a terminal of this width shows it."""
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def panel(figure, title: str):
    """The axes with this title."""
    return next(axes for axes in figure.axes if axes.get_title(loc="left") == title)


def curve(axes, number: int = 0) -> list[np.ndarray]:
    """x and y of the points of the axes' curve `number` with error bars."""
    return list(axes.containers[number].lines[0].get_xydata().T)


def lines(axes) -> dict[str, np.ndarray]:
    """The [points, 2] of the axes' lines, by their labels."""
    return {line.get_label(): np.asarray(line.get_xydata()) for line in axes.lines}


def hollow(axes) -> bool:
    """Whether points are marked as those of more ranks than cores."""
    return "hollow, *: oversubscribed (more ranks than cores)" in lines(axes)


def texts(shown) -> list[str]:
    """What is written on these axes, or on a figure's first ones."""
    return [text.get_text().strip() for text in (shown.axes[0] if isinstance(shown, Figure) else shown).texts]


def words(figure) -> str:
    """Title and captions, without their line breaks."""
    return " ".join(text.get_text() for text in figure.texts).replace("\n", " ")


# CSS's hue-rotate(180deg), with which custom.css and book.css keep the hues when a dark theme inverts a figure.
HALF_TURN = np.array([[-0.574, 1.43, 0.144], [0.426, 0.43, 0.144], [0.426, 1.43, -0.856]])
READABLE = 4.5  # contrast of text, as the Web Content Accessibility Guidelines ask for
READABLE_BOLD = 3.0


def darkened(rgb: np.ndarray) -> np.ndarray:
    """The colors [..., 3], from 0 to 1, as a dark theme shows them: invert(0.93) hue-rotate(180deg)."""
    return np.clip((0.93 - 0.86 * rgb) @ HALF_TURN.T, 0, 1)


def contrast(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The contrast of colors [..., 3], from 1 to 21."""
    ratio = (luminance(one) + 0.05) / (luminance(other) + 0.05)
    return np.maximum(ratio, 1 / ratio)


def luminance(rgb: np.ndarray) -> np.ndarray:
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def check_contrast(text: str, color, behind: np.ndarray, bold: bool) -> None:
    """A text of this color can be read on each of the colors behind it, [n, 3], in a light and in a dark theme."""
    ink = np.array(to_rgb(color))
    least = min(contrast(ink, behind).min(), contrast(darkened(ink), darkened(behind)).min())
    assert least >= (READABLE_BOLD if bold else READABLE), f"{text!r} has a contrast of {least:.1f} only"


def check_places(texts: list[str], low: np.ndarray, high: np.ndarray, size: np.ndarray) -> None:
    """No text, in a box from low[n] to high[n], is cut off by the figure of this size or touches another text."""
    outside = ((low < -1) | (high > size + 1)).any(axis=1)
    assert not outside.any(), f"cut off: {[texts[at] for at in np.flatnonzero(outside)]}"
    common = np.minimum(high[:, None], high) - np.maximum(low[:, None], low)  # [texts, texts, 2] in pixels
    overlaps = np.argwhere(np.triu(common.min(axis=2) > 3, 1))
    assert not len(overlaps), f"one on another: {[(texts[one], texts[other]) for one, other in overlaps]}"


def check_layout(figure) -> None:
    """The figure renders without a warning, all of its texts can be read, and its axes say what they show."""
    shown: dict[int, Text] = {}
    draw = Text.draw
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("error")
        patch.setattr(Text, "draw", lambda text, renderer: (shown.setdefault(id(text), text), draw(text, renderer)))
        figure.draw_without_rendering()
    texts = [text for text in shown.values() if text.get_text().strip() and text.get_visible()]
    assert min(text.get_fontsize() for text in texts) >= 9
    low, high = np.array([Text.get_window_extent(text).get_points() for text in texts]).transpose(1, 0, 2)
    check_places(texts, low, high, figure.bbox.max)
    for text, colors in zip(texts, behind(figure, texts, low, high), strict=True):
        check_contrast(text.get_text(), text.get_color(), colors, text.get_fontweight() == "bold")
    for axes in figure.axes:
        x, y = axes.get_position().min
        column = [each.get_xlabel() for each in figure.axes if abs(each.get_position().x0 - x) < 0.01]
        row = [each.get_ylabel() for each in figure.axes if abs(each.get_position().y0 - y) < 0.01]
        for axis, labels in ((axes.xaxis, column), (axes.yaxis, row)):
            scale = [text.get_text() for text in axis.get_ticklabels() if text in texts and axes.axison]
            assert any(labels) or not any(text.isdigit() for text in scale), f"nothing says what {scale} counts"


def behind(figure, texts: list[Text], low: np.ndarray, high: np.ndarray) -> list[np.ndarray]:
    """For each text, the colors [n, 3] that cover at least a tenth of its box without it. The figure isn't kept."""
    for text in texts:
        text.set_alpha(0)
    figure.set_layout_engine("none")  # everything stays where the boxes were found
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[::-1, :, :3]  # from the bottom up, as boxes are
    found = []
    for (left, bottom), (right, top) in zip(low.clip(0).astype(int), high.clip(0).astype(int), strict=True):
        colors, counts = np.unique(pixels[bottom:top, left:right].reshape(-1, 3), axis=0, return_counts=True)
        found.append(colors[counts >= 0.1 * counts.sum()] / 255)
    return found
