"""Does it fit? A calculator of the GPU memory that training needs, stage by stage of ZeRO."""

import textwrap

import ipywidgets as widgets
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from workshop_lib.notebook.answers import Answers
from workshop_lib.notebook.figures import COLOURS, FONT_SIZE, GREY, RecordFigure
from workshop_lib.scaling.zero_memory import GIB, GPUS, RECIPES, Plan, Transformer, activation_bytes, plan

BLUE, VERMILION, GREEN, PURPLE = COLOURS[:4]
LOOKS = {
    "parameters": (BLUE, ""),
    "gradients": (VERMILION, "//"),
    "optimizer": (GREEN, "||"),
    "activations": (PURPLE, "xx"),
}
STAGES = ("stage 0 (DDP)", "stage 1", "stage 2", "stage 3 (FSDP)")
ROOM = 0.07  # of the axis: a narrower part has no room for its number
LONGEST = 2.2  # of the GPU's memory, or of the shortest bar: longer ones are cut, so that it stays readable

OTHER = "other"
GPT_2 = Transformer(layers=48, hidden=1600, heads=25, vocabulary=50257, positions=1024)
# Parameters and shape. Llama's parameters as published (arXiv:2302.13971, table 2; arXiv:2307.09288): its
# layers differ from a GPT's, and keep 10 to 20 % more activations than the formula has.
MODELS = {
    "the workshop's CNN": (20_434, None),
    "GPT-2 1.5B": (GPT_2.parameters, GPT_2),
    "Llama 7B": (6_738_415_616, Transformer(layers=32, hidden=4096, heads=32, vocabulary=32000)),
    "Llama 13B": (13_015_864_320, Transformer(layers=40, hidden=5120, heads=40, vocabulary=32000)),
    "Llama 70B": (68_976_648_192, Transformer(layers=80, hidden=8192, heads=64, vocabulary=32000)),
    OTHER: (None, None),
}


def answer(found: Plan) -> str:
    """Whether it fits, from which stage on, or what would be needed, as one sentence."""
    gpu = f"{_number(found.gpu_bytes)} GiB"
    if found.first_fit is not None:
        at = found.stages[found.first_fit]
        start = ("at every stage, even without ZeRO", "from stage 1 on", "from stage 2 on", "at stage 3")
        host = f", and {size(at.host_bytes)} of host memory for each" if at.host_bytes else ""
        return f"It fits {start[at.stage]}: {_of(at.total_gpu_bytes, gpu)} a GPU{host}."
    if found.ranks_needed:
        gpus = "1 GPU" if found.ranks == 1 else f"{found.ranks:,} GPUs"
        return f"It does not fit on {gpus}; with stage 3 it would from {found.ranks_needed:,} GPUs on."
    activations = size(found.stages[0].gpu_bytes["activations"])
    return (
        f"It fits on no number of GPUs: the activations, which no stage divides, take {activations} alone, "
        f"and {_of(found.usable_bytes, gpu)} are usable."
    )


def _of(part_bytes: int, whole: str) -> str:
    return f"{size(part_bytes).removesuffix(' GiB')} of {whole}"


def draw(found: Plan, conditions: str = "") -> RecordFigure:
    """A bar a stage, of what it holds on a GPU, beside the GPU's memory; `conditions` go under the title.

    Bars of more than LONGEST times the GPU's memory and the shortest bar are cut; their label has the whole.
    """
    figure = RecordFigure(figsize=(12, 5.6), facecolor="white")
    title = textwrap.fill(answer(found), 88)
    figure.text(0.02, 0.97, title, fontsize=FONT_SIZE + 3, weight="bold", va="top")
    below = 0.89 - 0.055 * title.count("\n")
    figure.text(0.02, below, textwrap.fill(conditions, 125), fontsize=FONT_SIZE - 1, color=GREY, va="top")
    axes = figure.add_axes((0.145, 0.225, 0.835, below - 0.225 - 0.11))
    gpu, usable = found.gpu_bytes / GIB, found.usable_bytes / GIB
    totals = [at.total_gpu_bytes / GIB for at in found.stages]
    cut = LONGEST * max(gpu, min(totals))
    end = 1.32 * max(gpu, min(cut, max(totals)))  # room for the labels
    for at in found.stages:
        _bar(axes, at, cut, end)
    axes.axvline(gpu, color="black", linewidth=2.5)
    axes.axvline(usable, color="black", linewidth=1.5, linestyle="--")
    axes.set(xlim=(0, end), ylim=(len(STAGES) - 0.5, -0.5))
    axes.set_yticks(range(len(STAGES)), STAGES)
    axes.set_xlabel("memory of one GPU (GiB)", fontsize=FONT_SIZE)
    axes.tick_params(labelsize=FONT_SIZE)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#D9D9D9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    counted = [kind for kind in LOOKS if any(at.gpu_bytes[kind] for at in found.stages)]
    handles = [Patch(fc=LOOKS[kind][0], hatch=LOOKS[kind][1], ec="white", label=kind) for kind in counted]
    kept = 1 - found.usable_bytes / found.gpu_bytes
    handles += [
        Line2D([], [], color="black", lw=2.5, label=f"the GPU: {_number(found.gpu_bytes)} GiB"),
        Line2D(
            [], [], color="black", lw=1.5, ls="--", label=f"less {kept:.0%} reserve: {_number(found.usable_bytes)} GiB"
        ),
    ]
    figure.legend(handles=handles, loc="lower center", ncols=6, frameon=False, fontsize=FONT_SIZE,
                  columnspacing=1.3, handletextpad=0.5)  # fmt: skip
    return figure


