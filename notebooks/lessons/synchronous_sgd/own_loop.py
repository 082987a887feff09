"""What 02_synchronous_sgd does with the functions that a learner writes: it shows their loop in the dashboard.

`WatchedLoop` and `show_threes` run on every rank, and change nothing in what the learner's code computes.
"""

import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from workshop_lib.machine.cores import usable_cores
from workshop_lib.ranks.call.engine import stop_asked
from workshop_lib.training.callbacks import StepEvent, StepValues, Tracer
from workshop_lib.training.models import torch_cnn
from workshop_lib.training.publisher import Publisher

STEPS_BETWEEN_STOP_CHECKS = 8
Batch = tuple[torch.Tensor, torch.Tensor]  # images and labels


def show_threes(**gradients: np.ndarray) -> None:
    """Draw the part of each gradient [784, 10] that belongs to the digit 3, as an image of 28 × 28 pixels."""
    from matplotlib import pyplot  # ranks that only train don't need it

    with pyplot.rc_context({"text.usetex": False}):  # a personal matplotlibrc may ask for LaTeX, which may be missing
        figure, places = pyplot.subplots(1, len(gradients), figsize=(5, 2.1), layout="constrained")
    figure.set_facecolor("none")  # the page's own background, light or dark
    for place, (name, gradient) in zip(places, gradients.items(), strict=True):
        place.imshow(gradient[:, 3].reshape(28, 28), cmap="RdBu", vmin=-0.1, vmax=0.1)
        place.set_title(name.replace("_", " "), fontsize=17, color="gray")
        place.axis("off")


def accuracy(model: torch.nn.Module, test, comm) -> float:
    """The share of right answers, from 0 to 1, when each rank answers its own part of the test images."""
    with torch.no_grad():
        answers = model(torch_cnn.normalize(torch.tensor(test.images))).argmax(dim=1).numpy()
    right = comm.allreduce(int((answers == test.labels).sum()))
    return right / test.total


class WatchedLoop:
    """One run of a handwritten loop. All ranks create it and go through its epochs and batches together.

    watched = WatchedLoop(model, optimizer, comm, epochs, steps_per_epoch)
    for epoch in watched.epochs():
        train_epoch(model, optimizer, schedule, watched.batches(mine), watched.average(average), comm)
        watched.tested(accuracy)
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, comm, epochs: int, steps: int):
        """steps: of an epoch."""
        self.optimizer = optimizer
        self.comm = comm
        self.info = {"world_size": comm.size, "rank": comm.rank, "epochs": epochs, "steps_per_epoch": steps}
        self.publisher = Publisher(stop_asked)
        self.tracer = Tracer(comm)
        self.stopped = False
        self.answers: torch.Tensor | None = None  # the network's output for the batch of this step
        self.spans: list[tuple[float, float]] = []  # when averaging began and ended in this step
        self.hook = model.register_forward_hook(self._keep_answers)

    def _keep_answers(self, _model, _inputs, answers: torch.Tensor) -> None:
        self.answers = answers.detach()

    def epochs(self) -> Iterator[int]:
        """The numbers of the epochs, from 1, until the last one or until somebody presses Stop."""
        about = {"oversubscribed": self.comm.size > usable_cores(), "clock_origin_s": self.tracer.clock_origin_s}
        self.publisher.on_start(self.info | about)
        try:
            for epoch in range(1, self.info["epochs"] + 1):
                if self.stopped:
                    return
                self.epoch = epoch
                yield epoch
        finally:
            self.hook.remove()

    def batches(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The same batches. Each is counted when the loop asks for the next one, so when its step is done."""
        self.step = 0
        self.sums = [0.0, 0.0, 0.0]  # loss, correct answers, samples
        self.epoch_start_s = start_s = time.perf_counter()
        for images, labels in batches:
            self.spans = []
            self.lr = self.optimizer.param_groups[0]["lr"]  # after the step, it's that of the next one
            yield images, labels
            self.step += 1
            self._count(labels)
            self._report()
            steps_done = (self.epoch - 1) * self.info["steps_per_epoch"] + self.step
            start_s = self.tracer.add(steps_done, start_s, self.spans)
            is_due = self.step % STEPS_BETWEEN_STOP_CHECKS == 0
            if is_due and self.comm.allreduce(stop_asked()):
                self.stopped = True
                return

    def _count(self, labels: torch.Tensor) -> None:
        if self.answers is None or len(self.answers) != len(labels):
            return  # the loop didn't ask the network about this batch
        loss = cross_entropy(self.answers, labels, reduction="sum").item()
        right = (self.answers.argmax(dim=1) == labels).sum().item()
        self.sums = [total + new for total, new in zip(self.sums, (loss, right, len(labels)), strict=True)]

    def _report(self) -> None:
        values: StepValues = {
            "epoch": self.epoch,
            "step": self.step,
            "steps_per_epoch": self.info["steps_per_epoch"],
            "lr": self.lr,
            "samples_per_s": self.comm.size * self.sums[2] / (time.perf_counter() - self.epoch_start_s),
        }
        later = {"sums": lambda: list(self.sums), "trace": lambda: list(self.tracer.last)}
        self.publisher.on_step(StepEvent(values, later))

    def average(self, average: Callable) -> Callable:
        """The same function, whose time counts as communication."""

        def timed(*arguments):
            began_s = time.perf_counter()
            result = average(*arguments)
            self.spans.append((began_s, time.perf_counter()))
            return result

        return timed

    def tested(self, accuracy: float) -> None:
        """End an epoch with the test accuracy of the network, from 0 to 1. All ranks call it."""
        seconds = time.perf_counter() - self.epoch_start_s
        totals = self.comm.allgather(self.sums)
        loss, right, samples = (sum(column) for column in zip(*totals, strict=True))
        self.publisher.on_epoch(
            {
                "epoch": self.epoch,
                "train_loss": loss / samples if samples else None,
                "train_accuracy": right / samples if samples else None,
                "test_accuracy": accuracy,
                "seconds": seconds,
                "samples_per_s": samples / seconds,
            }
        )
