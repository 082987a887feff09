"""A notebook's live view of its ranks: it shows their progress and what they display, and can stop them.

Output of several ranks stands side by side, as HTML that stays in the saved notebook.
"""

import base64
import html
import time
import uuid
from collections.abc import Sequence
from typing import Any

import ipywidgets as widgets
from IPython.display import HTML, DisplayHandle, display

from workshop_lib.machine.emulation import session as emulation
from workshop_lib.notebook import charts
from workshop_lib.notebook.training_text import TrainingText
from workshop_lib.notebook.widgets import Column, answers_while_busy, leave, size
from workshop_lib.ranks.call.messages import Displayed
from workshop_lib.ranks.call.output import Row
from workshop_lib.training.progress import SHARES_OF_LAST_S, Progress, epoch_line
from workshop_lib.training.timeline import timeline

SHOW_AFTER_S = 0.7
REDRAW_EVERY_S = 0.35
WORK_SHARE = 0.01  # drawing takes at most this share of one core, because the ranks need the cores
STEPS_SHOWN = 4
SIDE_BY_SIDE = 3  # up to this many ranks; more are stacked, to be opened one by one
IMAGES = ("image/png", "image/jpeg", "image/gif")
COLUMNS = "display: flex; gap: 12px"
COLUMN = "flex: 1 1 0; min-width: 0; overflow-x: auto"
# What stands below a live view until the call ends. A page shows it if it has no kernel that could fill the view.
CUT_OFF = (
    "This page was closed or lost its kernel while the call was running. If the kernel is still busy, the call goes "
    "on, and ■ in the toolbar stops it. If the kernel was restarted, the ranks ended with it: choose Run &gt; Run All "
    "Above Selected Cell, and run this cell again."
)
OVERSUBSCRIBED = "There are more ranks than cores here, so computing includes waiting for a core."


class NotebookView(TrainingText):
    """Shows progress as text, and the ranks' displays side by side, as output that stays in the saved notebook.

    At the end of a training run it leaves the dashboard's charts.
    """

    def __init__(self, n: int, trains: bool = False):
        super().__init__(n, trains)
        self.handles: dict[Row, DisplayHandle] = {}

    def output(self, items: Sequence[str | Row]) -> None:
        lines: list[str | Row] = []
        for item in items:
            if isinstance(item, Row):
                super().output(lines)
                lines = []
                self.show(item)
            else:
                lines.append(item)
        super().output(lines)

    def write(self, text: str) -> None:
        print(text, flush=True)

    def show(self, row: Row) -> None:
        """Show a row. If it is on display already, update it in place."""
        if row in self.handles:
            self.handles[row].update(bundle(row), raw=True)
        else:
            self.handles[row] = display(bundle(row), raw=True, display_id=True)

    def close(self) -> None:
        super().close()
        if self.progress.curve:
            drawn = "".join(_charts(self.progress, f"workshop-{uuid.uuid4().hex}"))
            display({"text/html": drawn, "text/plain": ", ".join(self.progress.figures())}, raw=True)


class Dashboard(NotebookView):
    """A view with a button that asks the ranks to stop, a bar, a line of status, and drawings below them."""

    def __init__(self, n: int, trains: bool = False):
        super().__init__(n, trains)
        self.box: Column | None = None
        self.shown: Any = None  # the DisplayHandle of the box
        self.below: Any = None  # the DisplayHandle of the output that stays in the saved notebook
        self.ended = False  # from then on, the button asks for nothing

    def show_with(self, *drawings: widgets.Widget) -> None:
        """Display the button, the bar and the line of status, with these drawings below them."""
        self.meter = widgets.IntProgress(layout=widgets.Layout(width=size(22), display="none"))
        self.button = widgets.Button(description="Stop", icon="stop", button_style="warning")
        self.button.add_class("workshop-stop")
        self.button.on_click(self._stop)
        answers_while_busy(self.button)
        self.status = widgets.HTML()
        # The button comes first, because the bar beside it appears only once the number of steps is known.
        self.box = Column([widgets.HBox([self.button, self.meter]), self.status, *drawings], "Live view of the ranks")
        self.box.add_class("workshop-dashboard")
        self.shown = display(self.box, display_id=True)
        self.below = display(HTML(""), display_id=True)
        leave(self.below, CUT_OFF)

    def _stop(self, button) -> None:
        if not self.ended:
            self.stop_requested = True
            button.description = "Stopping"  # not disabled, because a disabled button loses the keyboard's focus

    def show_bar(self, done: int, total: int) -> None:
        self.meter.layout.display = None
        self.meter.max = total
        self.meter.value = done

    def leave(self, end: str, status: str, *drawn: str) -> None:
        """End with a word such as "done", and leave this status and these drawings in the saved notebook.

        The button stays, because it may have the focus.
        """
        self.ended = True
        self.button.description = f"{end.capitalize()} ✓" if end in ("stopped", "done") else "Ended"
        self.button.icon = ""
        self.button.button_style = ""
        self.status.value = status
        leave(self.below, "".join(f"<div>{each}</div>" for each in (status, *drawn)))


