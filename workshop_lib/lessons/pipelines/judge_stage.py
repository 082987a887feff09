"""How 11b_pipelines checks `MyStage`: what a stage does with a micro-batch, forward and backward.

All stages run in one process, and a dictionary of arrays takes the place of MPI's messages. Receiving a message that
nobody sent raises an error at once, so nothing can hang.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from workshop_lib.judge import Exercise, Mistake, Property, close
from workshop_lib.lessons.pipelines import orders as pipeline_orders
from workshop_lib.lessons.pipelines import pipeline

# Micro-batches, samples per micro-batch, numbers per sample.
M = 4
SAMPLES = 3
WIDTH = 5
CASES = [(2, pipeline_orders.gpipe), (3, pipeline_orders.one_f_one_b), (1, pipeline_orders.gpipe)]


class Letters:
    """Takes the place of a rank's communicator. All ranks of this process share the dictionary `sent` of messages."""

    def __init__(self, sent: dict[tuple, list[np.ndarray]], rank: int, size: int):
        self.sent = sent
        self.rank = rank
        self.size = size

    def Isend(self, array: np.ndarray, dest: int, tag: int) -> SimpleNamespace:
        self.sent.setdefault((self.rank, dest, tag), []).append(array.copy())
        return SimpleNamespace(Wait=lambda: None)

    def Recv(self, array: np.ndarray, source: int, tag: int) -> None:
        waiting = self.sent.get((source, self.rank, tag))
        if not waiting:
            raise LookupError(f"rank {self.rank} waits for a message that rank {source} never sent")
        np.copyto(array, waiting.pop(0))


@dataclass
class TrainedStages:
    """What one step on all stages left behind."""

    error: str
    gradients: list[np.ndarray]  # one vector per stage
    right: list[np.ndarray] = field(compare=False)  # the gradients that one process computes, one vector per stage
    unread: int  # messages that nobody received
    most_kept: list[int]  # the most micro-batches that each stage kept at once
    kept_at_the_end: int


def _parts(stages: int) -> list[nn.Sequential]:
    torch.manual_seed(1)
    hidden = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(stages - 1)]
    return [part.double() for part in [*hidden, nn.Sequential(nn.Linear(WIDTH, 3))]]


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(2)
    inputs = torch.randn(M * SAMPLES, WIDTH, generator=random, dtype=torch.float64)
    return inputs, torch.randint(3, (M * SAMPLES,), generator=random)


def _gradients(parts: list[nn.Sequential]) -> list[np.ndarray]:
    """The gradients of each stage in one vector, with zeros for parameters that have no gradient."""
    return [
        torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in part.parameters()]).numpy()
        for part in parts
    ]


def _one_process(stages: int) -> list[np.ndarray]:
    parts = _parts(stages)
    inputs, labels = _batch()
    cross_entropy(nn.Sequential(*parts)(inputs), labels).backward()
    return _gradients(parts)


def observe_stage(comm, make: Callable) -> list[TrainedStages]:
    """Take one step with the learner's class in each of CASES."""
    return [_trained(make, size, schedule) for size, schedule in CASES]


def _trained(make: Callable, size: int, schedule: Callable) -> TrainedStages:
    parts = _parts(size)
    error = ""
    sent: dict[tuple, list[np.ndarray]] = {}
    stages = [pipeline.stages_of_rank(make, parts, Letters(sent, rank, size), (WIDTH,))[0] for rank in range(size)]
    for stage in stages:
        stage.load(*_batch(), M)
    orders = [schedule(rank, size, M) for rank in range(size)]
    spans = [(span, rank) for rank, row in enumerate(pipeline_orders.simulate(orders).spans) for span in row]
    most_kept = [0] * size
    try:
        for span, rank in sorted(spans, key=lambda each: each[0].start):
            stage = stages[rank]
            (stage.forward if span.kind == "F" else stage.backward)(span.micro_batch)
            most_kept[rank] = max(most_kept[rank], len(stage.kept))
    except NotImplementedError:
        raise
    except Exception as raised:  # the learner's methods may raise anything, and the check reports it
        kind = "forward" if span.kind == "F" else "backward"
        error = f"in {kind}({span.micro_batch}) of stage {rank} of {size}: {raised}".splitlines()[0][:200]
    unread = sum(len(letters) for letters in sent.values())
    kept = sum(len(stage.kept) for stage in stages)
    return TrainedStages(error, _gradients(parts), _one_process(size), unread, most_kept, kept)


