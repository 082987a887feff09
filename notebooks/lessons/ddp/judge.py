"""Judges the exercises of 05_ddp. `accumulate`, gradient accumulation, is in this file.

Handwritten DDP is judged in judge_own_ddp.py, the converted script in judge_script.py, and the diagnoses in clinic.py.
The ranks keep one gloo process group until they end.
"""

import functools
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from workshop_lib.exercises.judge import own_or_solution
from workshop_lib.exercises.network import batch, gradient_of, network
from workshop_lib.exercises.play import Edit, played

from lessons.ddp import process_group
from lessons.ddp.backward import Recorder, pytorch_ddp
from lessons.ddp.clinic import admit, diagnoses
from lessons.ddp.judge_own_ddp import NOTEBOOK, my_ddp
from lessons.ddp.judge_script import folder_for_scripts, own_or_finished, script

__all__ = ["accumulate", "admit", "diagnoses", "folder_for_scripts", "my_ddp", "own_or_finished", "script", "written"]

written = functools.partial(own_or_solution, notebook=NOTEBOOK)
K = 4  # micro-batches per step


def play_accumulate(accumulate: Callable, comm) -> Iterator[tuple]:
    """Accumulate the gradients of K micro-batches, and of a single one."""
    gradient, rounds, passes = _accumulated(accumulate, comm, K)
    yield "the gradients are those of the mean loss over all micro-batches of all ranks", gradient
    observed = f"the gradients went through {rounds:g} rounds of allreduces."
    yield f"{K} micro-batches take one round of allreduces", rounds, observed
    observed = "several micro-batches' activations were in memory at once."
    advice = "Give each micro-batch a forward pass of its own, and call `backward()` before the next one."
    yield "each micro-batch has a forward pass, and a backward pass right after it", passes, observed, advice
    gradient, rounds, _ = _accumulated(accumulate, comm, 1)
    advice = "the first is also the last, so it must communicate. Use `len(micro_batches)` for this and for the mean."
    yield "also when there is only one micro-batch", [gradient, rounds], "with one micro-batch it is wrong:", advice


def _accumulated(accumulate: Callable, comm, micro_batches: int) -> tuple[np.ndarray, float, list[str]]:
    """The gradient, how often all of it was allreduced, by DDP or not, and each forward and backward pass in order."""
    plain = network()
    model, _ = pytorch_ddp(plain)
    recorder = Recorder(plain)
    passes: list[str] = []

    def note_both(_module, _given, output: torch.Tensor) -> None:
        passes.append("forward")
        output.register_hook(lambda _: passes.append("backward"))

    plain.register_forward_hook(note_both)
    with recorder:
        accumulate(model, [batch(comm.rank, at) for at in range(micro_batches)], cross_entropy)
    recorder.settle()
    gradient = gradient_of(plain)
    return gradient, sum(message.values for message in recorder.messages) / gradient.size, passes


def _wrap_once() -> None:
    """Join the process group and create a first DDP, which loads much of PyTorch, before a check's clock starts."""
    process_group.join()
    DistributedDataParallel(network())


LOSS = "loss = loss_function(model(inputs), targets)"
accumulate = played(
    "accumulate",
    NOTEBOOK,
    play_accumulate,
    [
        Edit(
            "divide each loss by the number of micro-batches: theirs is a sum.", ("loss / len(micro_batches)", "loss")
        ),
        Edit(
            "run all but the last micro-batch inside `with model.no_sync():`, their forward passes too.",
            ("if last", "if True"),
        ),
        Edit(
            "the last micro-batch must run outside `no_sync`, both forward and backward, and through `model` itself.",
            ("if last", "if False"),
        ),
        Edit(
            "only the last micro-batch is in them: call `zero_grad` before the loop, or leave it to the caller.",
            (LOSS, f"model.zero_grad(); {LOSS}"),
        ),
    ],
    rounding=1e-9,
    in_place=True,
    ready=_wrap_once,
    grouped=process_group.alone,
    group_hint=process_group.GROUP_HINT,
    stuck="a rank waits for another's allreduce. All ranks must enter `no_sync` for the same micro-batches.",
    unknown="for each micro-batch: forward, divide the loss, `backward()`; for all but the last, inside `no_sync`.",
)