class LiveView(Dashboard):
    """The view of a call. It appears when the call trains or takes longer than a moment."""

    def __init__(self, n: int, trains: bool = False):
        super().__init__(n, trains)
        self.news = False
        self.next_redraw_s = 0.0
        self.being_written = ""
        self.elapsed_s = 0.0
        self.running = list(range(n))

    def unfinished(self, lines: list[str]) -> None:
        self.being_written = html.escape("\n".join(lines))

    def update(self, data: list[Any], elapsed_s: float, running: list[int]) -> None:
        self.news |= self.progress.take(data)
        self.elapsed_s = elapsed_s
        self.running = running
        self.ended = not running
        if self.box is None:
            if not running or (self.progress.info is None and elapsed_s < SHOW_AFTER_S):
                return
            self._build()
        if running and elapsed_s < self.next_redraw_s:
            return
        began_s = time.thread_time()
        self._redraw()
        spent_s = time.thread_time() - began_s
        self.next_redraw_s = elapsed_s + max(REDRAW_EVERY_S, spent_s / WORK_SHARE)

    def _build(self) -> None:
        self.lines = widgets.HTML()
        self.curves = widgets.HTML()
        self.strips = widgets.HTML()
        if self.trains:  # reserve room: otherwise the page would jump at the first step
            self.curves.value = charts.room(self.n)
        self.show_with(self.lines, self.curves, self.strips)

    def _redraw(self) -> None:
        progress = self.progress
        running = len(self.running)
        self.status.value = self._status(f"{running} of {self.n} ranks running" if running else "done")
        text = self.being_written
        self.lines.value = f'<pre style="line-height: 1.3">{text}</pre>' if text else ""
        if progress.info:
            self.show_bar(progress.done, progress.total)
        if not (progress.curve and self.news):
            return
        self.news = False
        self.curves.value, strips = _charts(progress, f"workshop-{self.strips.model_id}")
        self.strips.value = strips or self.strips.value

    def _status(self, state: str) -> str:
        step = self.progress.step
        parts = [f"{self.elapsed_s:.0f} s"]
        if self.running and not step and (self.trains or self.progress.phase):
            parts.append(self.progress.phase or "starting")
        if step:
            epochs = self.progress.info["epochs"]
            parts.append(f"epoch {step['epoch']} of {epochs}, step {step['step']} of {step['steps_per_epoch']}")
        parts += self.progress.figures()
        if self.progress.epochs:
            parts.append(f"test accuracy {self.progress.epochs[-1]['test_accuracy']:.2%}")
        return " · ".join([*parts, state])

    def _end(self) -> str:
        """How the training ended, in a few words. Ranks that have not finished by now are no longer waited for."""
        step = self.progress.step
        epochs = self.progress.epochs
        if self.stop_requested:
            return "stopped"
        if self.interrupted:
            return "interrupted"
        return "done" if step and epochs and epochs[-1]["epoch"] >= step["epoch"] else "ended by an error"

    def close(self) -> None:
        if self.box is not None:
            self._redraw()
            self._leave(self.box)
        for row in self.progress.epochs:
            print(epoch_line(row, self.progress.emulated))

    def _leave(self, box: Column) -> None:
        """Leave the curves of a training run, and the button that was pressed, with the focus on it."""
        end = self._end()
        self.running = []
        if not self.progress.curve and not self.stop_requested:
            self.shown.update(HTML(""))
            leave(self.below, "")
            box.close()
            return
        self.leave(end, self._status(end), self.curves.value, self.strips.value)


def _charts(progress: Progress, name: str) -> tuple[str, str]:
    """The curves of a training run, and what its ranks did in the last steps ("" before there are any), as SVGs.

    `name` must be unique in the page.
    """
    curves = charts.curves(progress.curve, progress.epochs, progress.step["steps_per_epoch"])
    shown = timeline(progress.trace, last_steps=STEPS_SHOWN)
    if not shown.steps:
        return curves, ""
    note = OVERSUBSCRIBED if progress.info["oversubscribed"] else ""
    if machine := progress.info.get("machine"):
        note = emulation.label(machine)
    return curves, charts.strips(shown, timeline(progress.trace, SHARES_OF_LAST_S), name, note)


def bundle(row: Row) -> dict[str, str]:
    """A row as a MIME bundle: HTML, and plain text for front ends without HTML."""
    texts = {rank: part["data"].get("text/plain", "") for rank, part in sorted(row.parts.items())}
    plain = "\n".join(f"[{rank}] {text}" for rank, text in texts.items())
    return {"text/html": f'<div class="workshop-ranks">{_html(row)}</div>', "text/plain": plain}


def _html(row: Row) -> str:
    parts = [(f"rank {rank}", part_html(part)) for rank, part in sorted(row.parts.items())]
    if len(parts) > 1 and row.is_the_same:
        parts = [(f"the same on all {len(parts)} ranks", parts[0][1])]
    if len(parts) > SIDE_BY_SIDE:
        return "".join(
            f"<details{' open' if number == 0 else ''}><summary>{name}</summary>{shown}</details>"
            for number, (name, shown) in enumerate(parts)
        )
    columns = [f'<div style="{COLUMN}"><b>{name}</b><br>{shown}</div>' for name, shown in parts]
    return f'<div style="{COLUMNS}">{"".join(columns)}</div>'


def part_html(part: Displayed) -> str:
    """The richest representation of what one rank displayed."""
    data = part["data"]
    metadata = part["metadata"]
    for mime in ("text/html", "image/svg+xml"):
        if mime in data:
            return data[mime]
    for mime in IMAGES:
        if mime in data:
            return _image(mime, data[mime], metadata.get(mime, {}))
    if "text/latex" in data:
        return f"<p>{html.escape(data['text/latex'])}</p>"  # the page typesets the formula
    text = data.get("text/markdown", data.get("text/plain", f"({', '.join(data)} cannot be shown for a rank)"))
    return f'<pre style="white-space: pre-wrap">{html.escape(text)}</pre>'


def _image(mime: str, image: Any, metadata: dict) -> str:
    encoded = base64.b64encode(image).decode() if isinstance(image, bytes) else image
    width = f' width="{metadata["width"]}"' if "width" in metadata else ""
    return f'<img alt="plot of a rank" src="data:{mime};base64,{encoded}"{width} style="max-width: 100%; height: auto">'
