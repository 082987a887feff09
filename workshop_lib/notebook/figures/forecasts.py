"""Figures of what was computed and not measured: a forecast for more devices, and the memory of a GPU."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from workshop_lib.errors import InputError
from workshop_lib.notebook.figures import (
    BLUE,
    FONT_SIZE,
    GREEN,
    ON_WHITE,
    PERFECT,
    PURPLE,
    ROOM,
    VERMILION,
    Look,
    RecordFigure,
    Style,
    answer_figure,
    bare,
    draw_bar,
    draw_legend,
    handle_of,
    in_columns,
    patches,
)
from workshop_lib.scaling.forecast import UNITS_S, Point, answer, outgrows_learning, takes_over
from workshop_lib.scaling.zero_memory import GIB, Plan, StageMemory

MEMORY_LOOKS = {
    "parameters": Look(BLUE, ""),
    "gradients": Look(VERMILION, "//"),
    "optimizer": Look(GREEN, "||"),
    "activations": Look(PURPLE, "xx"),
}
STAGES = ("stage 0 (DDP)", "stage 1", "stage 2", "stage 3 (FSDP)")
LONGEST = 2.2  # of the GPU's memory, or of the shortest bar: longer ones are cut, so that it stays readable
SPEED, LEARNING, BOTH = (Style.number(index) for index in range(3))


def draw_forecast(points: Sequence[Point], conditions: str = "") -> RecordFigure:
    """Efficiency on the left, and on the right the time to the model's target, or the throughput if it has
    none.

    `conditions` go under the title, which is the answer. Raises InputError without points.
    """
    if not points:
        raise InputError("no points to draw: give at least one number of devices.")
    figure, top = answer_figure(answer(points), conditions)
    left, right = figure.subplots(1, 2)
    handles = _draw_efficiency(left, points)
    handles += _draw_time(right, points) if points[0].time_to_target_s else _draw_speed(right, points)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("devices")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        handles += _mark(axes, points, first=axes is left)
    draw_legend(figure, *in_columns(handles))
    figure.subplots_adjust(top=top - 0.03)
    return figure


def _draw_efficiency(axes: Axes, points: Sequence[Point]) -> list:
    devices = [point.devices for point in points]
    low, high = (
        [point.efficiency * point.step_s / getattr(point, bound) for point in points] for bound in ("most_s", "least_s")
    )
    shared = {"color": SPEED.colour, "alpha": 0.22, "linewidth": 0, "label": "nothing to everything overlapped"}
    band = axes.fill_between(devices, low, high, **shared)
    lines = {"speed: forecast": ([point.efficiency for point in points], SPEED)}
    if points[0].learning:
        useful = [point.learning or 0.0 for point in points]
        lines["learning: samples that a small batch needs too"] = (useful, LEARNING)
        both = [share * point.efficiency for share, point in zip(useful, points, strict=True)]
        lines["both: what a device contributes"] = (both, BOTH)
    handles = [_line(axes, devices, values, style, name) for name, (values, style) in lines.items()]
    axes.set_ylim(0, 1.08)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_ylabel("efficiency")
    return [*handles, band]


def _draw_time(axes: Axes, points: Sequence[Point]) -> list:
    times_s = [point.time_to_target_s or math.nan for point in points]
    large_enough = (unit for unit in UNITS_S if times_s[0] >= 10 * UNITS_S[unit])
    unit = max(large_enough, key=lambda unit: UNITS_S[unit], default="s")
    devices = [point.devices for point in points]
    to_target = [time_s / UNITS_S[unit] for time_s in times_s]
    ideal = [to_target[0] * devices[0] / n for n in devices]
    _line(axes, devices, to_target, BOTH)
    axes.set_yscale("log")
    axes.set_ylabel(f"time to the target ({unit})")
    return [_perfect(axes, devices, ideal)]


def _draw_speed(axes: Axes, points: Sequence[Point]) -> list:
    devices = [point.devices for point in points]
    speeds = [point.samples_per_s for point in points]
    _line(axes, devices, speeds, SPEED)
    axes.set_yscale("log")
    axes.set_ylabel("samples/s")
    return [_perfect(axes, devices, [speeds[0] / devices[0] * n for n in devices])]


def _line(axes: Axes, x, y, style: Style, name: str = ""):
    look = {"color": style.colour, "marker": style.marker, "linestyle": style.line}
    axes.plot(x, y, **look, linewidth=2, markersize=7)
    return handle_of(name, style)


def _perfect(axes: Axes, x, y):
    return axes.plot(x, y, **PERFECT | {"linewidth": 2}, label="perfect scaling of the first point")[0]


def _mark(axes: Axes, points: Sequence[Point], first: bool) -> list:
    """Vertical lines where communication takes over and the batch outgrows learning; returns their legend
    entries the first time."""
    places = {
        "communication takes longer than computing": (takes_over(points), (0, (1, 1))),
        "the global batch is above the critical one": (outgrows_learning(points), (0, (7, 3))),
    }
    drawn = [
        axes.axvline(devices, color="black", linestyle=line, linewidth=1.8, label=name)
        for name, (devices, line) in places.items()
        if devices
    ]
    return drawn if first else []


def memory_answer(plan: Plan) -> str:
    """Whether it fits, from which stage on, or what would be needed, as one sentence."""
    gpu = f"{_number(plan.gpu_bytes)} GiB"
    if plan.first_fit is not None:
        at = plan.stages[plan.first_fit]
        start = ("at every stage, even without ZeRO", "from stage 1 on", "from stage 2 on", "at stage 3")
        host = f", and {size(at.host_bytes)} of host memory for each" if at.host_bytes else ""
        return f"It fits {start[at.stage]}: {_of(at.total_gpu_bytes, gpu)} a GPU{host}."
    if plan.ranks_needed:
        gpus = "1 GPU" if plan.ranks == 1 else f"{plan.ranks:,} GPUs"
        return f"It does not fit on {gpus}; with stage 3 it would from {plan.ranks_needed:,} GPUs on."
    activations = size(plan.stages[0].gpu_bytes["activations"])
    return (
        f"It fits on no number of GPUs: the activations, which no stage divides, take {activations} alone, "
        f"and {_of(plan.usable_bytes, gpu)} are usable."
    )


def _of(part_bytes: int, whole: str) -> str:
    return f"{size(part_bytes).removesuffix(' GiB')} of {whole}"


def draw_memory(plan: Plan, conditions: str = "") -> RecordFigure:
    """A bar per stage, of what it holds on a GPU, beside the GPU's memory; `conditions` go under the title.

    Bars of more than LONGEST times the GPU's memory and the shortest bar are cut; their label has the whole.
    """
    figure, top = answer_figure(memory_answer(plan), conditions, height_inches=5.6)
    axes = figure.add_axes((0.145, 0.225, 0.835, top - 0.04 - 0.225))
    gpu, usable = plan.gpu_bytes / GIB, plan.usable_bytes / GIB
    totals = [at.total_gpu_bytes / GIB for at in plan.stages]
    cut = LONGEST * max(gpu, min(totals))
    end = 1.32 * max(gpu, min(cut, max(totals)))  # room for the labels
    for at in plan.stages:
        _stage(axes, at, cut, end)
    axes.axvline(gpu, color="black", linewidth=2.5)
    axes.axvline(usable, color="black", linewidth=1.5, linestyle="--")
    axes.set(xlim=(0, end), ylim=(len(STAGES) - 0.5, -0.5))
    axes.set_yticks(range(len(STAGES)), STAGES)
    axes.set_xlabel("memory of one GPU (GiB)", fontsize=FONT_SIZE)
    bare(axes)
    counted = {kind: look for kind, look in MEMORY_LOOKS.items() if any(at.gpu_bytes[kind] for at in plan.stages)}
    usable_label = f"less {1 - plan.usable_bytes / plan.gpu_bytes:.0%} reserve: {_number(plan.usable_bytes)} GiB"
    handles = [
        *patches(counted),
        Line2D([], [], color="black", lw=2.5, label=f"the GPU: {_number(plan.gpu_bytes)} GiB"),
        Line2D([], [], color="black", lw=1.5, ls="--", label=usable_label),
    ]
    tight = {"columnspacing": 1.3, "handletextpad": 0.5, "frameon": False, "fontsize": FONT_SIZE}
    figure.legend(handles=handles, loc="lower center", ncols=6, **tight)
    return figure


def _stage(axes: Axes, at: StageMemory, cut: float, end: float) -> None:
    left, total = 0.0, at.total_gpu_bytes / GIB
    number = {"va": "center", "fontsize": FONT_SIZE, "bbox": ON_WHITE, "zorder": 4}
    for kind, look in MEMORY_LOOKS.items():
        shown = max(0.0, min(at.gpu_bytes[kind] / GIB, cut - left))
        draw_bar(axes, at.stage, left, shown, look, 0.66)
        if shown > ROOM * end:
            axes.text(left + shown / 2, at.stage, _number(at.gpu_bytes[kind]), ha="center", **number)
        left += shown
    text = f"{'… ' * (total > cut)}{size(at.total_gpu_bytes)}, {'fits' if at.fits else 'does not fit'}"
    weight = "bold" if at.fits else "normal"
    place = (min(total, cut), at.stage)
    axes.annotate(text, place, (7, 0), textcoords="offset points", weight=weight, **number)


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
