"""A calculator with controls: 06_zero_and_fsdp asks it whether a model fits the GPUs, and at which ZeRO stage."""

from collections.abc import Iterable

import ipywidgets as widgets

from workshop_lib.errors import InputError
from workshop_lib.notebook.figures import RecordFigure
from workshop_lib.notebook.widgets import Answers, size

from lessons.zero_and_fsdp.figures import draw_memory, memory_answer
from lessons.zero_and_fsdp.zero_memory import GPUS, RECIPES, MemoryPlan, Transformer, activation_bytes
from lessons.zero_and_fsdp.zero_memory import plan as make_plan

WIDE = {"style": {"description_width": size(9)}, "layout": {"width": size(21.4)}}  # three controls fit side by side
LABELED = {
    "indent": False,
    "layout": {"width": size(19), "margin": f"2px 2px 2px {size(2.4)}"},
}  # as wide as the others
TYPED = {**WIDE, "continuous_update": False}
OTHER = "other"
UNITS = {"T": 1e12, "B": 1e9, "M": 1e6, "K": 1e3}
# The number of parameters, and the shape. Llama's numbers are the published ones (arXiv:2302.13971, table 2;
# arXiv:2307.09288; arXiv:2407.21783, table 3, with the parameters of the published weights). Its layers differ from a
# GPT's, and keep 10 to 20 % more activations than the formula says.
MODELS = {
    "the workshop's CNN": (20_434, None),
    "GPT-2 1.5B": (1_557_611_200, Transformer(layers=48, hidden=1600, vocabulary=50257)),
    "Llama 7B": (6_738_415_616, Transformer(layers=32, hidden=4096, vocabulary=32000)),
    "Llama 13B": (13_015_864_320, Transformer(layers=40, hidden=5120, vocabulary=32000)),
    "Llama 70B": (68_976_648_192, Transformer(layers=80, hidden=8192, vocabulary=32000)),
    "Llama 3.1 8B": (8_030_261_248, Transformer(layers=32, hidden=4096, vocabulary=128256)),
    "Llama 3.1 405B": (405_853_388_800, Transformer(layers=126, hidden=16384, vocabulary=128256)),
    OTHER: (None, None),
}


def choice(description: str, options: Iterable, value: object) -> widgets.Dropdown:
    return widgets.Dropdown(options=list(options), value=value, description=description, **WIDE)


class Calculator(Answers):
    """Controls for model, recipe, GPUs, sequence and batch, with a figure of whether the training fits at each stage.

    Make it the value of a notebook's cell. It answers a number that makes no sense with a sentence.
    """

    def __init__(self):
        self.model = choice("model", MODELS, "Llama 7B")
        self.parameters = widgets.Text(description="parameters", **TYPED)
        self.recipe = choice("recipe", RECIPES, "fp32, Adam")
        self.ranks = widgets.IntText(value=8, description="GPUs (ranks)", **TYPED)
        self.gpu = choice("kind of GPU", GPUS, "A100, 80 GB")
        self.sequence = widgets.IntText(value=2048, description="sequence length", **TYPED)
        self.batch = widgets.IntText(value=1, description="batch per GPU", **TYPED)
        self.checkpointing = widgets.Checkbox(description="activation checkpointing", **LABELED)
        self.offload = widgets.Checkbox(description="offload to host memory", **LABELED)
        columns = [
            [self.model, self.parameters, self.recipe],
            [self.gpu, self.ranks, self.offload],
            [self.sequence, self.batch, self.checkpointing],
        ]
        super().__init__(columns, "workshop-memory")

    def answer(self) -> tuple[str, RecordFigure]:
        shape = MODELS[self.model.value][1]
        known = MODELS[self.model.value][0]
        self.parameters.disabled = known is not None
        if known is not None:
            self.parameters.value = _short(known)
        for control in (self.sequence, self.batch, self.checkpointing):
            control.disabled = shape is None
        plan, conditions = self._plan(shape)
        return memory_answer(plan), draw_memory(plan, conditions)

    def _plan(self, shape: Transformer | None) -> tuple[MemoryPlan, str]:
        parameters = MODELS[self.model.value][0] or parsed("parameters", self.parameters.value)
        recipe = RECIPES[self.recipe.value]
        name = self.model.value
        words = [f"{'a model' if name == OTHER else name} of {parameters:,} parameters", self.recipe.value]
        words.append(f"{self.ranks.value:,} × {self.gpu.value}")
        activations = 0
        if shape:
            kept = {"value_bytes": recipe["parameter_bytes"], "checkpointing": self.checkpointing.value}
            activations = activation_bytes(shape, self.sequence.value, self.batch.value, **kept)
            words.append(f"{self.batch.value:,} × {self.sequence.value:,} tokens per GPU, FlashAttention")
            if self.checkpointing.value:
                words.append("activation checkpointing")
        else:
            words.append("activations not counted")
        if self.offload.value:
            words.append("offload to host memory")
        size = (parameters, self.ranks.value, GPUS[self.gpu.value], recipe)
        return make_plan(*size, activations=activations, offload=self.offload.value), "; ".join(words)


calculator = Calculator  # the name that notebooks use


def _short(number: int) -> str:
    """A number in short form, such as 6.74B for 6738415616."""
    unit, many = next(((unit, many) for unit, many in UNITS.items() if number >= many), ("", 1))
    return f"{number / many:.3g}{unit}"


def parsed(name: str, text: str) -> int:
    """The number in text such as 7.5B, 125M, 7e9 or 7,500,000,000. Raises InputError if there is none."""
    text = text.strip().replace(",", "")
    unit = UNITS.get(text[-1:].upper(), 1)
    try:
        return round(float(text[:-1] if unit > 1 else text) * unit)
    except (ValueError, OverflowError):
        raise InputError(f"{name} is {text!r}: give a number such as 7.5B, 125M or 20434") from None
