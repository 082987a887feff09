"""Judges an exercise of 05_ddp, `my_ddp`: handwritten DDP with one message per gradient.

The function trains, and its messages are recorded. Ranks that send different messages wait for each other until the
check's time is up.
"""

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from workshop_lib.exercises.network import batch, gradient_of, network, weights_of
from workshop_lib.exercises.play import Edit, played
from workshop_lib.words import plural

from lessons.ddp import process_group
from lessons.ddp.backward import Message, Recorder

NOTEBOOK = "05_ddp"
LR = 0.1
LATE_S = 0.04  # the last rank starts each backward pass this late
PATIENCE_S = 0.5  # how long the last rank waits for the others' backward passes before its own
ROUNDING = 1e-12  # tolerance in float64, the same as in the equivalence tests


def _network(seed: int) -> nn.Sequential:
    """A network with one more parameter, which it does not use, so that it gets no gradient on any rank."""
    model = nn.Sequential(network(seed), nn.Tanh(), nn.Linear(3, 3)).double()
    model.unused = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    return model


USED = [p for name, p in _network(0).named_parameters() if name != "unused"]
VALUES = sum(p.numel() for p in USED)
TENSORS = len(USED)


def last_rank_late(comm, backward: Callable[[], object]) -> bool:
    """Run the backward pass, on the last rank only after a delay; return whether the others had to wait for that rank.

    All ranks call this, and the last one returns the answer. The delay also shows who reads gradients too early.
    """
    is_last = comm.rank == comm.size - 1
    if not is_last:
        backward()
    others_done = comm.Ibarrier()
    waited = False
    if is_last:
        time.sleep(LATE_S)
        give_up_s = time.monotonic() + PATIENCE_S  # real time, also on ranks that emulate a machine
        while not others_done.Test() and not waited:
            waited = time.monotonic() > give_up_s
        backward()
    others_done.Wait()
    return waited


@torch.no_grad()
def descend(model: nn.Module, lr: float) -> None:
    """One step of plain SGD, without torch.optim, which takes seconds to load on fresh ranks."""
    for p in model.parameters():
        if p.grad is not None:
            p.sub_(lr * p.grad)


def play_own_ddp(function: Callable, comm) -> Iterator[tuple]:
    """Train three steps."""
    model = _network(seed=comm.rank)
    recorder = Recorder(model)
    finish = function(model)
    start = weights_of(model)

    def step(number: int) -> tuple[bool, int, np.ndarray]:
        """Whether the backward pass stood still, for how many messages `finish` waited, and the gradient after it."""
        model.zero_grad()
        inputs, labels = batch(comm.rank, number)
        loss = cross_entropy(model(inputs), labels)
        recorder.clear()
        with recorder:
            stood_still = last_rank_late(comm, loss.backward)
            finish()
            waited = sum(message.waits > 0 for message in recorder.messages)
            recorder.settle()
        gradient = gradient_of(model)
        descend(model, LR)
        return stood_still, waited, gradient

    stood_still, waited, gradient = step(0)
    of_first_step = recorder.messages
    waits = sum(message.waits for message in of_first_step)
    sent = _when_sent(comm.rank, of_first_step)
    at_once = [message.ready for message in of_first_step] == list(range(1, TENSORS + 1))
    yield "each gradient is sent as soon as it's ready, in a message of its own", at_once, sent, IN_THE_HOOK
    values = sum(message.values for message in of_first_step)
    carried = f"rank {comm.rank}'s messages carried {values} values, and all gradients together have {VALUES}."
    yield "every gradient is sent once", values == VALUES, carried, OWN_ARGUMENT
    yield "no hook waits for other ranks", stood_still, "the backward pass stood still until the last rank had sent."
    yield "all ranks start with the weights of rank 0", start, "before the first step", BROADCAST
    observed = f"`finish` waited for {waited} of {plural(len(recorder.messages), 'message')}."
    yield "`finish` waits for every message", waited == len(recorder.messages), observed
    text = "`finish` leaves the gradients that one process has for all ranks' samples"
    yield text, gradient, "after the first backward pass"
    advice = "Hooks stay for all steps, so register them in `my_ddp` alone. Does `finish` empty your lists?"
    later = [step(1)[-1], step(2)[-1]]
    sent = _when_sent(comm.rank, recorder.messages)
    yield "also in the next steps", later, f"in the third step, {sent}", advice
    again = sum(message.waits for message in of_first_step) - waits
    observed = f"in later steps, `finish` waited {plural(again, 'time')} for messages of the first:"
    advice = "empty your lists in `finish`, or memory and time grow with each step."
    yield "each step waits for its own messages only", again, observed, advice


