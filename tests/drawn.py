"""What the tests of figures and tables look at: their points, their words, and whether every word can be read."""

import warnings

import numpy as np
import pytest
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


def legend(figure) -> list[str]:
    return [entry.get_text() for entry in figure.legends[0].get_texts()]


def panel(figure, title: str):
    """The axes with this title."""
    return next(axes for axes in figure.axes if axes.get_title(loc="left") == title)


def curve(axes, number: int = 0) -> list[np.ndarray]:
    """x and y of the points of the axes' curve `number` with error bars."""
    return list(axes.containers[number].lines[0].get_xydata().T)


def bars(axes, number: int = 0, across: bool = False) -> np.ndarray:
    """Where the error bars of the axes' curve `number` begin and end: [bars, 2], without points that have none."""
    segments = axes.containers[number].lines[2][0].get_segments()
    return np.array([ends[:, 0 if across else 1] for ends in segments if len(ends)])


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


def check_layout(figure) -> None:
    """The figure renders without a warning, and none of its texts is cut off, touches another one or is tiny."""
    shown: dict[int, Text] = {}
    draw = Text.draw
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("error")
        patch.setattr(Text, "draw", lambda text, renderer: (shown.setdefault(id(text), text), draw(text, renderer)))
        figure.draw_without_rendering()
    texts = [text for text in shown.values() if text.get_text().strip() and text.get_visible()]
    assert min(text.get_fontsize() for text in texts) >= 9
    low, high = np.array([Text.get_window_extent(text).get_points() for text in texts]).transpose(1, 0, 2)
    outside = ((low < -1) | (high > figure.bbox.max + 1)).any(axis=1)
    assert not outside.any(), f"cut off: {[texts[at] for at in np.flatnonzero(outside)]}"
    common = np.minimum(high[:, None], high) - np.maximum(low[:, None], low)  # [texts, texts, 2] in pixels
    overlaps = np.argwhere(np.triu(common.min(axis=2) > 3, 1))
    assert not len(overlaps), f"one on another: {[(texts[one], texts[other]) for one, other in overlaps]}"
