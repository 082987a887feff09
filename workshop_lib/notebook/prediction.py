"""Predictions: the learner commits to a guess before a run, and later sees it beside the measurement."""

import html
import math
import statistics
import textwrap
from collections.abc import Iterable

import ipywidgets as widgets
from IPython.display import display

from workshop_lib import learner
from workshop_lib.errors import InputError
from workshop_lib.notebook.figures import BLUE, FONT_SIZE, GRAY, YELLOW, Look, RecordFigure
from workshop_lib.notebook.widgets import answers_while_busy, has_widgets, leave, size

MEASURED = Look(BLUE, "")
GUESS = Look(YELLOW, "//")
STOPPED = "nothing: stopped before the first test"


class Question:
    """A guess at one number between `low` and `high`.

    Where widgets work, it is shown as a slider with a button; elsewhere, as the bare question. No cell waits
    for the guess: `value` is None until the learner commits.
    """

    def __init__(self, question: str, low: float, high: float, unit: str = ""):
        if not low < high:
            raise InputError(f"a prediction needs low < high, not {low!r} and {high!r}.")
        self.question = question
        self.low = low
        self.high = high
        self.unit = unit
        self.value: float | None = None

    def commit(self, value: float) -> None:
        """Make `value` the guess. Only the first guess counts."""
        if self.value is None:
            self.value = float(value)
            self._keep()

    def _keep(self, measured: float | None = None) -> None:
        if self.value is not None:
            learner.keep(learner.Prediction(self.question, self.unit, self.value, measured))

    def compare(
        self, measured: float | Iterable[float] | None, spread: tuple[float, float] | None = None
    ) -> RecordFigure:
        """A figure of the guess and the measurement. `spread` is the lowest and the highest measurement.

        Of several measurements, it shows the median and the spread. `measured` is None, or has no numbers, if the run
        was stopped before there was anything to measure; the figure then says so.
        """
        if isinstance(measured, Iterable):
            values = [float(value) for value in measured]
            measured = statistics.median(values) if values else None
            spread = (min(values), max(values)) if values else None
        self._keep(measured)
        if measured is None:
            rows = [("measured", 0.0, MEASURED, (0.0, 0.0), STOPPED)]
        else:
            rows = [("measured", measured, MEASURED, spread or (measured, measured), self._with_unit(measured))]
        if self.value is not None:
            rows.append(("your guess", self.value, GUESS, (self.value, self.value), self._with_unit(self.value)))
        question = textwrap.wrap(self.question, 80)
        # In inches.
        head = 0.1 + 0.27 * len(question)
        height = 0.62 + 0.5 * len(rows)
        figure = RecordFigure(figsize=(9, head + height), facecolor="white")
        axes = figure.add_axes((0.14, 0.62 / (head + height), 0.64, 0.5 * len(rows) / (head + height)))
        for at, (_, value, look, (low, high), text) in enumerate(rows):
            bars = [[max(value - low, 0)], [max(high - value, 0)]] if high > low else None
            axes.barh(at, value, 0.62, color=look.color, hatch=look.hatch, edgecolor="white", xerr=bars, capsize=5)
            beside = {"textcoords": "offset points", "va": "center", "fontsize": FONT_SIZE}
            axes.annotate(text, (max(value, high), at), (8, 0), **beside)
        longest = max(self.high, *(max(value, high) for _, value, _, (_, high), _ in rows))
        axes.set_xlim(min(0, self.low), longest)  # the longest bar ends the axis; its number stands to the right
        axes.set_yticks(range(len(rows)), [row[0] for row in rows], fontsize=FONT_SIZE)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(self.unit, fontsize=FONT_SIZE - 1)
        axes.spines[["top", "right", "left"]].set_visible(False)
        figure.text(0.02, 0.99, "\n".join(question), fontsize=FONT_SIZE, va="top")
        if self.value is None:
            figure.text(0.98, 0.03, "no guess was made", fontsize=FONT_SIZE - 2, color=GRAY, ha="right")
        return figure

    def _with_unit(self, value: float) -> str:
        return f"{_number(value)} {self.unit}".strip()

    def _ipython_display_(self) -> None:
        if has_widgets():
            return self._show_widget()
        span = f"{_number(self.low)} to {_number(self.high)} {self.unit}".strip()
        print(f"Prediction: {self.question} ({span})")

    def _show_widget(self) -> None:
        """Show a slider at its lowest end, which the learner must move before committing: it suggests no guess.

        On commit, plain HTML with the guess replaces the slider. It is still there when the notebook is opened again.
        """
        step = 10 ** math.floor(math.log10((self.high - self.low) / 50))
        digits = max(0, -math.floor(math.log10(step)))
        shape = {"min": self.low, "max": self.high, "step": step, "description": self.unit}
        slider = widgets.FloatSlider(self.low, **shape, readout_format=f".{digits}f")
        slider.continuous_update = False  # otherwise the slider's last message could arrive after the button's
        slider.layout.width = size(32)
        button = widgets.Button(description="Commit", icon="lock", disabled=True, tooltip="Move the slider first")
        slider.add_class("workshop-unset")
        button.add_class("workshop-commit")
        question = f"<b>Your prediction:</b> {html.escape(self.question)}"
        box = widgets.VBox([widgets.HTML(question), widgets.HBox([slider, button])])

        def move(_):
            button.disabled = False
            button.tooltip = ""
            slider.remove_class("workshop-unset")

        def commit(_=None):
            value = slider.value if self.value is None else self.value
            self.commit(value)
            guess = html.escape(self._with_unit(value))
            leave(shown, box, f"{question}<br><b>{guess}</b> (committed)")

        slider.observe(move, "value")
        button.on_click(commit)
        for widget in (slider, button):
            answers_while_busy(widget)
        shown = display(box, display_id=True)
        if self.value is not None:
            commit()


def predict(question: str, low: float, high: float, unit: str = "") -> Question:
    """Ask for a guess between low and high. Call it in the last line of a cell, and `compare` the result later."""
    return Question(question, low, high, unit)


def _number(value: float) -> str:
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
