"""The figures of 08b_where_the_time_goes: bindings and threads, what runs beside a collective, and the roofline."""

from collections.abc import Mapping, Sequence
from os import PathLike

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from workshop_lib.errors import InputError
from workshop_lib.notebook import figures, palette

from lessons.where_the_time_goes import operations
from lessons.where_the_time_goes.flops import Layer, Limits

OPERATION_LOOKS = {
    "forward, and the update": figures.Look(palette.LIGHT_BLUE, ""),
    "backward": figures.Look(palette.BLUE, ""),
    "messages": figures.Look(palette.YELLOW, "//"),
}
CORES = 2  # drawn in each square of `bound_or_free`


@figures.styled
def bound_or_free(speeds: pd.DataFrame | None = None) -> figures.RecordFigure:
    """A figure of one rank on two cores: bound or free, with one or two threads.

    speeds: what bound_jobs.measure returns. With it, each square also shows the rank's samples per second, and how much
    faster two free ranks with one thread each seem to be next to it.
    """
    figure, grid = figures.new_figure(rows=2, columns=2, size_inches=(11, 4.6))
    for row, bound in enumerate((True, False)):
        for column, threads in enumerate((1, 2)):
            axes = grid[row, column]
            axes.axis("off")
            axes.set(xlim=(0, 4), ylim=(0, 2))
            where = "bound to one core" if bound else "free"
            axes.set_title(f"{where}, {'one thread' if threads == 1 else 'two threads'}")
            _draw_cores(axes, bound, threads)
            axes.text(2.15, 1, _in_words(speeds, bound, threads), va="center", fontsize=figures.SMALL + 1)
    return figure


def _draw_cores(axes: Axes, bound: bool, threads: int) -> None:
    """Draw the cores, with a circle for each thread on the core where it computes."""
    for core in range(CORES):
        allowed = core == 0 or not bound
        look = {"facecolor": palette.TINTS[0] if allowed else palette.PAPER, "edgecolor": palette.GRAY}
        axes.add_patch(FancyBboxPatch((0.1 + core, 0.45), 0.8, 1.1, boxstyle="round,pad=0.02", **look))
        axes.text(0.5 + core, 0.2, f"core {core}", ha="center", va="center", color=palette.GRAY, fontsize=figures.SMALL)
    for thread in range(threads):
        core = 0 if bound else thread
        crowded = bound and threads > 1
        x = 0.5 + core + ((thread - 0.5) * 0.36 if crowded else 0)
        color = palette.VERMILION if crowded else palette.BLUE
        axes.plot(x, 1, marker="o", markersize=15, color=color, linestyle="")


def _in_words(speeds: pd.DataFrame | None, bound: bool, threads: int) -> str:
    """What stands beside the cores of a square: what happens there, or what was measured."""
    if speeds is None:
        if threads == 1:
            return "One thread computes."
        return "Two threads take turns." if bound else "Two threads compute."
    table = speeds.set_index(["ranks", "bound", "threads"])
    if (1, bound, threads) not in table.index:
        return "not measured"
    alone = table.loc[1, bound, threads]
    factor = table.loc[2, False, 1]["samples_per_s"] / alone["samples_per_s"]
    lines = [f"{alone['samples_per_s']:,.0f} samples/s"]
    if alone["slowest"] < alone["fastest"]:
        lines.append(f"({alone['slowest']:,.0f} to {alone['fastest']:,.0f})")
    lines.append(f"2 ranks seem {factor:.1f} times as fast")
    return "\n".join(lines)


@figures.styled
def beside_messages(traces: Mapping[str, str | PathLike]) -> figures.RecordFigure:
    """Draw what the main thread computes, and when messages travel, for one step per panel on a common time axis.

    `traces` maps each panel's title to a file that the profiler wrote. Raises InputError if there are none, or if one
    of them has no step.
    """
    panels = {title: operations.read(path) for title, path in traces.items()}
    figure, every = figures.stacked(dict.fromkeys(panels, 2), "milliseconds since the step began")
    for axes, step in zip(every, panels.values(), strict=True):
        pieces = [
            (0, "forward, and the update", step.forward_ms),
            (0, "backward", step.backward_ms),
            (1, "messages", step.messages_ms),
        ]
        for row, label, spans in pieces:
            for start, end in spans:
                figures.draw_bar(axes, row, start, end - start, OPERATION_LOOKS[label], label=label)
        exposed = f"{step.exposed_ms():.1f} of {step.message_ms():.1f} ms exposed"
        figures.write_beside(axes, step.end_ms, 1, exposed, weight="bold")
        axes.set_xlim(0, 1.35 * max(each.end_ms for each in panels.values()))
        figures.name_rows(axes, ("computing", "messages"))
    return figure


@figures.styled
def roofline(limits: Limits, layers: Sequence[Layer]) -> figures.RecordFigure:
    """Draw each layer's rate [Gflop/s] against its arithmetic intensity [flop/byte], under this machine's roof.

    Raises InputError if there are no layers.
    """
    if not layers:
        raise InputError("there are no layers to draw; give those of at least one network.")
    caption = (
        f"one process, fp32, forward; memory {limits.bytes_per_s / 1e9:.1f} GB/s, "
        f"matrix products {limits.flops_per_s / 1e9:.0f} Gflop/s, both measured"
    )
    figure, axes = figures.new_figure("What bounds each layer", caption)
    intensity = np.array([layer.flops / layer.moved_bytes for layer in layers])
    rate = np.array([layer.flops / layer.seconds for layer in layers]) / 1e9
    for network in dict.fromkeys(layer.network for layer in layers):
        mine = [layer.network == network for layer in layers]
        axes.plot(intensity[mine], rate[mine], linestyle="", markersize=10, zorder=3, label=network)
    for number, (layer, x, y) in enumerate(zip(layers, intensity, rate, strict=True)):
        offset = (4, -20 if number % 2 else 10)  # labels of neighboring layers alternate above and below
        axes.annotate(layer.layer, (x, y), offset, textcoords="offset points", fontsize=figures.SMALL)
    ridge = limits.flops_per_s / limits.bytes_per_s
    ends = np.array([min(*intensity, ridge) / 3, ridge, max(*intensity, ridge) * 4])
    roof = np.minimum(ends * limits.bytes_per_s, limits.flops_per_s) / 1e9
    solid = {"color": palette.INK, "linestyle": "-", "marker": "", "linewidth": 2.5}
    axes.plot(ends, roof, **solid, label="roof: what memory and arithmetic allow")
    axes.axvline(ridge, **figures.LEVEL)
    low = min(*rate, roof[0]) / 2
    axes.text(ridge / 1.08, low * 1.15, "waits for memory", ha="right", color=palette.GRAY)
    axes.text(ridge * 1.08, low * 1.15, "waits for arithmetic", color=palette.GRAY)
    axes.set(xscale="log", yscale="log", xlim=(ends[0], ends[-1]), ylim=(low, 1.7 * max(*rate, roof[-1])))
    axes.set(xlabel="arithmetic intensity: floating-point operations per byte moved", ylabel="Gflop/s")
    figures.log_ticks(axes.xaxis)
    figures.log_ticks(axes.yaxis)
    return figure
