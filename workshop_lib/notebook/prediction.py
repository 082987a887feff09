"""Predictions: the learner commits to a guess before a run, and later sees it beside the measurement."""

import html
import math
import statistics
from collections.abc import Iterable
from typing import Any

import ipywidgets as widgets
from IPython.core.getipython import get_ipython
from IPython.display import HTML, display

from workshop_lib.errors import InputError
from workshop_lib.exercises import learners_log
from workshop_lib.machine import catalogue
from workshop_lib.notebook import figures, palette
from workshop_lib.notebook.widgets import Column, answers_while_busy, has_widgets, leave, size

MEASURED = figures.Look(palette.BLUE, "")
GUESS = figures.Look(palette.YELLOW, "//")
GUESS_AGAIN = "Guess again"
STOPPED = "nothing: stopped before it was measured"
NUMBERS = "application/vnd.workshop.prediction+json"  # what the book makes controls of


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
        """Make `value` the guess. A class's board shows the first guess that was logged."""
        self.value = float(value)
        self._keep()

    def _keep(self, measured: float | None = None) -> None:
        if self.value is not None:
            learners_log.keep(learners_log.Prediction(self.question, self.unit, self.value, measured))

    def compare(self, measured: float | Iterable[float] | None, emulated_on: str = "") -> figures.RecordFigure:
        """A figure of the guess and the measurement.

        Of several measurements, it shows the median, the lowest and the highest. `measured` is None or nan, or has no
        numbers, if the run was stopped before there was anything to measure; the figure then says so. emulated_on: the
        machine on which the value was emulated, if it wasn't measured.
        """
        given = list(measured) if isinstance(measured, Iterable) else [measured]
        values = [float(value) for value in given if value is not None and not math.isnan(value)]
        middle = statistics.median(values) if values else None
        self._keep(middle)
        name = f"emulated on\n{catalogue.label(emulated_on)}" if emulated_on else "measured"
        rows = [(name, 0.0, MEASURED, (0.0, 0.0), STOPPED)]
        if middle is not None:
            rows = [(name, middle, MEASURED, (min(values), max(values)), self._with_unit(middle))]
        if self.value is not None:
            rows.append(("your guess", self.value, GUESS, (self.value, self.value), self._with_unit(self.value)))
        longest = max(self.high, *(max(value, high) for _, value, _, (_, high), _ in rows))
        figure = self._draw(rows, longest)
        figure.numbers = {
            NUMBERS: {
                **self._numbers(),
                "measured": middle,
                "spread": [min(values), max(values)] if len(values) > 1 else None,
                "text": rows[0][-1],
            }
        }
        return figure

    def _numbers(self) -> dict[str, Any]:
        return {"question": self.question, "low": self.low, "high": self.high, "unit": self.unit}

    @figures.styled
    def _draw(self, rows: list[tuple], longest: float) -> figures.RecordFigure:
        caption = "no guess was made" if self.value is None else ""
        height = 1.3 + 0.5 * len(rows) + 0.3 * (len(self.question) // 60)
        figure, axes = figures.new_figure(self.question, caption, size_inches=(9, height))
        for at, (_, value, look, (low, high), text) in enumerate(rows):
            figures.draw_bar(axes, at, 0, value, look, 0.62)
            if high > low:
                bars = [[max(value - low, 0)], [max(high - value, 0)]]
                axes.errorbar(value, at, xerr=bars, fmt="none", ecolor=palette.INK)
            figures.write_beside(axes, max(value, high, 0), at, text)  # beside a bar to the left, too
        axes.set_xlim(min(0, self.low), longest)  # the longest bar ends the axis; its number stands to the right
        figures.name_rows(axes, (row[0] for row in rows))
        axes.set_xlabel(self.unit)
        return figure

    def _with_unit(self, value: float) -> str:
        return f"{formatted(value)} {self.unit}".strip()

    def _range(self) -> str:
        return f"{formatted(self.low)} to {formatted(self.high)} {self.unit}".strip()

    def _ipython_display_(self) -> None:
        if has_widgets():
            return self._show_widget()
        text = self._in_words()
        if get_ipython():
            display({"text/plain": text, NUMBERS: self._numbers()}, raw=True)
        else:
            print(text)

    def _in_words(self) -> str:
        return f"Prediction: {self.question} ({self._range()})"

    def _show_widget(self) -> None:
        """Show a slider at its lowest end, which the learner must move before committing: it suggests no guess.

        What they committed stays as plain HTML, too, so it is still there when the notebook is opened again.
        """
        question = f"<b>Your prediction:</b> {html.escape(f'{self.question} ({self._range()})')}"
        step = 10 ** math.floor(math.log10((self.high - self.low) / 50))
        digits = max(0, -math.floor(math.log10(step)))
        shape = {"min": self.low, "max": self.high, "step": step}
        slider = widgets.FloatSlider(self.low, **shape, readout_format=f".{digits}f")
        slider.continuous_update = False  # otherwise the slider's last message could arrive after the button's
        slider.layout.width = size(36)
        slider.add_class("workshop-unset")
        slider.add_class("workshop-guess")
        unit = widgets.HTML(html.escape(self.unit))
        button = widgets.Button()
        button.add_class("workshop-commit")
        asked = widgets.HTML()
        display(Column([asked, widgets.HBox([slider, unit, button])], self._in_words()))
        below = display(HTML(""), display_id=True)

        def ask() -> None:
            asked.value = question
            slider.layout.display = unit.layout.display = None
            button.description = "Commit"
            button.icon = "lock"
            button.tooltip = "Move the slider first"
            button.disabled = True

        def move(_) -> None:
            button.disabled = False
            button.tooltip = ""
            slider.remove_class("workshop-unset")

        def press(_) -> None:
            if button.description == GUESS_AGAIN:
                ask()
            elif not slider.disabled:
                self.commit(slider.value)
                slider.disabled = True
                button.description = "Committed ✓"  # not disabled, because a disabled button loses the keyboard's focus
                button.icon = ""
                leave(below, self._committed(question, slider.value))

        slider.observe(move, "value")
        button.on_click(press)
        for widget in (slider, button):
            answers_while_busy(widget)
        if self.value is None:
            ask()
            return
        asked.value = self._committed(question, self.value)
        slider.layout.display = unit.layout.display = "none"
        button.description = GUESS_AGAIN
        button.icon = "undo"
        button.tooltip = "A class sees only your first guess"
        leave(below, asked.value)

    def _committed(self, question: str, value: float) -> str:
        return f"{question}<br><b>{html.escape(self._with_unit(value))}</b> (committed)"


def predict(question: str, low: float, high: float, unit: str = "") -> Question:
    """Ask for a guess between low and high. Call it in the last line of a cell, and `compare` the result later.

    If the cell runs again after its guess was committed, this returns the same question, still with that guess: with
    the focus on "Committed", Shift+Enter runs the cell again on the way to the next one. There is then a button to
    guess again.
    """
    asked = Question(question, low, high, unit)
    shell = get_ipython()
    for known in list(shell.user_ns.values()) if shell else ():
        if isinstance(known, Question) and known.value is not None and known._numbers() == asked._numbers():
            return known
    return asked


def formatted(value: float) -> str:
    """A number with three significant digits, or as a whole number from 1,000 on."""
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
