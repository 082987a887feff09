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
COMPARED = ("SGD", "Adam", "Muon")  # what the names of the recipes that the notebook compares begin with


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


def compared(runs: Iterable[dict]) -> list[dict]:
    """Return the runs with 4 and with 32 workers, whose recipes differ in the optimizer and its options."""
    return [run for run in runs if run["recipe"].startswith(COMPARED)]


def tried(records: Iterable[dict]) -> pd.DataFrame:
    """Return a row per optimizer and peak rate, in % of the test images: the mean over the seeds, worst and best."""
    whats = [(run["what"], 100 * run["epochs"][-1]["test_accuracy"]) for run in records]
    rows = [(NAMES[what["optimizer"]], what["lr"], accuracy) for what, accuracy in whats]
    frame = pd.DataFrame(rows, columns=["optimizer", "peak rate", "accuracy"])
    groups = frame.groupby(["optimizer", "peak rate"])["accuracy"]
    return groups.agg(["mean", "min", "max", "count"]).reset_index()


def tried_here(found: Mapping[str, Mapping[float, float]]) -> pd.DataFrame:
    """Return the rows of `tried` for one run per rate. found: {optimizer: {peak rate: accuracy in %}}."""
    rows = [(name, rate, right, right, right, 1) for name, rates in found.items() for rate, right in rates.items()]
    return pd.DataFrame(rows, columns=["optimizer", "peak rate", "mean", "min", "max", "count"])


def best(rows: pd.DataFrame, optimizer: str) -> float:
    """Return the mean test accuracy in % at the optimizer's best peak rate. rows: as `tried` returns them."""
    return rows[rows["optimizer"] == optimizer]["mean"].max()


def rates(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a table with a row per optimizer: each peak rate, and the mean test accuracy in % that it reached."""
    cells = rows.assign(
        text=[f"{rate:g}: {right:.1f}" for rate, right in zip(rows["peak rate"], rows["mean"], strict=True)]
    )
    cells["try"] = cells.groupby("optimizer")["peak rate"].rank().astype(int)
    return cells.pivot(index="optimizer", columns="try", values="text").fillna("")


@figures.styled
def search(rows: pd.DataFrame, caption: str) -> figures.RecordFigure:
    """Draw the test images that are wrong, in %, against the peak rate, one curve per optimizer.

    rows: as `tried` returns them. Rates are multiples of the lowest one tried with this optimizer. Bars go from the
    best seed to the worst.
    """
    figure, axes = figures.new_figure("Optimizers at several peak rates", caption)
    for number, name in enumerate(NAMES.values()):
        of_optimizer = rows[rows["optimizer"] == name]
        if of_optimizer.empty:
            continue
        lowest = of_optimizer["peak rate"].min()
        low = (100 - of_optimizer["max"]).where(of_optimizer["count"] > 1)
        values = 100 - of_optimizer["mean"], low, 100 - of_optimizer["min"]
        label = f"{name} (from {lowest:g})"
        figures.draw_points(axes, of_optimizer["peak rate"] / lowest, values, **figures.style(number), label=label)
    axes.set(xlabel="peak rate / lowest rate tried", ylabel="wrong test images (%)", xscale="log", yscale="log")
    figures.ticks_at(axes.xaxis, [1, 2, 4, 8, 16])
    figures.log_ticks(axes.yaxis)
    return figure
