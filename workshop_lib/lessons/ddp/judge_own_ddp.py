"""Judges two exercises of 05_ddp: handwritten DDP with one message per gradient (`my_ddp`), and with buckets.

A function is observed twice. In a rehearsal, its messages go to a group of this rank alone, and the ranks compare what
they sent: ranks that would send different messages are caught before one waits for a message that never arrives. Then
the function trains.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from workshop_lib.judge import Exercise, Property, close
from workshop_lib.judge.network import Batch, backward, batch, gradient_of, weights_of
from workshop_lib.lessons.ddp.backward import Message, Recorder
from workshop_lib.lessons.ddp.process_group import alone, join

STEPS = 3
LR = 0.1
LATE_S = 0.04  # rank 1 starts each backward pass this late, so a hook that waits for its messages shows
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
MOST_MESSAGES = 8 * VALUES // BUCKET_BYTES + 1  # all messages but the last hold at least BUCKET_BYTES


def _batch(rank: int, step: int) -> Batch:
    return batch(rank, step, width=3)


@dataclass
class OwnDdpStep:
    """One step on one rank: its gradients after `finish()`, the right ones, and those of this rank's samples alone."""

    gradient: np.ndarray
    mean: np.ndarray
    own: np.ndarray
    backward_s: float = field(compare=False)


@dataclass
class Observed:
    """What a function did on one rank. `steps` is empty if the rehearsal already shows what is wrong."""

    returned: str  # the type of the returned value, if that is not callable
    plan: list[Message]  # the messages of one step
    same_start: bool = False  # whether the weights after the call equal those of rank 0 before it
    steps: list[OwnDdpStep] = field(default_factory=list)


def observe_my_ddp(comm, function: Callable) -> Observed:
    returned, plan = _rehearsed(comm, function)
    plans = comm.allgather([message.values for message in plan])
    blocking = any(message.blocking for message in plan)
    if returned or blocking or any(sizes != plans[0] or sum(sizes) != VALUES for sizes in plans):
        return Observed(returned, plan)
    model = _Network(seed=comm.rank)
    alike = _Network(seed=0)
    with Recorder(model) as recorder:
        finish = function(model)
        seen = Observed(returned, plan, np.array_equal(weights_of(model), weights_of(alike)))
        for step in range(STEPS):
            seen.steps.append(_step(comm, model, alike, finish, recorder, step))
    return seen


def _rehearsed(comm, function: Callable) -> tuple[str, list[Message]]:
    """Run one step whose messages all go to this rank alone; return `Observed.returned` and the messages."""
    model = _Network(seed=comm.rank)
    with Recorder(model, alone()) as recorder:
        finish = function(model)
        if not callable(finish):
            return type(finish).__name__, []
        recorder.clear()
        inputs, labels = _batch(comm.rank, 0)
        cross_entropy(model(inputs), labels).backward()
        recorder.in_backward = False
        finish()
        recorder.settle()
    return "", recorder.messages


def _step(comm, model: _Network, alike: _Network, finish: Callable, recorder: Recorder, step: int) -> OwnDdpStep:
    """Train `model` for one step on all ranks, and `alike` for the same step here, with the samples of all ranks."""
    batches = [_batch(rank, step) for rank in range(comm.size)]
    own = backward(alike.used, [batches[comm.rank]])
    mean = backward(alike.used, batches)
    model.zero_grad()
    inputs, labels = batches[comm.rank]
    loss = cross_entropy(model(inputs), labels)
    comm.Barrier()
    if comm.rank == 1:
        time.sleep(LATE_S)
    recorder.clear()
    loss.backward()
    backward_s = time.perf_counter() - recorder.start_s
    recorder.in_backward = False
    finish()
    gradient = gradient_of(model.used)
    recorder.settle()
    comm.Barrier()
    descend(model, LR)
    descend(alike, LR)
    return OwnDdpStep(gradient, mean, own, backward_s)


