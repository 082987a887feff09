"""Predictions: the learner commits to a guess before a run, and sees it beside what was measured."""

import math
import textwrap

from workshop_lib.notebook import figures, has_widgets

MINE, MEASURED = "#E69F00", "#0072B2"


class Prediction:
    """A guess at one number between `low` and `high`.

    Shown as a slider with a button where widgets work, as the bare question elsewhere; nothing waits for
    it. `value` is None until the learner commits.
    """

    def __init__(self, question: str, low: float, high: float, unit: str = ""):
        if not low < high:
            raise ValueError(f"a prediction needs low < high, not {low!r} and {high!r}")
        self.question, self.low, self.high, self.unit = question, low, high, unit
        self.value = None
        self.box = None

    def commit(self, value: float) -> None:
        """Take this as the guess; the first one counts."""
        if self.value is None:
            self.value = float(value)

    def compare(self, measured: float, spread: tuple[float, float] | None = None):
        """A figure of the guess and what was measured; spread: the lowest and highest measurement."""
        rows = [("measured", measured, MEASURED, "", spread)]
        if self.value is not None:
            rows.append(("your guess", self.value, MINE, "//", None))
        question = textwrap.wrap(self.question, 80)
        head, height = 0.1 + 0.27 * len(question), 0.62 + 0.5 * len(rows)  # inches
        figure = figures.RecordFigure(figsize=(9, head + height), facecolor="white")
        axes = figure.add_axes((0.14, 0.62 / (head + height), 0.8, 0.5 * len(rows) / (head + height)))
        for at, (name, value, colour, hatch, bars) in enumerate(rows):
            error = None if bars is None else [[max(value - bars[0], 0)], [max(bars[1] - value, 0)]]
            axes.barh(at, value, 0.62, color=colour, hatch=hatch, edgecolor="white", xerr=error, capsize=5)
            end = max(value, bars[1]) if bars else value
            axes.annotate(
                f"{_number(value)} {self.unit}".strip(), (end, at), (8, 0), textcoords="offset points",
                verticalalignment="center", fontsize=figures.FONT_SIZE,
            )  # fmt: skip
            axes.text(-0.015, at, name, transform=axes.get_yaxis_transform(), horizontalalignment="right",
                      verticalalignment="center", fontsize=figures.FONT_SIZE)  # fmt: skip
        ends = [max(value, bars[1]) if bars else value for _, value, _, _, bars in rows]
        axes.set(xlim=(min(0, self.low), 1.2 * max(self.high, *ends)), yticks=[])
        axes.set_xlabel(self.unit, fontsize=figures.FONT_SIZE - 1)
        axes.spines[["top", "right", "left"]].set_visible(False)
        figure.text(0.02, 0.99, "\n".join(question), fontsize=figures.FONT_SIZE, va="top")
        if self.value is None:
            note = "no guess was made"
            figure.text(0.98, 0.03, note, fontsize=figures.FONT_SIZE - 2, color=figures.GREY, ha="right")
        return figure

    def _ipython_display_(self) -> None:
        if has_widgets():
            return self._show_widget()
        span = f"{_number(self.low)} to {_number(self.high)} {self.unit}".strip()
        print(f"Prediction: {self.question} ({span})")

    def _show_widget(self) -> None:
        import ipywidgets as widgets
        from IPython.display import display

        from workshop_lib.notebook.widgets import answers_while_busy

        step = 10 ** math.floor(math.log10((self.high - self.low) / 50))
        middle = self.low + round((self.high - self.low) / 2 / step) * step
        slider = widgets.FloatSlider(
            value=middle if self.value is None else self.value, min=self.low, max=self.high, step=step,
            description=self.unit, readout_format=f".{max(0, -math.floor(math.log10(step)))}f",
            layout=widgets.Layout(width="420px"), disabled=self.value is not None,
        )  # fmt: skip
        button = widgets.Button(description="Commit", icon="lock", disabled=self.value is not None)
        button.add_class("workshop-commit")

        def commit(_):
            self.commit(slider.value)
            slider.disabled = button.disabled = True
            button.description = "Committed"

        button.on_click(commit)
        for widget in (slider, button):
            answers_while_busy(widget)
        question = widgets.HTML(f"<b>Your prediction:</b> {self.question}")
        display(widgets.VBox([question, widgets.HBox([slider, button])]))


def predict(question: str, low: float, high: float, unit: str = "") -> Prediction:
    """Ask for a guess; show it as the last line of a cell, and `compare` it with the result later."""
    return Prediction(question, low, high, unit)


def _number(value: float) -> str:
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
