"""Tables and figures of 07d_large_batch_optimizers: LARS's rates, and optimizers at several rates."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch.nn.functional import cross_entropy

from workshop_lib.notebook import figures
from workshop_lib.training.data import mnist
from workshop_lib.training.models import torch_cnn

LAYERS = ("convolution 1", "convolution 2", "linear 1", "linear 2")
NAMES = {"sgd": "SGD", "adam": "Adam", "lars": "LARS", "lamb": "LAMB"}
IMAGES = 256  # of the gradient whose norms are shown


def layer_norms() -> pd.DataFrame:
    """Return the norms of each layer's weights and gradient before training, and their ratio. Without biases."""
    model = torch_cnn.build(1, "classic").eval()
    train = mnist.load("train")
    images = torch_cnn.normalize(torch.tensor(train.images[:IMAGES]))
    cross_entropy(model(images), torch.tensor(train.labels[:IMAGES]).long()).backward()
    layers = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    norms = pd.DataFrame(index=LAYERS)
    norms["‖w‖"] = [layer.norm().item() for layer in layers]
    norms["‖∇w‖"] = [layer.grad.norm().item() for layer in layers if layer.grad is not None]
    norms["‖w‖ / ‖∇w‖"] = norms["‖w‖"] / norms["‖∇w‖"]
    return norms.round(3)


@figures.styled
def layer_rates(runs: Mapping[str, Sequence[Sequence[float]]]) -> figures.RecordFigure:
    """Draw LARS's rate of each layer against steps, one panel per training. runs: {title: [steps, layers]}."""
    title = "LARS gives each layer a rate of its own, and changes it in every step"
    figure, panels = figures.panels(title, "", runs, "step", "rate of the layer, λ")
    for axes, rates in zip(panels, runs.values(), strict=True):
        for name, of_layer in zip(LAYERS, np.asarray(rates).T, strict=True):
            axes.plot(np.arange(1, len(of_layer) + 1), of_layer, marker="", label=name)
        axes.set_yscale("log")
    return figure


def tried(records: Iterable[dict]) -> pd.DataFrame:
    """Return a row per run: its optimizer, its peak rate, and the share of the test images that are right, in %."""
    lasts = [(run["what"], 100 * run["epochs"][-1]["test_accuracy"]) for run in records]
    rows = [(NAMES[what["optimizer"]], what["lr"], right) for what, right in lasts]
    return pd.DataFrame(rows, columns=["optimizer", "peak rate", "% right"])


@figures.styled
def search(runs: pd.DataFrame, caption: str) -> figures.RecordFigure:
    """Draw the test images that are wrong, in %, against the peak rate, one curve per optimizer.

    runs: as `tried` returns them. Rates are multiples of the lowest one tried with this optimizer. Where there are
    several seeds, a bar goes from the best to the worst, and the curve through their mean.
    """
    figure, axes = figures.new_figure("Optimizers at several peak rates", caption)
    wrong = runs.assign(wrong=100 - runs["% right"])
    for number, name in enumerate(NAMES.values()):
        by_rate = wrong[wrong["optimizer"] == name].groupby("peak rate")["wrong"]
        if len(by_rate):
            values = figures.over_repeats(by_rate, "mean")
            rates = values[0].index
            label = f"{name} (from {rates[0]:g})"
            figures.draw_points(axes, rates / rates[0], values, **figures.style(number), label=label)
    axes.set(xlabel="peak rate / lowest rate tried", ylabel="wrong test images (%)", xscale="log", yscale="log")
    figures.ticks_at(axes.xaxis, [1, 2, 4, 8, 16])
    figures.log_ticks(axes.yaxis)
    return figure