NO_INPUT_GRADIENT_HINT = (
    "autograd only computes a gradient by the input if you ask for it: `x.requires_grad_()`, before the layers compute."
)
UNDIVIDED_HINT = f"they are {M} times too large: each micro-batch adds its own mean. Divide its loss by `self.m`."
DIVIDED_AGAIN_HINT = "only the last stage's are right: the loss is divided by `self.m` once, and nothing else is."
OWN_GRADIENT_HINT = (
    "this stage went back from ones, or from a sum. `y.backward(gradient)` takes the gradient that the next stage sent."
)
OUTPUT_GRADIENT_HINT = "the stage before needs the gradient by *its* output. That's your input's: send `x.grad`."
NOBODY_SENDS_HINT = "every stage but the first sends `x.grad` back, the last stage, too."
NO_RECEIVER_HINT = "the last stage has nobody to send activations to, and the first nobody to send a gradient to."
ONE_KEPT_HINT = (
    "several micro-batches are under way at once. Keep what each backward needs under its number, in `kept[i]`."
)
KEPT_HINT = "take it out when its backward begins: `self.kept.pop(i)`. Otherwise a step keeps everything to its end."
NOT_KEPT_HINT = "keep what backward needs in `self.kept[i]`, so that everyone can see what's still alive."


def stage_properties(observations: list[list[TrainedStages]]) -> Iterator[Property]:
    two, three, alone = cases = observations[0]
    errors = [seen.error for seen in cases if seen.error]
    observed = f"{errors[0]}." if errors else ""
    yield Property("every operation runs to its end", not errors, evidence=errors[:1], observed=observed)
    unread = two.unread + three.unread + alone.unread
    yield Property("every message is received", not unread, OWN_GRADIENT_HINT, evidence=unread)
    for seen, text in (
        (two, "two stages have the gradients of one process"),
        (three, "so have three, with 1F1B"),
        (alone, "so has a single stage"),
    ):
        right = all(close(got, wanted) for got, wanted in zip(seen.gradients, seen.right, strict=True))
        yield Property(text, right, evidence=seen.gradients)
    keeps = [*two.most_kept, *three.most_kept]
    yield Property("`kept` holds what backward will need", min(keeps) > 0, NOT_KEPT_HINT)
    yield Property("a backward takes it out", not any(seen.kept_at_the_end for seen in cases), KEPT_HINT)
    yield Property("so 1F1B keeps no more than it has to", three.most_kept == [3, 2, 1], KEPT_HINT)


def _wrong(**changes) -> Callable:
    """Return the exercise's class with one mistake in it, such as `no_grad=True`."""

    def right(name: str) -> bool:
        return not changes.get(name)

    class MyStage(pipeline.Stage):
        def forward(self, i: int) -> None:
            x = self.images[i] if self.first else self.receive_activations(i)
            y = self.layers(x.requires_grad_(right("no_grad") and not self.first))
            if self.last and right("send_on"):
                y = self.loss(y, i) / (self.m if right("undivided") else 1)
            else:
                self.send_activations(i, y)
            self.kept[i if right("one_kept") else 0] = x, y

        def backward(self, i: int) -> None:
            at = i if right("one_kept") else 0
            x, y = self.kept.pop(at)
            gradient = None if self.last else self.receive_gradient(i)
            if gradient is not None and changes.get("ones"):
                gradient = torch.ones_like(y)
            if gradient is not None and changes.get("again"):
                gradient = gradient / self.m
            y.backward(gradient)
            if (self.first and right("send_back")) or (self.last and changes.get("silent")):
                return
            self.send_gradient(i, x.grad if right("output") or gradient is None else gradient)

    return MyStage


MyStage = Exercise(
    "MyStage",
    observe_stage,
    stage_properties,
    [
        Mistake(_wrong(no_grad=True), NO_INPUT_GRADIENT_HINT),
        Mistake(_wrong(undivided=True), UNDIVIDED_HINT),
        Mistake(_wrong(again=True), DIVIDED_AGAIN_HINT),
        Mistake(_wrong(ones=True), OWN_GRADIENT_HINT),
        Mistake(_wrong(output=True), OUTPUT_GRADIENT_HINT),
        Mistake(_wrong(silent=True), NOBODY_SENDS_HINT),
        Mistake(_wrong(send_on=True), NO_RECEIVER_HINT),
        Mistake(_wrong(send_back=True), NO_RECEIVER_HINT),
        Mistake(_wrong(one_kept=True), ONE_KEPT_HINT),
    ],
    communicates=False,
    unknown="In forward: get the input, compute, send or take the loss, keep. In backward: take out, go back, send.",
)
