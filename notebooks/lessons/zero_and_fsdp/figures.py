"""Draw which rank holds what of a model's states, and whether it fits a GPU, for 06_zero_and_fsdp and 06b_deepspeed."""

import itertools
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from workshop_lib.notebook import figures, palette
from workshop_lib.notebook.figures import RecordFigure
from workshop_lib.training import KINDS

from lessons.ddp.figures import BORDER
from lessons.zero_and_fsdp.by_hand import LayerSpan, TrainingCost
from lessons.zero_and_fsdp.zero_memory import GIB, RECIPES, MemoryPlan, StageMemory, state_bytes

MEMORY_LOOKS = {
    "parameters": figures.Look(palette.BLUE, ""),
    "gradients": figures.Look(palette.VERMILION, "//"),
    "optimizer": figures.Look(palette.GREEN, "||"),
    "activations": figures.Look(palette.PURPLE, "xx"),
}
GATHER = figures.Look(palette.YELLOW, "//")
COMPUTE = figures.Look(palette.BLUE, "")
REDUCE = figures.Look(palette.GREEN, "||")
IN_MEMORY = figures.Look(palette.TINTS[6], "")
STAGES = ("stage 0 (DDP)", "stage 1", "stage 2", "stage 3 (FSDP)")
LONGEST = 2.2  # the longest bar, in multiples of the GPU's memory or the shortest bar, whichever is larger


def memory_answer(plan: MemoryPlan) -> str:
    """One sentence on whether the model fits: from which stage on, or otherwise how many GPUs it would need."""
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


@figures.styled
def draw_memory(plan: MemoryPlan, conditions: str = "") -> figures.RecordFigure:
    """Draw what each stage holds on a GPU, as one bar per stage, with the GPU's memory as a line.

    conditions: the text under the title. Bars longer than LONGEST times both the GPU's memory and the shortest bar are
    cut, but their labels give the whole size.
    """
    figure, axes = figures.new_figure(memory_answer(plan), conditions, size_inches=(12, 5.6))
    gpu = plan.gpu_bytes / GIB
    totals = [at.total_gpu_bytes / GIB for at in plan.stages]
    cut = LONGEST * max(gpu, min(totals))
    end = 1.32 * max(gpu, min(cut, max(totals)))  # room for the labels
    for at in plan.stages:
        _stage(axes, at, cut, end)
    axes.axvline(gpu, color=palette.INK, linewidth=2.5, label=f"the GPU: {_number(plan.gpu_bytes)} GiB")
    reserve = f"less {1 - plan.usable_bytes / plan.gpu_bytes:.0%} reserve: {_number(plan.usable_bytes)} GiB"
    axes.axvline(plan.usable_bytes / GIB, color=palette.INK, linewidth=1.5, linestyle="--", label=reserve)
    axes.set(xlim=(0, end), xlabel="memory of one GPU (GiB)")
    figures.name_rows(axes, STAGES)
    return figure


def _stage(axes: Axes, at: StageMemory, cut: float, end: float) -> None:
    left = 0.0
    total = at.total_gpu_bytes / GIB
    for kind, look in MEMORY_LOOKS.items():
        shown = max(0.0, min(at.gpu_bytes[kind] / GIB, cut - left))
        label = kind if at.gpu_bytes[kind] else ""
        figures.draw_bar(axes, at.stage, left, shown, look, 0.66, label)
        if shown > figures.ROOM * end:
            figures.number_bar(axes, at.stage, left, shown, _number(at.gpu_bytes[kind]), zorder=4)
        left += shown
    text = f"{'… ' if total > cut else ''}{size(at.total_gpu_bytes)}, {'fits' if at.fits else 'does not fit'}"
    label_look = {"bbox": figures.ON_PAPER, "zorder": 4, "weight": "bold" if at.fits else "normal"}
    figures.write_beside(axes, min(total, cut), at.stage, text, **label_look)


def size(number_of_bytes: float) -> str:
    """A number of bytes as text in GiB, or in MiB if it is less than 0.1 GiB."""
    if number_of_bytes < 0.1 * GIB:
        return f"{number_of_bytes / 2**20:.3g} MiB"
    return f"{_number(number_of_bytes)} GiB"


def _number(number_of_bytes: float) -> str:
    gib = number_of_bytes / GIB
    return f"{gib:,.0f}" if gib >= 100 or gib == round(gib) else f"{gib:.3g}"


def stages(ranks: int) -> RecordFigure:
    """Draw what each of these ranks holds in stages 0 to 3, with Adam in fp32."""
    parameters = 10**9  # large enough that rounding up doesn't show
    recipe = RECIPES["fp32, Adam"]
    held = {f"stage {stage}": [state_bytes(parameters, ranks, stage, **recipe)] * ranks for stage in range(4)}
    return zero(held, parameters)


def measured(one_process: Mapping[str, float], costs: Sequence[Mapping[str, TrainingCost]]) -> RecordFigure:
    """Draw what one process holds, and what each rank holds. costs[rank][title]: what `by_hand.train` returned."""
    held: dict[str, list] = {"one process": [one_process]}
    for title in costs[0]:
        held[title] = [of_rank[title].held_bytes for of_rank in costs]
    parameters = next(iter(costs[0].values())).parameters
    return zero(held, parameters)


