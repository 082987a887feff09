"""The clinic of 05_ddp: learners diagnose broken training runs by comparing them with a healthy one.

All runs train the workshop's network on real ranks, and average gradients after the backward pass. Two hosts are
emulated, with half of the ranks each.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from workshop_lib import ranks
from workshop_lib.exercises.judge import Verdict
from workshop_lib.training.callbacks import StepTrace, Tracer
from workshop_lib.training.data import mnist
from workshop_lib.training.models import torch_cnn
from workshop_lib.training.record import weights_sha256
from workshop_lib.training.timeline import Timeline, timeline

from lessons.ddp.backward import averaged_after
from lessons.ddp.judge_own_ddp import descend
from lessons.ddp.process_group import join

HEALTHY = "healthy"
# What each illness would show: the hint for a learner who diagnoses it in a run that does not have it.
SIGNS = {
    "sampler forgotten": "all ranks would take the same images, so their losses would be equal in every step",
    "sharded by local rank": "ranks 0 and 2 would have equal losses in every step, and ranks 0 and 1 different ones",
    "one rank diverged": "the weights of one rank would have a different digest",
    "one rank is slow": "all the other ranks would wait in every step, and this one never",
    "no_sync forgotten": "each rank would communicate twice in every step, once after each micro-batch",
}
RUNS = {
    "A": "no_sync forgotten",
    "B": "one rank diverged",
    "C": "sampler forgotten",
    "D": "one rank is slow",
    "E": "sharded by local rank",
}
# Images per epoch, images per rank and step, learning rate.
IMAGES = 512
BATCH = 16
MICRO_BATCHES = 2  # per step
LR = 0.05
# Each micro-batch also sleeps, to imitate a longer backward pass. So four ranks do not need four cores, and differences
# between runs come from their illness. The slow rank sleeps for SLOW_S, the others for SLEEP_S.
SLEEP_S = 0.005
SLOW_S = 0.02
DRAWN_STEPS = 3


@dataclass
class RankRun:
    """One training run on one rank: the loss of each step, a digest of the final weights, a trace of the last steps."""

    losses: list[float]
    digest: str
    trace: list[StepTrace]


@dataclass
class Clinic:
    """All runs by name, the healthy one first; each is a list with one RankRun per rank."""

    runs: dict[str, list[RankRun]]

    @property
    def timelines(self) -> dict[str, Timeline]:
        traces = {name: [run.trace for run in of_ranks] for name, of_ranks in self.runs.items()}
        return {_titled(name): timeline(of_ranks, last_steps=DRAWN_STEPS) for name, of_ranks in traces.items()}

    @property
    def rows(self) -> list[dict]:
        """One row per run and rank: steps in the epoch, losses of the last three, and a digest of the final weights."""
        return [
            {
                "run": _titled(name),
                "rank": rank,
                "steps": len(run.losses),
                "last three losses": "  ".join(f"{loss:.4f}" for loss in run.losses[-3:]),
                "weights": run.digest[:8],
            }
            for name, of_ranks in self.runs.items()
            for rank, run in enumerate(of_ranks)
        ]


def _titled(name: str) -> str:
    return name if name == HEALTHY else f"run {name}"


def admit(team) -> Clinic:
    """Train the healthy and the broken runs. Raises RankError unless the number of ranks is even and at least 4."""
    if team.n < 4 or team.n % 2:
        raise ranks.RankError(f"the clinic needs an even number of ranks, at least 4, not {team.n}: `ranks.start(4)`.")
    by_rank = team.run(_all_runs, timeout=120, show=False)
    return Clinic({name: [runs[name] for runs in by_rank] for name in by_rank[0]})


def _all_runs() -> dict[str, RankRun]:
    from mpi4py import MPI  # imported on the ranks only

    join()
    torch.set_num_threads(1)
    return {name: _train(MPI.COMM_WORLD, illness) for name, illness in {HEALTHY: "", **RUNS}.items()}


def _images_of(comm, illness: str) -> np.ndarray:
    """The indices of the images that this rank trains on, in order."""
    order = np.random.default_rng(1).permutation(IMAGES)
    if illness == "sampler forgotten":
        return order
    if illness == "sharded by local rank":
        local_size = comm.size // 2
        return order[comm.rank % local_size :: local_size]
    return order[comm.rank :: comm.size]


def _train(comm, illness: str) -> RankRun:
    """Train this rank for one epoch; `illness` is "" for the healthy run."""
    train = mnist.load("train")
    tracer = Tracer(comm)
    diverged = illness == "one rank diverged" and comm.rank == comm.size - 1
    model, average = averaged_after(torch_cnn.build(seed=2 if diverged else 1))
    mine = _images_of(comm, illness)
    losses = []
    for step, batch in enumerate(mine[: len(mine) // BATCH * BATCH].reshape(-1, BATCH)):
        start_s = time.perf_counter()
        model.zero_grad()
        loss_of_step = 0.0
        spans = []
        for number, part in enumerate(batch.reshape(MICRO_BATCHES, -1), 1):
            images = torch_cnn.normalize(torch.tensor(train.images[part]))
            loss = cross_entropy(model(images), torch.tensor(train.labels[part]).long()) / MICRO_BATCHES
            loss.backward()
            loss_of_step += loss.item()
            time.sleep(SLOW_S if illness == "one rank is slow" and comm.rank == 1 else SLEEP_S)
            if number == MICRO_BATCHES or illness == "no_sync forgotten":
                spans.append(_timed(average))
        descend(model, LR)
        losses.append(loss_of_step)
        tracer.add(step, start_s, spans)
    return RankRun(losses, weights_sha256([p.detach().numpy() for p in model.parameters()]), list(tracer.last))


def _timed(average: Callable[[], None]) -> tuple[float, float]:
    """Average the gradients; return when this rank began to do so and when it ended, in seconds."""
    began_s = time.perf_counter()
    average()
    return began_s, time.perf_counter()


def diagnoses(
    answers: dict[str, str], runs: dict[str, str] = RUNS, signs: dict[str, str] = SIGNS, name: str = "diagnoses"
) -> Verdict:
    """Judge the learner's diagnosis of each run, given by the run's name. `name` is the exercise's."""
    missing = ", ".join(f'"{run}"' for run in runs if not isinstance(answers.get(run), str))
    verdict = Verdict(name, to_do=f"Write a diagnosis beside each of these keys: {missing}")
    if missing:
        return verdict
    for run, illness in runs.items():
        diagnosis = answers[run]
        if diagnosis == illness:
            verdict.held.append(f"run {run}: {illness}")
        elif not verdict.failed:
            verdict.failed = f"run {run}: {diagnosis}"
            known = f"if it were that, {signs[diagnosis]}. Do you see it?" if diagnosis in signs else ""
            verdict.hint = known or f"use one of these: {', '.join(signs)}."
    verdict.passed = not verdict.failed
    return verdict.recorded()