@torch.no_grad()
def descend(model: nn.Module, lr: float) -> None:
    """One step of plain SGD, without torch.optim, which takes seconds to load on fresh ranks."""
    for p in model.parameters():
        if p.grad is not None:
            p.sub_(lr * p.grad)


FINISH_HINT = "return the function `finish` itself, without calling it: `return finish`."
ORDER_HINT = (
    "an allreduce adds up the first message of every rank, then the second. Send in the order in which hooks run."
)
SOME_HINT = "some ranks send, and others don't: every rank has to call every `dist.all_reduce`, not inside an `if`."
NOTHING_HINT = (
    "nothing was sent. After `p.register_post_accumulate_grad_hook(f)`, `backward()` calls `f(p)`: call "
    "`dist.all_reduce` there."
)
AFTER_HINT = (
    "everything was sent after the backward pass, so nothing can overlap: call `dist.all_reduce` in the hook, "
    "not in `finish`."
)
TOGETHER_HINT = "the hook holds messages back: send each gradient as soon as its own hook runs."
MORE_HINT = "there are more messages than gradients: register one hook per parameter, and send each gradient once."
BLOCKING_HINT = "`dist.all_reduce` waits for all ranks, inside the hook: pass `async_op=True`, and wait in `finish`."
WAITING_HINT = (
    "the backward pass stood still until the other ranks had sent: keep the handle, and call its `wait()` in `finish`."
)
BROADCAST_HINT = (
    "the ranks start with different weights. Send those of rank 0 first: `dist.broadcast(p.detach(), src=0)`."
)
FORGOT_HINT = (
    "they hadn't arrived when `finish` returned: call `wait()` on every handle, and then write the mean into `p.grad`."
)
SUM_HINT = "they are the sum over the ranks: divide by `dist.get_world_size()`."
TWICE_HINT = "they were divided by the number of ranks twice."
AGAIN_HINT = (
    "the first step is right, the next one isn't: empty your lists in `finish`, ready for the next backward pass."
)
PIECES_HINT = (
    "every number is there, but in the wrong place: cut the message in the order in which you joined the gradients."
)
MIXED_HINT = "gradients of different parameters were added up: join them in the same order on every rank."
LEFT_HINT = "the last gradients never fill a bucket, so nobody sent them: `finish` has to send what is left."
SMALL_HINT = "buckets leave too early: go on collecting until the bucket holds at least `bucket_bytes` bytes."
LARGE_HINT = "the first bucket left after the last gradient: send one as soon as it holds `bucket_bytes` bytes."


def _begin(observations: list[Observed]) -> Iterator[Property]:
    """Check what both exercises require before their messages are counted."""
    yield Property("it returns a function, `finish`", not any(seen.returned for seen in observations), FINISH_HINT)
    sizes = [[message.values for message in seen.plan] for seen in observations]
    yield Property("every rank sends something", any(sizes), NOTHING_HINT)
    hint = ORDER_HINT if all(sorted(each) == sorted(sizes[0]) for each in sizes) else SOME_HINT
    yield Property("all ranks send the same messages in the same order", all(s == sizes[0] for s in sizes), hint)


def _end(observations: list[Observed]) -> Iterator[Property]:
    """Check what both exercises require once their messages are right."""
    blocking = any(message.blocking for seen in observations for message in seen.plan)
    yield Property("every message is sent asynchronously", not blocking, BLOCKING_HINT)
    # Rank 0 is never late itself. If one of its backward passes takes long, rank 0 waited for rank 1 there.
    still = min(step.backward_s for step in observations[0].steps) > LATE_S / 2
    yield Property("no hook waits for other ranks", not still, WAITING_HINT)
    same = all(seen.same_start for seen in observations)
    yield Property("all ranks start with the weights of rank 0", same, BROADCAST_HINT)
    steps = [[seen.steps[at] for seen in observations] for at in range(STEPS)]
    right = [all(close(each.gradient, each.mean, ROUNDING) for each in ranks) for ranks in steps]
    hint = "" if all(right) else _mean_hint(steps[0], len(observations)) if not right[0] else AGAIN_HINT
    text = f"for {STEPS} steps, `finish` leaves the gradients that one process has for all ranks' samples"
    yield Property(text, all(right), hint)
    same = all(np.array_equal(each.gradient, ranks[0].gradient) for ranks in steps for each in ranks)
    yield Property("they are the same on all ranks, to the last bit", same)


