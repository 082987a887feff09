"""Judges two exercises of 05_ddp: handwritten DDP with one message per gradient (`my_ddp`), and with buckets.

A function is observed twice. In a rehearsal, its messages go to a group of this rank alone, and the ranks compare what
they sent: ranks that would send different messages are caught before one waits for a message that never arrives. Then
the function trains.
"""

import time
from collections.abc import Callable, Generator, Iterator
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from workshop_lib.judge.network import batch, gradient_of, weights_of
from workshop_lib.judge.play import Edit, played
from workshop_lib.lessons.ddp.backward import Message, Recorder
from workshop_lib.lessons.ddp.process_group import alone, join

NOTEBOOK = "05_ddp"
STEPS = 3
LR = 0.1
LATE_S = 0.04  # the last rank starts each backward pass this late
PATIENCE_S = 0.5  # how long the last rank waits for the others' backward passes before its own
BUCKET_BYTES = 270
ROUNDING = 1e-12  # tolerance in float64, the same as in the equivalence tests


class _Network(nn.Module):
    """A network with three linear layers that are used and one that is not, which gets no gradients on any rank."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.used = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
        self.unused = nn.Linear(4, 4)
        self.double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.used(inputs)


VALUES = sum(p.numel() for p in _Network(0).used.parameters())
TENSORS = len(list(_Network(0).used.parameters()))
three_wide = partial(batch, width=3)
MOST_MESSAGES = 8 * VALUES // BUCKET_BYTES + 1  # all messages but the last hold at least BUCKET_BYTES


def _rehearsed(comm, function: Callable) -> list[Message]:
    """The messages of one step, which all go to this rank alone."""
    model = _Network(seed=comm.rank)
    with Recorder(model, alone()) as recorder:
        finish = function(model)
        recorder.clear()
        inputs, labels = three_wide(comm.rank, 0)
        cross_entropy(model(inputs), labels).backward()
        recorder.in_backward = False
        finish()
        recorder.settle()
    return recorder.messages


def _trained(comm, function: Callable) -> tuple[np.ndarray, bool, list[np.ndarray]]:
    """The weights after the call, whether a backward pass stood still, and the gradients after `finish`, by step."""
    model = _Network(seed=comm.rank)
    gradients = []
    with Recorder(model) as recorder:
        finish = function(model)
        start = weights_of(model)
        stood_still = False
        for step in range(STEPS):
            model.zero_grad()
            inputs, labels = three_wide(comm.rank, step)
            loss = cross_entropy(model(inputs), labels)
            recorder.clear()
            stood_still |= last_rank_late(comm, loss.backward)
            recorder.in_backward = False
            finish()
            gradients.append(gradient_of(model.used))
            recorder.settle()
            descend(model, LR)
            if any(comm.allgather(stood_still)):
                break
    return start, stood_still, gradients


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


def play_own_ddp(
    function: Callable, comm, sent_well: Callable[[list[Message]], Iterator[tuple]]
) -> Generator[tuple, None, int]:
    """Rehearse a step, and train; return the number of messages. sent_well: what must hold for one step's messages."""
    messages = _rehearsed(comm, function)
    observed = f"rank {comm.rank} sent {len(messages)} messages for {TENSORS} gradients."
    sizes = [message.values for message in messages]
    same = sizes == comm.bcast(sizes)
    yield "all ranks send the same messages in the same order", same, observed, SAME_MESSAGES
    for text, holds, advice in sent_well(messages):
        yield text, holds, observed, advice
    blocking = any(message.blocking for message in messages)
    yield "every message is sent asynchronously", blocking, BLOCKING
    start, stood_still, gradients = _trained(comm, function)
    yield "no hook waits for other ranks", stood_still, "the backward pass stood still until the last rank had sent."
    yield "all ranks start with the weights of rank 0", start, "before the first step"
    text = "`finish` leaves the gradients that one process has for all ranks' samples"
    # Only rank 0 tells mistakes apart: without a wait, what the others have depends on which messages have arrived.
    yield text, gradients[0] if comm.rank == 0 else True, "after the first backward pass"
    yield "also in the next steps", gradients, "", "Does `finish` empty your lists, ready for the next backward pass?"
    same = all(np.array_equal(each, comm.bcast(each)) for each in gradients)
    yield "they are the same on all ranks, to the last bit", same
    return len(messages)


