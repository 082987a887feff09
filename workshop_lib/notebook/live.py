"""Live progress of a run in a notebook: loss, accuracy, throughput, and a button that stops it.

The chart is a few lines of SVG rather than a redrawn figure: the ranks need the cores.
"""

import ipywidgets as widgets
from IPython.display import display

from workshop_lib.ranks.progress import TextView, epoch_line

SHOW_AFTER_S = 0.7
WIDTH, HEIGHT, MARGIN = 340, 130, 42
MAX_POINTS = 300


class LiveView(TextView):
    """Appears when a run trains or takes longer than a moment; its button asks the ranks to stop."""

    def __init__(self, n: int):
        super().__init__(n)
        self.box, self.points, self.epochs = None, [], []

    def output(self, lines: list[str]) -> None:
        for line in lines:
            print(line, flush=True)

    def update(self, data: list[dict], elapsed_s: float, running: list[int]) -> None:
        lead = data[0]
        if self.box is None:
            if not running or ("info" not in lead and elapsed_s < SHOW_AFTER_S):
                return
            self._build(lead.get("info"))
        if "step" in lead:
            self._step(lead["step"])
        self.epochs = lead.get("epochs", self.epochs)
        if self.points:
            self.chart.value = chart(self.points, self.epochs)
        self.status.value = self._status(lead.get("step"), elapsed_s, running)

    def _build(self, info: dict | None) -> None:
        self.info = info
        total = info["epochs"] * info["steps_per_epoch"] if info else 1
        self.bar = widgets.IntProgress(max=total, layout=widgets.Layout(width="320px"))
        self.bar.layout.display = None if info else "none"
        self.button = widgets.Button(description="Stop", icon="stop", button_style="warning")
        self.button.add_class("workshop-stop")
        self.button.on_click(self._stop)
        # The cell keeps the kernel's main loop busy. JupyterLab sends clicks to a subshell beside it;
        # ipykernel would send them on to the loop that made the button, where they would wait.
        self.button.comm._reply_subshell_for = lambda data, subshell_id: subshell_id
        self.status, self.chart = widgets.HTML(), widgets.HTML()
        self.box = widgets.VBox([widgets.HBox([self.bar, self.button, self.status]), self.chart])
        display(self.box)

    def _stop(self, button) -> None:
        self.stop_requested = True
        button.disabled, button.description = True, "Stopping"

    def _step(self, step: dict) -> None:
        done = (step["epoch"] - 1) * step["steps_per_epoch"] + step["step"]
        if self.points and done <= self.points[-1][0]:
            return
        self.bar.value = done
        self.points.append((done, step["loss"]))
        if len(self.points) > MAX_POINTS:
            self.points = self.points[::2]

    def _status(self, step: dict | None, elapsed_s: float, running: list[int]) -> str:
        parts = [f"{elapsed_s:.0f} s"]
        if step:
            parts += [f"loss {step['loss']:.3f}", f"{step['samples_per_s']:,.0f} samples/s"]
        if self.epochs:
            parts.append(f"test accuracy {self.epochs[-1]['test_accuracy']:.2%}")
        waiting = len(running)
        parts.append(f"{waiting} of {self.n} ranks running" if waiting else "done")
        return "&ensp;" + " &middot; ".join(parts)

    def close(self) -> None:
        if self.box is not None:
            self.button.layout.display = "none"
            if not self.stop_requested:
                self.bar.value = self.bar.max  # the last step's message may not have come
        for row in self.epochs:
            print(epoch_line(row))


def chart(points: list[tuple[int, float]], epochs: list[dict]) -> str:
    """Two small line charts as SVG: batch loss of rank 0 by step, test accuracy by epoch."""
    accuracy = [(row["epoch"], 100 * row["test_accuracy"]) for row in epochs]
    panels = [_panel("loss of rank 0's batch, by step", points, "#0072B2", 0)]
    panels.append(_panel("test accuracy in %, by epoch", accuracy, "#D55E00", WIDTH + 20))
    size = f'width="{2 * WIDTH + 20}" height="{HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-size="11">{"".join(panels)}</svg>'


def _panel(title: str, points: list, colour: str, left: int) -> str:
    head = f'<text x="{left + MARGIN}" y="12" fill="currentColor">{title}</text>'
    if not points:
        return head
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(ys), max(ys)
    width, height = WIDTH - MARGIN - 8, HEIGHT - 40
    scale_x = width / max(xs[-1] - xs[0], 1)
    scale_y = height / ((high - low) or 1)

    def at(x, y):
        return left + MARGIN + (x - xs[0]) * scale_x, 20 + (high - y) * scale_y

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(x, y) for x, y in points))
    dots = "".join('<circle cx="{:.1f}" cy="{:.1f}" r="3"/>'.format(*at(x, y)) for x, y in points[-1:])
    ticks = "".join(
        f'<text x="{left + MARGIN - 4}" y="{at(0, y)[1] + 4:.1f}" text-anchor="end" '
        f'fill="currentColor">{y:.3g}</text>'
        for y in {low, high}
    )
    ends = "".join(
        f'<text x="{at(x, low)[0]:.1f}" y="{HEIGHT - 6}" text-anchor="middle" '
        f'fill="currentColor">{x}</text>'
        for x in {xs[0], xs[-1]}
    )
    style = f'fill="none" stroke="{colour}" stroke-width="1.5"'
    return f'{head}{ticks}{ends}<polyline points="{line}" {style}/><g fill="{colour}">{dots}</g>'