def _when_sent(rank: int, messages: list[Message]) -> str:
    """How many allreduces this rank started, and when, as a sentence."""
    sent = f"rank {rank} started {plural(len(messages), 'allreduce')} for {TENSORS} gradients"
    ready = [message.ready for message in messages]
    if ready == list(range(TENSORS)):
        return f"{sent}, each just before the gradient was in `p.grad`."
    if ready and min(ready) == TENSORS:
        return f"{sent}, all of them after the last gradient was ready."
    return f"{sent}."


IN_THE_HOOK = (
    "Call `p.register_post_accumulate_grad_hook(f)` for every parameter. `backward()` then calls `f(p)` as soon as "
    "`p.grad` is ready, and `f` starts the allreduce."
)
OWN_ARGUMENT = (
    "In the hook, use its argument. By the time a hook runs, a loop's `p` is the last parameter, so all hooks would "
    "send the same gradient."
)
BROADCAST = (
    "In `my_ddp`, call `dist.broadcast(p.detach(), src=0)` for every parameter on every rank, and let it finish."
)
NO_ARGUMENT = "autograd calls your hook with the parameter, so the hook takes one argument."
UNUSED = (
    "is `p.grad` None? It is before the backward pass, so register the hook without calling it. It stays None for a "
    "parameter that the network doesn't use, so divide in the hook, which runs only for gradients that exist."
)
NO_HANDLE = "without `async_op=True`, `dist.all_reduce` waits for the sum, and returns None instead of a handle."
LOCAL = "an assignment in `finish` makes the name a local one. Empty the list itself, with `clear()`."
STUCK = (
    "a rank waits for a message that another one never sends: is a collective inside an `if`, or `finish` not called?"
)
SEND = "dist.all_reduce(p.grad, async_op=True)"
my_ddp = played(
    "my_ddp",
    NOTEBOOK,
    play_own_ddp,
    [
        Edit(
            "pass `async_op=True`, keep the handle, and call its `wait()` in `finish`.",
            (f"handles.append({SEND})", f"{SEND}.wait()"),
        ),
        Edit("that's the sum over the ranks: divide by `dist.get_world_size()`.", (" /= dist.get_world_size()", "")),
        Edit(
            "Call `wait()` on every handle before `finish` returns: only then have the sums arrived.",
            ("handle.wait()", "pass"),
        ),
        Edit(
            "the ranks start with different weights. Send those of rank 0 first: `dist.broadcast(p.detach(), src=0)`.",
            ("dist.broadcast(p.detach(), src=0)", "pass"),
        ),
    ],
    returns="`finish` itself, without calling it",
    rounding=ROUNDING,
    ready=process_group.join,
    grouped=process_group.alone,
    group_hint=process_group.GROUP_HINT,
    stuck=STUCK,
    raised={
        "attribute 'wait'": NO_HANDLE,
        "NoneType": UNUSED,
        "cannot access local variable": LOCAL,
        "takes 0 positional arguments": NO_ARGUMENT,
    },
    unknown="the hook divides and allreduces `p.grad` itself, not `p` and not a copy; `finish` waits for all handles.",
)
