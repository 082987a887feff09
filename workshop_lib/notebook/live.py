"""Ranks in a notebook: a live view shows their progress and what they display, and can stop them."""

import html
import time
from collections.abc import Sequence

import ipywidgets as widgets
from IPython.display import DisplayHandle, display

from workshop_lib.notebook import charts, outputs
from workshop_lib.notebook.widgets import answers_while_busy
from workshop_lib.ranks.messages import Published
from workshop_lib.ranks.output import Row
from workshop_lib.ranks.progress import SHARES_OF_LAST_S, TextView, epoch_line
from workshop_lib.ranks.timeline import timeline

SHOW_AFTER_S = 0.7
REDRAW_EVERY_S = 0.35
WORK_SHARE = 0.01  # of one core, at most, for drawing: the ranks need the cores
STEPS_SHOWN = 4
OVERSUBSCRIBED = "There are more ranks than cores here, so computing includes waiting for a core."


class NotebookView(TextView):
    """Progress as text; what ranks display is shown side by side, and stays in the saved notebook."""

    def __init__(self, n: int):
        super().__init__(n)
        self.handles: dict[Row, DisplayHandle] = {}

    def output(self, items: Sequence[str | Row]) -> None:
        for item in items:
            if isinstance(item, str):
                super().output([item])
            else:
                self.show(item)

    def show(self, row: Row) -> None:
        """Show a row, at the place where it was shown before if it has changed."""
        if row in self.handles:
            self.handles[row].update(outputs.bundle(row), raw=True)
        else:
            self.handles[row] = display(outputs.bundle(row), raw=True, display_id=True)


class LiveView(NotebookView):
    """Appears when a run trains or takes longer than a moment; its button asks the ranks to stop."""

    def __init__(self, n: int):
        super().__init__(n)
        self.box: widgets.VBox | None = None
        self.news, self.next_redraw_s, self.being_written = False, 0.0, ""

    def output(self, items: Sequence[str | Row]) -> None:
        for item in items:
            if isinstance(item, str):
                print(item, flush=True)
            else:
                self.show(item)

    def unfinished(self, lines: list[str]) -> None:
        self.being_written = html.escape("\n".join(lines))

    def update(self, data: list[Published], elapsed_s: float, running: list[int]) -> None:
        self.news |= self.progress.take(data)
        if self.box is None:
            if not running or (self.progress.info is None and elapsed_s < SHOW_AFTER_S):
                return
            self._build()
        if running and elapsed_s < self.next_redraw_s:
            return
        began_s = time.thread_time()
        self._redraw(elapsed_s, running)
        spent_s = time.thread_time() - began_s
        self.next_redraw_s = elapsed_s + max(REDRAW_EVERY_S, spent_s / WORK_SHARE)

    def _build(self) -> None:
        self.bar = widgets.IntProgress(layout=widgets.Layout(width="300px", display="none"))
        self.button = widgets.Button(description="Stop", icon="stop", button_style="warning")
        self.button.add_class("workshop-stop")
        self.button.on_click(self._stop)
        answers_while_busy(self.button)
        self.status, self.lines = widgets.HTML(), widgets.HTML()
        wide = widgets.Layout(width="100%")
        self.curves, self.strips = widgets.HTML(layout=wide), widgets.HTML(layout=wide)
        rows = [widgets.HBox([self.bar, self.button]), self.status, self.lines, self.curves, self.strips]
        self.box = widgets.VBox(rows)
        self.box.add_class("workshop-dashboard")
        display(self.box)

    def _stop(self, button) -> None:
        self.stop_requested = True
        button.disabled, button.description = True, "Stopping"

    def _redraw(self, elapsed_s: float, running: list[int]) -> None:
        progress, text = self.progress, self.being_written
        self.lines.value = f'<pre style="line-height: 1.3">{text}</pre>' if text else ""
        self.status.value = " &middot; ".join(self._status(elapsed_s, running))
        if progress.info:
            self.bar.layout.display, self.bar.max, self.bar.value = None, progress.total, progress.done
        if not (progress.curve and self.news):
            return
        self.news = False
        self.curves.value = charts.curves(progress.curve, progress.epochs, progress.step["steps_per_epoch"])
        shown = timeline(progress.trace, last_steps=STEPS_SHOWN)
        if shown.steps:
            note = OVERSUBSCRIBED if progress.info["oversubscribed"] else ""
            recent = timeline(progress.trace, SHARES_OF_LAST_S)
            self.strips.value = charts.strips(shown, recent, f"workshop-{self.strips.model_id}", note)

    def _status(self, elapsed_s: float, running: list[int]) -> list[str]:
        step, parts = self.progress.step, [f"{elapsed_s:.0f} s"]
        if step:
            epochs = self.progress.info["epochs"]
            parts.append(f"epoch {step['epoch']} of {epochs}, step {step['step']} of {step['steps_per_epoch']}")
        parts += self.progress.figures()
        if self.progress.epochs:
            parts.append(f"test accuracy {self.progress.epochs[-1]['test_accuracy']:.2%}")
        waiting = len(running)
        return [*parts, f"{waiting} of {self.n} ranks running" if waiting else "done"]

    def close(self) -> None:
        if self.box is not None:
            self.button.layout.display = "none"
            if not self.stop_requested:
                self.bar.value = self.bar.max  # the last step's message may not have come
        for row in self.progress.epochs:
            print(epoch_line(row))