def _bar(axes, at, cut: float, end: float) -> None:
    left, total = 0.0, at.total_gpu_bytes / GIB
    for kind, (colour, hatch) in LOOKS.items():
        width = at.gpu_bytes[kind] / GIB
        shown = max(0.0, min(width, cut - left))
        axes.barh(at.stage, shown, 0.66, left=left, color=colour, hatch=hatch, edgecolor="white", linewidth=0)
        if shown > ROOM * end:
            axes.text(
                left + shown / 2, at.stage, _number(at.gpu_bytes[kind]), ha="center", va="center",
                fontsize=FONT_SIZE, bbox={"fc": "white", "ec": "none", "pad": 1.5}, zorder=4,
            )  # fmt: skip
        left += shown
    text = f"{size(at.total_gpu_bytes)}, {'fits' if at.fits else 'does not fit'}"
    if total > cut:
        text = f"… {text}"
    axes.annotate(
        text, (min(total, cut), at.stage), (7, 0), textcoords="offset points", va="center", zorder=4,
        fontsize=FONT_SIZE, weight="bold" if at.fits else "normal",
        bbox={"fc": "white", "ec": "none", "pad": 1.5},
    )  # fmt: skip


class Calculator(Answers):
    """Whether the chosen model fits the chosen GPUs."""

    def __init__(self):
        wide = {"style": {"description_width": "135px"}, "layout": widgets.Layout(width="345px")}
        typed = {**wide, "continuous_update": False}
        self.model = widgets.Dropdown(options=list(MODELS), value="Llama 7B", description="model", **wide)
        self.parameters = widgets.Text(value="7.5B", description="parameters", **typed)
        self.recipe = widgets.Dropdown(options=list(RECIPES), value="bf16, Adam", description="recipe", **wide)
        self.ranks = widgets.IntText(value=8, description="GPUs (ranks)", **typed)
        self.gpu = widgets.Dropdown(options=list(GPUS), value="A100, 80 GB", description="kind of GPU", **wide)
        self.sequence = widgets.IntText(value=2048, description="sequence (tokens)", **typed)
        self.batch = widgets.IntText(value=1, description="batch a GPU", **typed)
        self.checkpointing = widgets.Checkbox(description="activation checkpointing", indent=False)
        self.offload = widgets.Checkbox(description="offload to host memory", indent=False)
        columns = [
            [self.model, self.parameters, self.recipe],
            [self.gpu, self.ranks],
            [self.sequence, self.batch, widgets.HBox([self.checkpointing, self.offload])],
        ]
        super().__init__(columns, "workshop-memory")

    def answer(self) -> tuple[str, RecordFigure]:
        shape = MODELS[self.model.value][1]
        self.parameters.disabled = self.model.value != OTHER
        for control in (self.sequence, self.batch, self.checkpointing):
            control.disabled = shape is None
        found, conditions = self._plan(shape)
        return answer(found), draw(found, conditions)

    def _plan(self, shape: Transformer | None) -> tuple[Plan, str]:
        parameters = MODELS[self.model.value][0] or _parsed(self.parameters.value)
        recipe, name = RECIPES[self.recipe.value], self.model.value
        words = [f"{'a model' if name == OTHER else name} of {parameters:,} parameters", self.recipe.value]
        words.append(f"{self.ranks.value:,} × {self.gpu.value}")
        activations = 0
        if shape:
            activations = activation_bytes(
                shape, self.sequence.value, self.batch.value, value_bytes=recipe["parameter_bytes"],
                checkpointing=self.checkpointing.value,
            )  # fmt: skip
            words.append(f"{self.batch.value:,} × {self.sequence.value:,} tokens a GPU, FlashAttention")
            words += ["activation checkpointing"] * self.checkpointing.value
        else:
            words.append("activations not counted")
        words += ["offload to host memory"] * self.offload.value
        options = {"activations": activations, "offload": self.offload.value}
        found = plan(parameters, self.ranks.value, GPUS[self.gpu.value], recipe, **options)
        return found, "; ".join(words)


def calculator() -> Calculator:
    """Controls for model, recipe, GPUs, sequence and batch, and whether the training fits at each stage.

    It is the value of a cell. A number that makes no sense is answered with a sentence.
    """
    return Calculator()


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


def _parsed(text: str) -> int:
    """7.5B, 125M, 7e9 or 7,500,000,000 as a number."""
    text = text.strip().replace(",", "")
    unit = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}.get(text[-1:].upper(), 1)
    try:
        return round(float(text[:-1] if unit > 1 else text) * unit)
    except (ValueError, OverflowError):
        raise ValueError(f"parameters is {text!r}: give a number such as 7.5B, 125M or 20434") from None