@figures.styled
def zero(held: Mapping[str, Sequence[Mapping[str, float]]], parameters: int) -> RecordFigure:
    """Draw what each rank holds of a model's states, in bytes per parameter: one panel per title, one bar per rank.

    held[title][rank]: bytes by KINDS. parameters: how many parameters the model has. A dotted frame shows the whole of
    a kind, that is, the most that any rank holds of it. A rank's share is drawn where it lies in the whole, so the bars
    of a panel show who holds what.
    """
    whole = {kind: max(rank[kind] for ranks in held.values() for rank in ranks) / parameters for kind in KINDS}
    titles = []
    for title, ranks in held.items():
        most = max(sum(states.values()) for states in ranks)
        titles.append(f"{title}\n{most / parameters:.3g} bytes")
    figure, panels = figures.panels("", "", titles, "rank", "bytes per parameter")
    for axes, ranks in zip(panels, held.values(), strict=True):
        for rank, states in enumerate(ranks):
            place = rank / (len(ranks) - 1) if len(ranks) > 1 else 0.0
            _stack(axes, rank, place, {kind: states[kind] / parameters for kind in KINDS}, whole)
        axes.set_xticks(range(max(len(ranks) for ranks in held.values())))
        axes.grid(visible=False, axis="x")
    return figure


def _stack(axes: Axes, rank: int, place: float, states: Mapping[str, float], whole: Mapping[str, float]) -> None:
    """Draw one rank's bar: for each kind, a frame for the whole, and in it the rank's share.

    place: where the share lies in the frame, from 0 (at the bottom) to 1 (at the top).
    """
    bottom = 0.0
    for kind in KINDS:
        color, hatch = MEMORY_LOOKS[kind]
        start = bottom + place * (whole[kind] - states[kind])
        axes.bar(rank, states[kind], 0.8, start, color=color, hatch=hatch, label=kind)
        axes.add_patch(Rectangle((rank - 0.4, bottom), 0.8, whole[kind], fill=False, ls=":", ec=palette.GRAY, lw=1))
        bottom += whole[kind]


@figures.styled
def over_time(cost: TrainingCost) -> RecordFigure:
    """Draw one step of stage 3 on one rank: when it gathers, computes with and drops each layer, and what is in memory.

    cost: what `by_hand.train` returned for a class with `gather` and `drop`. A layer computes from the end of a
    `gather` to the start of the next call. Raises InputError if there are no such calls to draw.
    """
    figures.require_data(cost.spans)
    layers = len(cost.spans[0].alive_bytes)
    figure, (rows, memory) = figures.new_figure(
        rows=2, size_inches=(12, 3.8 + 0.6 * layers), sharex=True, height_ratios=[layers, 0.6 * layers]
    )
    for layer in range(layers):
        _draw_layer(rows, layer, [span for span in cost.spans if span.layer == layer])
    backward_s = next(b.start_s for a, b in itertools.pairwise(cost.spans) if a.call == "drop" and a.layer == b.layer)
    for axes in (rows, memory):
        axes.axvline(1e3 * backward_s, **BORDER, linewidth=1.5, label="the backward pass begins")
    figures.name_rows(rows, [f"layer {number}" for number in range(1, layers + 1)])
    megabytes = [0.0, *(sum(span.alive_bytes) / 1e6 for span in cost.spans)]
    moments_ms = [0.0, *(1e3 * span.end_s for span in cost.spans)]
    whole = 4 * cost.parameters / 1e6
    memory.fill_between(moments_ms, megabytes, step="post", color=IN_MEMORY.color, linewidth=0)
    memory.step(moments_ms, megabytes, where="post", color=palette.INK, marker="")
    memory.axhline(whole, **figures.LEVEL | {"color": palette.INK, "linewidth": 2})
    figures.write_beside(memory, 0, 0.9 * whole, f"all layers: {whole:.1f} MB", bbox=figures.ON_PAPER)
    memory.set(xlim=(0, 1.01 * moments_ms[-1]), ylim=(0, 1.15 * whole), ylabel="in memory (MB)")
    memory.set_xlabel("milliseconds since the step began")
    figure.in_words = (
        f"One step of stage 3 over time. The forward pass gathers, computes with and drops layers 1 to {layers} in "
        f"turn. The backward pass does so from layer {layers} to 1, and reduces each layer's gradients. At most "
        f"{max(megabytes):.1f} of {whole:.1f} MB of weights are in memory at once."
    )
    return figure


def _draw_layer(axes: Axes, layer: int, spans: Sequence[LayerSpan]) -> None:
    gathered_ms = 0.0
    for span in spans:  # the background first
        end_ms = 1e3 * span.end_s
        if span.call == "gather":
            gathered_ms = end_ms
        elif span.call == "drop":
            figures.draw_bar(axes, layer, gathered_ms, end_ms - gathered_ms, IN_MEMORY, 0.98, "whole weights in memory")
            axes.vlines(end_ms, layer - 0.49, layer + 0.49, color=palette.INK, linewidth=3, label="drop")
    for span, following in itertools.pairwise(spans):
        start_ms = 1e3 * span.start_s
        end_ms = 1e3 * span.end_s
        if span.call == "gather":
            figures.draw_bar(axes, layer, start_ms, end_ms - start_ms, GATHER, label="gather: an allgather")
            figures.draw_bar(axes, layer, end_ms, 1e3 * following.start_s - end_ms, COMPUTE, label="compute")
        elif span.call == "reduce":
            figures.draw_bar(axes, layer, start_ms, end_ms - start_ms, REDUCE, label="reduce-scatter of the gradients")
