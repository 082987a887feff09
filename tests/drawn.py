"""What the tests of figures and tables look at: their words, and whether these are large enough and in their places."""

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console


class Shown(list):
    """In place of a cell's output: what was shown in it, one after another."""

    def display(self, widget, display_id=False):
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
    return [entry.get_text() for entry in figure.legends[0].get_texts() if entry.get_text().strip()]


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


def texts(shown) -> list[str]:
    """What is written on these axes, or on a figure's first ones."""
    return [text.get_text().strip() for text in (shown.axes[0] if isinstance(shown, Figure) else shown).texts]


def words(figure) -> str:
    """Title and captions, without their line breaks."""
    return " ".join(text.get_text() for text in figure.texts).replace("\n", " ")


def check_text(figure, font_size: float, *more) -> None:
    """All text has this size or more; what stands around the axes, and `more`, lies in the figure and apart."""
    figure.draw_without_rendering()
    labels = [axis.label for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    ticks = [label for axes in figure.axes for label in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    (below,) = figure.legends
    for text in [*figure.texts, *more, *labels, *ticks, *below.get_texts()]:
        assert text.get_fontsize() >= font_size or not text.get_text().strip() or not text.get_visible(), text
    whole = figure.bbox
    for piece in [*figure.texts, *more, below, *(axes.yaxis.label for axes in figure.axes)]:
        box = piece.get_window_extent()
        assert whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1, piece
    top = below.get_window_extent().y1
    assert all(axes.xaxis.label.get_window_extent().y0 >= top for axes in figure.axes if axes.get_visible())


def check_title_and_conditions(figure) -> None:
    """The answer stands above its conditions, and these above the axes."""
    title, conditions = (text.get_window_extent() for text in figure.texts)
    assert title.y0 >= conditions.y1
    assert all(conditions.y0 > axes.get_window_extent().y1 for axes in figure.axes)
