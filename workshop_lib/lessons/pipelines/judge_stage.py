"""How 11b_pipelines checks `MyStage`: what a stage does with a micro-batch, forward and backward.

All stages run in one process, and a dictionary of arrays takes the place of MPI's messages. Receiving a message that
nobody sent raises an error at once, so nothing can hang.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from workshop_lib.judge.play import Edit, played
from workshop_lib.lessons.pipelines import orders as pipeline_orders
from workshop_lib.lessons.pipelines import pipeline
from workshop_lib.words import plural

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
    return TrainedStages(error, _gradients(parts), unread, most_kept, kept)


OWN_GRADIENT = (
    "this stage went back from ones, or from a sum. `y.backward(gradient)` takes the gradient that the next stage sent."
)
NO_RECEIVER = "the last stage has nobody to send activations to, and the first nobody to send a gradient to."
TAKE_OUT = "take it out when its backward begins: `self.kept.pop(i)`. Otherwise a step keeps everything to its end."


def play_stage(my_stage: Callable, comm) -> Iterator[tuple]:
    """Take one step with the class in each of CASES."""
    two, three, alone = cases = [_trained(my_stage, size, schedule) for size, schedule in CASES]
    error = next((seen.error for seen in cases if seen.error), "")
    yield "every operation runs to its end", error, f"{error.removesuffix('.')}."
    unread = two.unread + three.unread + alone.unread
    yield "every message is received", unread, f"nobody received {plural(unread, 'message')}.", OWN_GRADIENT
    for seen, text in (
        (two, "two stages have the gradients of one process"),
        (three, "so have three, with 1F1B"),
        (alone, "so has a single stage"),
    ):
        for stage, gradients in enumerate(seen.gradients):
            yield text, gradients, f"for the layers of stage {stage}"
    keeps = [*two.most_kept, *three.most_kept]
    advice = "keep what backward needs in `self.kept[i]`, so that everyone can see what's still alive."
    yield "`kept` holds what backward will need", min(keeps) > 0, "on some stage `kept` is always empty:", advice
    left = sum(seen.kept_at_the_end for seen in cases)
    yield "a backward takes it out", left, "after a step, `kept` isn't empty:", TAKE_OUT
    yield "so 1F1B keeps no more than it has to", three.most_kept, "with three stages", TAKE_OUT


GO_BACK = "y.backward(self.receive_gradient(i))"
SEND_BACK = "self.send_gradient(i, x.grad)"
MyStage = played(
    "MyStage",
    "11b_pipelines",
    play_stage,
    [
        Edit(
            "autograd only computes a gradient by the input if you ask for it: `x.requires_grad_()`, before the layers "
            "compute.",
            (".requires_grad_()", ""),
        ),
        Edit(
            f"they are {M} times too large: each micro-batch adds its own mean. Divide its loss by `self.m`.",
            (" / self.m", ""),
        ),
        Edit(
            "only the last stage's are right: the loss is divided by `self.m` once, and nothing else is.",
            (GO_BACK, "y.backward(self.receive_gradient(i) / self.m)"),
        ),
        Edit(OWN_GRADIENT, (GO_BACK, "y.backward(torch.ones_like(self.receive_gradient(i)))")),
        Edit(
            "the stage before needs the gradient by *its* output. That's your input's: send `x.grad`.",
            (GO_BACK, "gradient = self.receive_gradient(i)\n            y.backward(gradient)"),
            (SEND_BACK, "self.send_gradient(i, x.grad if self.last else gradient)"),
        ),
        Edit(
            "every stage but the first sends `x.grad` back, the last stage, too.",
            ("if not self.first:", "if not self.first and not self.last:"),
        ),
        Edit(NO_RECEIVER, ("else:\n            self.send_activations", "self.send_activations")),
        Edit(NO_RECEIVER, ("if not self.first:", "if True:")),
        Edit(
            "several micro-batches are under way at once. Keep what each backward needs under its number, in "
            "`kept[i]`.",
            ("self.kept[i]", "self.kept[0]"),
            ("self.kept.pop(i)", "self.kept.pop(0)"),
        ),
    ],
    communicates=False,
    unknown="In forward: get the input, compute, send or take the loss, keep. In backward: take out, go back, send.",
)
