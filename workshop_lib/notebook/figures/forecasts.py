"""Figures of what was computed and not measured: a forecast for more devices, and the memory of a GPU."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from workshop_lib.errors import InputError
from workshop_lib.notebook import figures
from workshop_lib.scaling.forecast import Point, outgrows_learning, takes_over
from workshop_lib.scaling.report import UNITS_S, answer
from workshop_lib.scaling.zero_memory import GIB, Plan, StageMemory

MEMORY_LOOKS = {
    "parameters": figures.Look(figures.BLUE, ""),
    "gradients": figures.Look(figures.VERMILION, "//"),
    "optimizer": figures.Look(figures.GREEN, "||"),
    "activations": figures.Look(figures.PURPLE, "xx"),
}
STAGES = ("stage 0 (DDP)", "stage 1", "stage 2", "stage 3 (FSDP)")
LONGEST = 2.2  # of the GPU's memory, or of the shortest bar: longer ones are cut, so that it stays readable
SPEED, LEARNING, BOTH = (figures.Style.number(index) for index in range(3))


def draw_forecast(points: Sequence[Point], conditions: str = "") -> figures.RecordFigure:
    """Efficiency (left), and the time to the model's target or, if it has none, the throughput (right).

    `conditions` go under the title, which is the answer. Raises InputError without points.
    """
    if not points:
        raise InputError("no points to draw: give at least one number of devices.")
    # Low enough that in a notebook the legend is on the screen together with the controls above.
    figure, top = figures.answer_figure(answer(points), conditions, height_inches=5.2)
    left, right = figure.subplots(1, 2)
    handles = [*_draw_efficiency(left, points), *_draw_outcome(right, points)]
    places = {
        "communication takes longer than computing": (takes_over(points), (0, (1, 1))),
        "the global batch is above the critical one": (outgrows_learning(points), (0, (7, 3))),
    }
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("devices")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        marks = [
            axes.axvline(devices, color="black", linestyle=line, linewidth=1.8, label=name)
            for name, (devices, line) in places.items()
            if devices
        ]
    figures.draw_legend(figure, handles + marks)
    figure.subplots_adjust(top=top - 0.03)
    return figure


def _draw_efficiency(axes: Axes, points: Sequence[Point]) -> list[Artist]:
    table = pd.DataFrame(points).set_index("devices")
    work, share = table["efficiency"] * table["step_s"], {"color": SPEED.colour, "alpha": 0.22, "linewidth": 0}
    band = axes.fill_between(table.index, work / table["most_s"], work / table["least_s"], **share)
    band.set_label("range: has nine of ten published points")
    handles = [_line(axes, table["efficiency"], SPEED, "speed: forecast")]
    if points[0].learning:
        useful = table["learning"].fillna(0.0)
        handles.append(_line(axes, useful, LEARNING, "learning: samples that a small batch needs too"))
        handles.append(_line(axes, useful * table["efficiency"], BOTH, "both: what a device contributes"))
    axes.set(ylim=(0, 1.08), ylabel="efficiency")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    return [*handles, band]


def _draw_outcome(axes: Axes, points: Sequence[Point]) -> list[Artist]:
    """The time to the target, or the throughput without one, and what perfect scaling would make of it."""
    table = pd.DataFrame(points).set_index("devices")
    growth = table.index / table.index[0]
    if first_s := points[0].time_to_target_s:
        large_enough = (unit for unit in UNITS_S if first_s >= 10 * UNITS_S[unit])
        unit = max(large_enough, key=UNITS_S.__getitem__, default="s")
        values, label, style, growth = (
            table["time_to_target_s"] / UNITS_S[unit],
            f"time to the target ({unit})",
            BOTH,
            1 / growth,
        )
    else:
        values, label, style = table["samples_per_s"], "samples/s", SPEED
    _line(axes, values, style)
    axes.set(yscale="log", ylabel=label)
    perfect = figures.PERFECT | {"linewidth": 2, "label": "perfect scaling of the first point"}
    return axes.plot(table.index, values.iloc[0] * growth, **perfect)


def _line(axes: Axes, values: pd.Series, style: figures.Style, name: str = "") -> Line2D:
    axes.plot(values.index, values, marker=style.marker, markersize=7, **style.curve)
    return figures.handle_of(name, style)


def beside_published(fitted: pd.DataFrame, held_out: pd.DataFrame) -> figures.RecordFigure:
    """Published against forecast efficiencies, from rows of `scaling.published.beside_forecast`: those that the model
    was fitted to, and those held out. Bars are the range of the forecast; on the line both are the same."""
    inside, points = (int(of) for of in (held_out["inside"].sum(), len(held_out)))
    error = held_out["difference_points"].abs().mean()
    title = f"Held out: {error:.1f} percentage points off in the mean, {inside} of {points} points in the range"
    figure = figures.new_figure(title, "efficiencies in published tables of others; bars: the range of the forecast")
    axes, handles = figure.subplots(), []
    for number, (name, rows) in enumerate((("used in the fit", fitted), ("held out", held_out))):
        style = figures.Style.number(number)
        forecast, low, high = (100 * rows[column] for column in ("forecast", "low", "high"))
        bars = figures.spread(forecast, low, high)
        figures.draw_points(axes, forecast, 100 * rows["published"], bars, style, hollow=False, across=True)
        handles.append(figures.handle_of(name, style, line=False))
    axes.plot([0, 100], [0, 100], **figures.PERFECT)
    axes.set(xlim=(15, 104), ylim=(40, 104), xlabel="forecast efficiency (%)", ylabel="published efficiency (%)")
    figures.draw_legend(figure, handles, [figures.entry("forecast = published", **figures.PERFECT)])
    return figure


def memory_answer(plan: Plan) -> str:
    """Whether it fits, from which stage on, or what would be needed, as one sentence."""
    gpu = f"{_number(plan.gpu_bytes)} GiB"
    if plan.first_fit is not None:
        at = plan.stages[plan.first_fit]
        start = ("at every stage, even without ZeRO", "from stage 1 on", "from stage 2 on", "at stage 3")
        host = f", and {size(at.host_bytes)} of host memory for each" if at.host_bytes else ""
        return f"It fits {start[at.stage]}: {size(at.total_gpu_bytes).removesuffix(' GiB')} of {gpu} a GPU{host}."
    if plan.ranks_needed:
        gpus = "1 GPU" if plan.ranks == 1 else f"{plan.ranks:,} GPUs"
        return f"It does not fit on {gpus}; with stage 3 it would from {plan.ranks_needed:,} GPUs on."
    activations = size(plan.stages[0].gpu_bytes["activations"])
    return (
        f"It fits on no number of GPUs: the activations, which no stage divides, take {activations} alone, "
        f"and {_number(plan.usable_bytes)} of {gpu} are usable."
    )


def draw_memory(plan: Plan, conditions: str = "") -> figures.RecordFigure:
    """A bar per stage, of what it holds on a GPU, beside the GPU's memory; `conditions` go under the title.

    Bars of more than LONGEST times the GPU's memory and the shortest bar are cut; their label has the whole.
    """
    figure, top = figures.answer_figure(memory_answer(plan), conditions, height_inches=5.6)
    axes = figure.add_axes((0.145, 0.225, 0.835, top - 0.04 - 0.225))
    gpu, totals = plan.gpu_bytes / GIB, [at.total_gpu_bytes / GIB for at in plan.stages]
    cut = LONGEST * max(gpu, min(totals))
    end = 1.32 * max(gpu, min(cut, max(totals)))  # room for the labels
    for at in plan.stages:
        _stage(axes, at, cut, end)
    whole = axes.axvline(gpu, color="black", linewidth=2.5, label=f"the GPU: {_number(plan.gpu_bytes)} GiB")
    usable = axes.axvline(plan.usable_bytes / GIB, color="black", linewidth=1.5, linestyle="--")
    reserve = 1 - plan.usable_bytes / plan.gpu_bytes
    usable.set_label(f"less {reserve:.0%} reserve: {_number(plan.usable_bytes)} GiB")
    axes.set_xlim(0, end)
    figures.name_rows(axes, STAGES)
    axes.set_xlabel("memory of one GPU (GiB)", fontsize=figures.FONT_SIZE)
    figures.bare(axes)
    counted = {kind: look for kind, look in MEMORY_LOOKS.items() if any(at.gpu_bytes[kind] for at in plan.stages)}
    tight = {"columnspacing": 1.3, "handletextpad": 0.5, "frameon": False, "fontsize": figures.FONT_SIZE}
    figure.legend(handles=[*figures.patches(counted), whole, usable], loc="lower center", ncols=6, **tight)
    return figure


def _stage(axes: Axes, at: StageMemory, cut: float, end: float) -> None:
    left, total = 0.0, at.total_gpu_bytes / GIB
    for kind, look in MEMORY_LOOKS.items():
        shown = max(0.0, min(at.gpu_bytes[kind] / GIB, cut - left))
        figures.draw_bar(axes, at.stage, left, shown, look, 0.66)
        if shown > figures.ROOM * end:
            figures.number_bar(axes, at.stage, left, shown, _number(at.gpu_bytes[kind]), zorder=4)
        left += shown
    text = f"{'… ' * (total > cut)}{size(at.total_gpu_bytes)}, {'fits' if at.fits else 'does not fit'}"
    weight = "bold" if at.fits else "normal"
    beside = {"va": "center", "fontsize": figures.FONT_SIZE, "bbox": figures.ON_WHITE, "zorder": 4, "weight": weight}
    axes.annotate(text, (min(total, cut), at.stage), (7, 0), textcoords="offset points", **beside)


def size(number_of_bytes: float) -> str:
    """In GiB, or what is less than 0.1 GiB in MiB."""
    if number_of_bytes < 0.1 * GIB:
        return f"{number_of_bytes / 2**20:.3g} MiB"
    return f"{_number(number_of_bytes)} GiB"


def _number(number_of_bytes: float) -> str:
    gib = number_of_bytes / GIB
    if gib >= 1e9:
        return f"{gib:.1e}"
    return f"{gib:,.0f}" if gib >= 100 or gib == round(gib) else f"{gib:.3g}"