def _one_each(messages: list[Message]) -> Iterator[tuple]:
    at_once = [message.ready for message in messages] == list(range(1, TENSORS + 1))
    yield "each gradient is sent as soon as it's ready, in a message of its own", at_once, IN_THE_HOOK
    yield "every gradient is sent once", sum(message.values for message in messages) == VALUES, IN_THE_HOOK


def _in_buckets(messages: list[Message]) -> Iterator[tuple]:
    sent = sum(message.values for message in messages)
    yield "every gradient is sent once", sent, f"There are {VALUES} numbers to send, and {sent} were sent."
    text = f"{VALUES * 8} bytes of gradients take at most {MOST_MESSAGES} messages of {BUCKET_BYTES} bytes or more"
    yield text, len(messages) <= MOST_MESSAGES, ""
    yield "the first leaves before the last gradient is ready", messages[0].ready < TENSORS, IN_THE_HOOK


SAME_MESSAGES = (
    "Every rank has to call every `dist.all_reduce` in the order in which the hooks run, and not inside an `if`."
)
IN_THE_HOOK = (
    "After `p.register_post_accumulate_grad_hook(f)`, `backward()` calls `f(p)` as soon as `p.grad` is ready: call "
    "`dist.all_reduce` there, and not in `finish`."
)
BLOCKING = "`dist.all_reduce` waits for all ranks, inside the hook."
UNUSED = (
    "a parameter that the network doesn't use has no gradient: its `p.grad` is None, and nothing has to be done about "
    "it. Divide in the hook, which runs only for gradients that exist."
)
STUCK = (
    "a rank waits for a message that another one never sends: is a collective inside an `if`, or `finish` not called?"
)
SEND = "dist.all_reduce(p.grad, async_op=True)"
FORGOT_TO_WAIT = Edit(
    "they hadn't arrived when `finish` returned: call `wait()` on every handle, and then write the mean into `p.grad`.",
    ("handle.wait()", "pass"),
)
NO_BROADCAST = Edit(
    "the ranks start with different weights. Send those of rank 0 first: `dist.broadcast(p.detach(), src=0)`.",
    ("dist.broadcast(p.detach(), src=0)", "pass"),
)
exercise = partial(
    played,
    notebook=NOTEBOOK,
    returns="`finish` itself, without calling it",
    rounding=ROUNDING,
    ready=join,
    stuck=STUCK,
    raised={"NoneType": UNUSED},
)


def play_my_ddp(my_ddp: Callable, comm) -> Iterator[tuple]:
    yield from play_own_ddp(my_ddp, comm, _one_each)


my_ddp = exercise(
    "my_ddp",
    play=play_my_ddp,
    edits=[
        Edit("pass `async_op=True`, and wait in `finish`.", (", async_op=True", "")),
        Edit("keep the handle, and call its `wait()` in `finish`.", (f"handles.append({SEND})", f"{SEND}.wait()")),
        Edit("that's the sum over the ranks: divide by `dist.get_world_size()`.", (" /= dist.get_world_size()", "")),
        FORGOT_TO_WAIT,
        NO_BROADCAST,
    ],
    unknown="in the hook, divide the gradient before you start its allreduce; in `finish`, only wait for every handle.",
)


def play_buckets(my_buckets: Callable, comm) -> Iterator[tuple]:
    return play_own_ddp(lambda model: my_buckets(model, BUCKET_BYTES), comm, _in_buckets)


my_buckets = exercise(
    "my_buckets",
    play=play_buckets,
    edits=[
        Edit("The last gradients never fill a bucket: `finish` has to send what is left.", ("if bucket:", "if False:")),
        Edit("Empty the bucket once it is sent.", ("bucket.clear()", "pass")),
        Edit("Go on collecting until the bucket holds at least `bucket_bytes` bytes.", (">= bucket_bytes", ">= 1")),
        Edit(
            "cut the message into parts again, and copy each into its `p.grad`.",
            ("p.grad.copy_(part.view_as(p))", "pass"),
        ),
        FORGOT_TO_WAIT,
    ],
    unknown="collect gradients in the hook, send a full bucket there, and let `finish` send, wait and copy back.",
)
