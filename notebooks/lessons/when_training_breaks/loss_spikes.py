"""Three training runs whose loss spikes, for 13_when_training_breaks: learners find out why.

Four ranks train a small network on MNIST. They take turns in this one process, because only their numbers matter here.
Each run has a different cause, which shows in the gradients' norms and in what happens when the steps are replayed.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from workshop_lib.exercises.judge import Verdict
from workshop_lib.notebook import figures, palette
from workshop_lib.training.data import mnist

from lessons.ddp import clinic

RANKS = 4
SAMPLES = 32  # per rank and step
STEPS = 120
AT = 70  # the cause acts in this step, or from this step on
REPLAYED_FROM = 60  # the last checkpoint before the spike
REPLAYED_TO = 90
OTHER_SEED = 2  # draws other batches than the runs have seen
SICK = 2  # the rank with the bad batch or the wrong gradient
LR = 0.05
HIGH_LR = 2.0
MOMENTUM = 0.9
IMAGES = 6000

RUNS = {"X": "a wrong gradient", "Y": "a bad batch", "Z": "the learning rate"}
# What a run with each cause would show: the hint for a learner who names this cause where it isn't the one.
SIGNS = {
    "a bad batch": "the loss would spike again with the same batches, and wouldn't with other batches",
    "a wrong gradient": "one rank's norm would stick out, and the replayed loss would be smooth with any batches",
    "the learning rate": "the norms of all ranks would grow together, and the loss would spike with any batches",
}


@dataclass
class SpikingRun:
    """One run. losses: the mean over the ranks per step. norms: each step's gradient norms, one per rank."""

    losses: list[float] = field(default_factory=list)
    norms: list[list[float]] = field(default_factory=list)


class SmallTrainer:
    """The state of a run: a network and its optimizer, which are the same on all ranks."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images = images
        self.labels = labels
        generator = torch.Generator().manual_seed(1)
        self.model = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
        with torch.no_grad():
            for parameter in self.model.parameters():
                bound = 1 / parameter.shape[-1] ** 0.5
                parameter.uniform_(-bound, bound, generator=generator)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LR, momentum=MOMENTUM)

    def gradient(self, step: int, rank: int, seed: int, cause: str) -> tuple[float, torch.Tensor]:
        """The loss and the gradient of one rank's batch in this step."""
        picked = torch.from_numpy(np.random.default_rng([seed, step, rank]).integers(len(self.images), size=SAMPLES))
        images = self.images[picked]
        if cause == "a bad batch" and seed != OTHER_SEED and (step, rank) == (AT, SICK):
            images = 255 * images  # somebody forgot to divide by 255
        loss = cross_entropy(self.model(images), self.labels[picked])
        gradients = torch.autograd.grad(loss, list(self.model.parameters()))
        gradient = torch.cat([each.flatten() for each in gradients])
        if cause == "a wrong gradient" and (step, rank) == (AT, SICK):
            gradient = 256 * gradient  # a flipped bit in a factor's exponent, such as a loss scale's
        return loss.item(), gradient

    def step(self, gradient: torch.Tensor, lr: float, largest_norm: float) -> None:
        """Take a step with the mean gradient, after clipping it to this norm."""
        norm = gradient.norm().item()
        if norm > largest_norm:
            gradient = gradient * (largest_norm / norm)
        at = 0
        for parameter in self.model.parameters():
            parameter.grad = gradient[at : at + parameter.numel()].view_as(parameter).clone()
            at += parameter.numel()
        self.optimizer.param_groups[0]["lr"] = lr
        self.optimizer.step()

    def train(
        self, first: int, last: int, cause: str = "", seed: int = 1, largest_norm: float = float("inf")
    ) -> SpikingRun:
        """Take the steps from `first` up to `last`, with this cause of a spike in step AT."""
        run = SpikingRun()
        for step in range(first, last):
            results = [self.gradient(step, rank, seed, cause) for rank in range(RANKS)]
            gradients = torch.stack([gradient for _, gradient in results])
            run.losses.append(sum(loss for loss, _ in results) / RANKS)
            run.norms.append(gradients.norm(dim=1).tolist())
            lr = HIGH_LR if cause == "the learning rate" and step >= AT else LR
            self.step(gradients.mean(0), lr, largest_norm)
        return run


