"""What several commands can be told, with the help for it."""

from typing import Annotated

import typer

from workshop_lib.training.backends import REGISTRY
from workshop_lib.training.options import DEFAULT_MOMENTUM, DEFAULT_ZERO_STAGE, OPTIMIZERS, WITHOUT_MOMENTUM
from workshop_lib.training.schedules import DECAYS

Backend = Annotated[str, typer.Option(help=f"How gradients are averaged: {', '.join(REGISTRY)}.")]
ZeroStage = Annotated[
    int | None, typer.Option(help=f"DeepSpeed's ZeRO stage, 0 to 3 ({DEFAULT_ZERO_STAGE} if not given).")
]
Network = Annotated[str, typer.Option(help="workshop, or classic: with dropout, as in 2017's examples.")]
Precision = Annotated[str, typer.Option(help="fp32, or bf16 for matrix products and convolutions.")]
Epochs = Annotated[int, typer.Option(help="Passes over the training data.")]
BatchSize = Annotated[int, typer.Option(help="Samples a rank in each step.")]
LearningRate = Annotated[float, typer.Option(help="Peak learning rate, before scaling.")]
LrScaling = Annotated[str, typer.Option(help="How it grows with the ranks: none, sqrt or linear.")]
Warmup = Annotated[str, typer.Option(help="How it gets there: linear from 0, or constant at --lr.")]
WarmupEpochs = Annotated[float, typer.Option(help="Epochs until the learning rate is at its peak.")]
Decay = Annotated[str, typer.Option(help=f"How it falls afterwards: {', '.join(DECAYS)}.")]
Optimizer = Annotated[str, typer.Option(help=f"{', '.join(OPTIMIZERS)}.")]
Momentum = Annotated[
    float | None, typer.Option(help=f"Of all but {' and '.join(WITHOUT_MOMENTUM)} ({DEFAULT_MOMENTUM}).")
]
Nesterov = Annotated[bool, typer.Option(help="Nesterov's momentum, or the plain one, in sgd.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda (one GPU a rank).")]
Seed = Annotated[int, typer.Option(help="One seed for weights, data order and ranks.")]
DataDir = Annotated[str | None, typer.Option(help="A folder in IDX format instead of MNIST.")]
EmulateWorkers = Annotated[int | None, typer.Option(help="Do the arithmetic of so many ranks here.")]
TrainSamples = Annotated[int | None, typer.Option(help="Use only the first so many samples.")]
Timeout = Annotated[float, typer.Option(help="Seconds after which ranks that hang are ended.")]
Threads = Annotated[int, typer.Option(help="Threads of each rank.")]
Bind = Annotated[str, typer.Option(help="Bind ranks to cores: none or core.")]


def counts(option: str, text: str, at_least: int = 1, example: str = "1,2") -> list[int]:
    """The numbers of "1,2,4". Raises ValueError that names the option."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [at_least - 1]
    if min(found) < at_least:
        raise ValueError(f"{option} {text!r}: give whole numbers of at least {at_least}, as in {example}.")
    return found
