"""Measures how many optimizer steps reach a test accuracy, at several batch sizes, each with its own learning rate.

    python -m lessons.gradient_noise.steps_to_target --out build/steps_to_target.jsonl

07b_gradient_noise makes a short measurement on its ranks, and loads the record of a long one. The protocol is a small
version of that of Shallue et al. 2019 (arXiv:1811.03600): the same network, data and target at every batch size, and
the learning rate tuned at each. Only steps count, so no clock is needed, and the machine may be busy. One process
computes the whole batch, just as any number of ranks would compute it together.
"""

import argparse
import itertools
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from workshop_lib.errors import InputError
from workshop_lib.notebook.results import records
from workshop_lib.training import SCHEMA
from workshop_lib.training.data import mnist, shard
from workshop_lib.training.models.flat import FlatNetwork

KIND = "steps_to_target"
TARGET = 0.97
TEST_SAMPLES = 1000
MAX_EPOCHS = 10
BATCHES = (16, 32, 64, 128, 256, 512, 1024)
LRS = (0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
LOOK_EVERY = 1.1  # the number of steps grows by this factor from one test to the next


def measure(
    batch: int,
    lr: float,
    seed: int = 1,
    target: float = TARGET,
    test_samples: int = TEST_SAMPLES,
    max_steps: int | None = None,
    stop: Callable[[], bool] = bool,
) -> int | None:
    """Steps of plain SGD until the accuracy on the first test_samples test images reaches `target`.

    There is no momentum and no schedule: only the learning rate is tuned. The accuracy is tested after 1, 2, 3, …
    steps, and later each time their number has grown by a tenth. So the answer is up to a tenth too large, at every
    batch size alike. Returns None when max_steps (by default, MAX_EPOCHS epochs) did not reach the target, when
    training diverged, or when `stop` returned True. Raises InputError for a batch larger than the training set, and
    for a target outside 0 to 1.
    """
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    train = mnist.load("train")
    test = mnist.load("test")
    if not 1 <= batch <= train.total:
        raise InputError(f"batch {batch}: use 1 to {train.total}, the number of training images")
    if not 0 < target < 1:
        raise InputError(f"target {target}: use an accuracy between 0 and 1, such as {TARGET}")
    network = FlatNetwork(seed)
    weights = network.weights()
    images = test.images[:test_samples]
    labels = test.labels[:test_samples]
    look_at = 1
    limit = max_steps or MAX_EPOCHS * train.total // batch
    for step, rows in enumerate(itertools.islice(batches(train.total, batch, seed), limit), 1):
        if stop():
            return None
        weights -= np.float32(lr) * network.gradient(weights, train.images[rows], train.labels[rows])
        if step >= look_at or step == limit:
            if not math.isfinite(weights.sum()):
                return None  # training diverged, and later steps cannot help
            network.set(weights)
            if network.accuracy(images, labels) >= target:
                return step
            look_at = max(step + 1, math.ceil(step * LOOK_EVERY))
    return None


def batches(size: int, batch: int, seed: int) -> Iterator[np.ndarray]:
    for epoch in itertools.count(1):
        for rows, _ in shard.epoch_batches(size, batch, 0, 1, seed, epoch):
            if len(rows) == batch:  # the last samples of an epoch would be a step with a smaller batch
                yield rows


def tune(
    batches: Iterable[int],
    lrs: Iterable[float],
    seeds: Iterable[int] = (1,),
    target: float = TARGET,
    stop: Callable[[], bool] = bool,
    test_samples: int = TEST_SAMPLES,
) -> Iterator[dict]:
    """Yield a record for each batch size, learning rate and seed, until `stop` returns True.

    Rates are tried from the middle of the list outwards, and a run gives up (steps: None) once it has taken 1.5 times
    as many steps as the slowest seed at the batch size's best rate so far.
    """
    lrs = sorted(lrs)
    seeds = list(seeds)
    outwards = sorted(lrs, key=lambda lr: abs(lrs.index(lr) - len(lrs) // 2))
    for batch in batches:
        slowest: int | None = None
        for lr in outwards:
            limit = slowest and math.ceil(1.5 * slowest)
            taken = []
            for seed in seeds:
                steps = measure(batch, lr, seed, target, test_samples, limit, stop)
                if stop():
                    return
                what = {"batch": batch, "lr": lr, "seed": seed, "target": target, "lrs": lrs}
                yield {"schema": SCHEMA, "kind": KIND, "what": what, "steps": steps}
                taken += [steps] if steps else []
            if len(taken) == len(seeds):
                slowest = min(max(taken), slowest or max(taken))


class BestRate(NamedTuple):
    """The learning rate that needs the fewest steps, and its steps for each seed.

    at_edge: whether the rate is the smallest or largest that was tried, so that a better one may lie beyond.
    """

    lr: float
    steps: list[int]
    at_edge: bool


def best_rates(runs: Iterable[dict]) -> dict[int, BestRate]:
    """The best learning rate by batch size, in ascending order of batch size.

    The best rate has the lowest median of steps over the seeds, among the rates at which every seed reached the
    target; if two tie, the lower mean decides. A batch size without such a rate is left out. Records of other kinds
    are skipped.
    """
    steps: dict[int, dict[float, list]] = {}
    rates: dict[int, list[float]] = {}
    for record in runs:
        if record.get("kind") == KIND:
            what = record["what"]
            steps.setdefault(what["batch"], {}).setdefault(what["lr"], []).append(record["steps"])
            rates[what["batch"]] = what["lrs"]
    chosen = {}
    for batch in sorted(steps):
        reached = {lr: of_seeds for lr, of_seeds in steps[batch].items() if None not in of_seeds}
        if reached:
            lr = min(reached, key=lambda lr: (statistics.median(reached[lr]), statistics.mean(reached[lr])))
            chosen[batch] = BestRate(lr, reached[lr], at_edge=lr in (min(rates[batch]), max(rates[batch])))
    return chosen


def pairs(runs: Iterable[dict]) -> tuple[list[int], list[int]]:
    """Batches and steps for `critical_batch.fit`: one pair per batch size and seed, at the best rate for that size."""
    chosen = best_rates(runs)
    flat = [(batch, steps) for batch, best in chosen.items() for steps in best.steps]
    return [batch for batch, _ in flat], [steps for _, steps in flat]


def main(arguments: list[str] | None = None) -> int:
    """Run the command that the module's docstring shows; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m lessons.gradient_noise.steps_to_target")
    parser.add_argument("--out", required=True, help="record file (JSON lines) to append to")
    out = parser.parse_args(arguments).out
    for record in tune(BATCHES, LRS, seeds=(1, 2, 3)):
        records.write(out, record)
        what = record["what"]
        outcome = f"{record['steps']} steps" if record["steps"] else "not reached"
        print(f"batch {what['batch']}, lr {what['lr']:g}, seed {what['seed']}: {outcome}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