class SpikeClinic:
    """The runs to diagnose, with the checkpoint before each spike. All runs are the same up to step AT."""

    def __init__(self) -> None:
        train = mnist.load("train")
        images = torch.tensor(train.images[:IMAGES]).reshape(IMAGES, -1) / 255
        labels = torch.tensor(train.labels[:IMAGES]).long()
        self.checkpoint = SmallTrainer(images, labels)
        self.start = self.checkpoint.train(0, REPLAYED_FROM)

    def run(self, name: str, largest_norm: float = float("inf")) -> SpikingRun:
        """The whole run of this name. With `largest_norm`, gradients are clipped from the checkpoint on."""
        rest = self._from_checkpoint(STEPS, RUNS[name], largest_norm=largest_norm)
        return SpikingRun(self.start.losses + rest.losses, self.start.norms + rest.norms)

    def _from_checkpoint(self, last: int, cause: str, **options) -> SpikingRun:
        trainer = copy.deepcopy(self.checkpoint)
        return trainer.train(REPLAYED_FROM, last, cause, **options)

    def replay(self, name: str) -> pd.DataFrame:
        """Go back to the checkpoint before the spike, and take the steps again: with the same batches, then others."""
        # Whatever went wrong in the hardware doesn't happen a second time.
        cause = RUNS[name] if RUNS[name] != "a wrong gradient" else ""
        rows = []
        for title, seed in (("the same batches", 1), ("other batches", OTHER_SEED)):
            losses = self._from_checkpoint(REPLAYED_TO, cause, seed=seed).losses
            row = {f"run {name}, replayed with": title, "highest loss": f"{max(losses):.2f}"}
            rows.append(row | {"in step": REPLAYED_FROM + int(np.argmax(losses))})
        return pd.DataFrame(rows).set_index(f"run {name}, replayed with")


@figures.styled
def spikes(runs: Mapping[str, SpikingRun]) -> figures.RecordFigure:
    """Draw each run's loss above, and below it the norm of each rank's gradient before the ranks average them."""
    caption = "above: the mean loss of four ranks; below: each rank's gradient norm, before averaging"
    figure, all_axes = figures.new_figure(
        "Three runs with a spike", caption, 2, len(runs), sharex=True, sharey="row", squeeze=False
    )
    for column, (name, run) in enumerate(runs.items()):
        above = all_axes[0][column]
        below = all_axes[1][column]
        above.plot(run.losses, color=palette.BLUE, marker="")
        for rank in range(RANKS):
            norms = [each[rank] for each in run.norms]
            label = f"rank {rank}" if column == 0 else None
            below.plot(norms, color=palette.COLORS[rank], marker="", linewidth=1, label=label)
        above.set(title=f"run {name}", yscale="log")
        below.set(xlabel="step", yscale="log")
    all_axes[0][0].set(ylabel="loss")
    all_axes[1][0].set(ylabel="gradient norm")
    return figure


@figures.styled
def clipped(free: SpikingRun, clipped: SpikingRun, largest_norm: float) -> figures.RecordFigure:
    """Draw the loss of a run with and without clipping."""
    figure, axes = figures.new_figure("The same spike with clipping", f"gradients are clipped to norm {largest_norm:g}")
    axes.plot(free.losses, color=palette.BLUE, marker="", label="not clipped")
    axes.plot(clipped.losses, color=palette.VERMILION, marker="", label="clipped")
    axes.set(xlabel="step", ylabel="loss", yscale="log")
    return figure


def causes(answers: dict[str, str]) -> Verdict:
    """The verdict on the causes that the learner found, given by the names of the runs."""
    return clinic.diagnoses(answers, RUNS, SIGNS, name="causes")