def _mean_hint(ranks: list[OwnDdpStep], size: int) -> str:
    # Only rank 0 counts: without a wait, the gradients of the other ranks depend on which messages have arrived.
    first = ranks[0]
    known = [
        (size * first.mean, SUM_HINT),
        (first.mean / size, TWICE_HINT),
        (first.own, FORGOT_HINT),
        (first.own / size, FORGOT_HINT),
    ]
    for like, hint in known:
        if close(first.gradient, like, 1e-6):
            return hint
    if close(np.sort(first.gradient), np.sort(first.mean), 1e-6):
        return PIECES_HINT
    if np.isclose(first.gradient.sum(), first.mean.sum()):
        return MIXED_HINT
    return FORGOT_HINT if np.isclose(first.gradient, first.own).any() else ""


def my_ddp_properties(observations: list[Observed]) -> Iterator[Property]:
    yield from _begin(observations)
    plan = observations[0].plan
    fewer = f"{len(plan)} were sent for {TENSORS} gradients: register the hook on every parameter."
    each_once = len(plan) == TENSORS and sum(message.values for message in plan) == VALUES
    yield Property("one message per gradient", each_once, fewer if len(plan) < TENSORS else MORE_HINT)
    hint = TOGETHER_HINT if any(message.in_backward for message in plan) else AFTER_HINT
    at_once = [message.ready for message in plan] == list(range(1, TENSORS + 1))
    yield Property("each is sent as soon as its gradient is ready", at_once, hint)
    yield from _end(observations)


UNUSED_HINT = (
    "a parameter that the network doesn't use has no gradient: its `p.grad` is None, and nothing has to be done about "
    "it. Divide in the hook, which runs only for gradients that exist."
)
RAISED = {"NoneType": UNUSED_HINT}
UNKNOWN = "the hook divides the gradient and starts its allreduce; `finish` waits for every handle, and nothing else."
STUCK = (
    "a rank waits for a message that another one never sends: is a collective inside an `if`, or `finish` not called?"
)

my_ddp = Exercise("my_ddp", observe_my_ddp, my_ddp_properties, ready=join, stuck=STUCK, raised=RAISED, unknown=UNKNOWN)


def observe_buckets(comm, function: Callable) -> Observed:
    return observe_my_ddp(comm, lambda model: function(model, BUCKET_BYTES))


def bucket_properties(observations: list[Observed]) -> Iterator[Property]:
    yield from _begin(observations)
    plan = observations[0].plan
    sent = sum(message.values for message in plan)
    hint = LEFT_HINT if sent < VALUES else f"{sent} numbers were sent for {VALUES}: empty the bucket once it is sent."
    yield Property("every gradient is sent once", sent == VALUES, hint)
    text = f"{VALUES * 8} bytes of gradients take at most {MOST_MESSAGES} messages of {BUCKET_BYTES} bytes or more"
    yield Property(text, len(plan) <= MOST_MESSAGES, SMALL_HINT)
    hint = LARGE_HINT if any(message.in_backward for message in plan) else AFTER_HINT
    yield Property("the first leaves before the last gradient is ready", plan[0].ready < TENSORS, hint)
    yield from _end(observations)


my_buckets = Exercise(
    "my_buckets",
    observe_buckets,
    bucket_properties,
    ready=join,
    stuck=STUCK,
    raised=RAISED,
    unknown="collect gradients in the hook, send a full bucket there, and let `finish` send, wait and copy back.",
    score=lambda observations, passed: len(observations[0].plan) if passed else None,
)
