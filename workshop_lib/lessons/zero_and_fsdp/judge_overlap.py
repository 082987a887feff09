"""Judges two exercises of 06_zero_and_fsdp: stage 2 that overlaps messages, and stage 3 that looks ahead."""

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch.distributed as dist
from torch import nn

from workshop_lib.judge import Exercise, Property, close
from workshop_lib.judge.network import backward, batch, network, weights_of
from workshop_lib.lessons.ddp.judge_own_ddp import LATE_S, join
from workshop_lib.lessons.mpi_basics.counting import CountingComm
from workshop_lib.lessons.zero_and_fsdp.judge_stages import STEPS, load_optimizers, make_sgd
from workshop_lib.lessons.zero_and_fsdp.newer_names import give_newer_names

PARAMETERS = len(list(network().parameters()))
SCATTERS = ("reduce_scatter_single", "reduce_scatter_tensor", "all_reduce")


@functools.cache
def alone(size: int) -> list[np.ndarray]:
    """The weights of one process that trains with the global batch of all ranks, at the start and after each step."""
    model = network()
    optimizer = make_sgd(model.parameters())
    weights = [weights_of(model)]
    for step in range(STEPS):
        backward(model, [batch(rank, step) for rank in range(size)])
        optimizer.step()
        weights.append(weights_of(model))
    return weights


@dataclass
class OverlappedStep:
    """What one step did on one rank."""

    weights: np.ndarray
    sent: list[tuple[str, bool, bool]]  # a collective's name, whether it ran in the backward pass, whether it waited
    kept_whole: int  # how many parameters still had their whole gradient after the backward pass
    waited: bool  # whether the step waited for all collectives
    backward_s: float = field(compare=False)


class _Sending:
    """Records each call of the collectives that a learner may use, and whether somebody waits for it."""

    def __init__(self):
        self.in_backward = False
        self.sent: list[tuple[str, bool, bool]] = []
        self.handles: list[mock.Mock] = []  # each one records whether somebody has waited for it

    def recorded(self, name: str, send: Callable, *arguments, async_op: bool = False, **options):
        self.sent.append((name, self.in_backward, not async_op))
        handle = mock.Mock(wraps=send(*arguments, async_op=True, **options))
        self.handles.append(handle)
        if async_op:
            return handle
        handle.wait()
        return None

    def patched(self):
        send = {name: getattr(dist, "reduce_scatter_single" if "scatter" in name else name) for name in SCATTERS}
        recorded: dict[str, Any] = {name: functools.partial(self.recorded, name, send[name]) for name in SCATTERS}
        return mock.patch.multiple(dist, **recorded)


def ready() -> None:
    """Join the process group, and load the optimizers, which takes long."""
    give_newer_names()
    join()
    load_optimizers()


def observe_overlapped(comm, make: Callable) -> list[OverlappedStep]:
    """Train a few steps. Rank 1 starts its backward pass late, so a hook that waits for it shows."""
    model = network()
    sending = _Sending()
    zero = make(model, CountingComm(comm), make_sgd)
    steps = []
    with sending.patched():
        for step in range(STEPS):
            zero.optimizer.zero_grad()
            steps.append(_one_step(comm, model, zero, sending, step))
    return steps


def _one_step(comm, model: nn.Module, zero, sending: _Sending, step: int) -> OverlappedStep:
    comm.Barrier()
    if comm.rank == 1:
        time.sleep(LATE_S)
    sending.sent = []
    sending.handles = []
    sending.in_backward = True
    start_s = time.perf_counter()
    backward(model, [batch(comm.rank, step)])
    backward_s = time.perf_counter() - start_s
    sending.in_backward = False
    kept = sum(p.grad is not None for p in model.parameters())
    zero.step()
    waited = all(handle.wait.called for handle in sending.handles)
    for handle in sending.handles:
        handle.wait()  # a class that doesn't wait must not disturb the next step with its messages
    return OverlappedStep(weights_of(model), sending.sent, kept, waited, backward_s)


NOTHING_HINT = "nothing was sent. `dist.reduce_scatter_single(part, gradient, async_op=True)` belongs in `reduce`."
LATER_HINT = "it was sent after the backward pass, so nothing can overlap: start each reduce-scatter in `reduce`."
WHOLE_HINT = "an allreduce sends every shard to everyone, twice the bytes: `dist.reduce_scatter_single` is enough."
BLOCKING_HINT = "the collective waits for all ranks, inside the hook: pass `async_op=True`, and wait in `finish`."
WAITING_HINT = "the backward pass stood still until the other ranks had sent: call the handle's `wait()` in `finish`."
KEPT_HINT = "the whole gradients are still there after the backward pass. Drop each with `p.grad = None` in `reduce`."
FORGOT_HINT = "messages were still on their way when `finish` returned: call `wait()` on every handle."
SUM_HINT = "the gradient is the sum over the ranks, not the mean: divide by `self.comm.size`."
AGAIN_HINT = "the first step is right, the next one isn't: empty `self.pending` at the end of `finish`."
SHARE_HINT = "does `self.shards[p].grad` hold the part that arrived, divided by the number of ranks?"
STUCK = "every rank must start the same reduce-scatters in the same order, one for every parameter."


def overlapped_properties(ranks: list[list[OverlappedStep]]) -> Iterator[Property]:
    sent = [each for steps in ranks for step in steps for each in step.sent]
    yield Property("something is sent", bool(sent), NOTHING_HINT)
    yield Property("it's sent during the backward pass", all(in_backward for _, in_backward, _ in sent), LATER_HINT)
    scatters = all("scatter" in name for name, _, _ in sent)
    yield Property("it's a reduce-scatter", scatters, WHOLE_HINT)
    yield Property("each is started, and not waited for", not any(waited for *_, waited in sent), BLOCKING_HINT)
    # Rank 0 is never late itself. If its hooks wait for rank 1, it stands still in every backward pass.
    still = min(step.backward_s for step in ranks[0]) > LATE_S / 2
    yield Property("no hook waits for other ranks", not still, WAITING_HINT)
    first = ranks[0]
    once = all(len(step.sent) == PARAMETERS for steps in ranks for step in steps[:1])
    yield Property("one message for each parameter", once, STUCK)
    dropped = not any(step.kept_whole for step in first)
    yield Property("no whole gradient is left after the backward pass", dropped, KEPT_HINT)
    yield Property("`finish` waits until everything has arrived", all(step.waited for step in first), FORGOT_HINT)
    start, *right = alone(len(ranks))
    twice = close(start - first[0].weights, len(ranks) * (start - right[0]), 1e-6)
    text = "the first step is that of one process with the global batch"
    yield Property(text, close(first[0].weights, right[0]), SUM_HINT if twice else SHARE_HINT)
    yield Property(f"so are {STEPS} steps with momentum", close(first[-1].weights, right[-1]), AGAIN_HINT)


OverlappedZero2 = Exercise("OverlappedZero2", observe_overlapped, overlapped_properties, ready=ready, stuck=STUCK)

Event = tuple[str, int | None]  # "start", "wait" or "compute", and the number of a layer
LAYERS = (4, 1)
PASSES = 4  # forward and backward, twice


def observe_lookahead(comm, make: Callable) -> list[list[list[Event]]]:
    """The events of each pass, for networks with each number of layers in LAYERS."""
    return [_passes(make, layers) for layers in LAYERS]


def _passes(make: Callable, layers: int) -> list[list[Event]]:
    events: list[Event] = []
    under_way: set[int | None] = set()

    def start(layer: int | None) -> None:
        if layer not in under_way:
            under_way.add(layer)
            events.append(("start", layer))

    def wait(layer: int | None) -> None:
        under_way.discard(layer)
        events.append(("wait", layer))

    lookahead = make(start, wait)
    passes = []
    for number in range(PASSES):
        order = [*range(layers)][:: -1 if number % 2 else 1]
        for layer, following in zip(order, [*order[1:], None], strict=True):
            lookahead.enter(layer, following)
            events.append(("compute", layer))
        passes.append(events.copy())
        events.clear()
    return passes


LAST_HINT = "after the last layer there's nothing left to gather: `following` is None."
UNSTARTED_HINT = (
    "`enter` waited for a layer that nobody had started: start `layer` before you wait for it. "
    "Nobody else starts the first layer of a pass."
)
UNWAITED_HINT = "a layer computed before its weights were there: call `self.wait(layer)` before `enter` returns."
AGAIN_STARTED_HINT = "a layer was gathered twice: start it before you wait for it, and wait for it once."
NOT_AHEAD_HINT = "every layer is started only when it's needed, so it waits: start `following` before `enter` returns."
EARLY_WAIT_HINT = (
    "`enter` also waits for the following layer, so computing can't hide that wait: wait for it when its turn comes."
)


def lookahead_properties(observations: list[list[list[list[Event]]]]) -> Iterator[Property]:
    passes = [events for of_network in observations[0] for events in of_network]
    orders = [[number for name, number in events if name == "compute"] for events in passes]
    none = any(number is None for events in passes for _, number in events)
    yield Property("only layers are gathered", not none, LAST_HINT)

    def before(events: list[Event], first: Event, then: Event) -> bool:
        return first in events and events.index(first) < events.index(then)

    every = [(events, order, at) for events, order in zip(passes, orders, strict=True) for at in range(len(order))]
    waited = all(before(events, ("wait", order[at]), ("compute", order[at])) for events, order, at in every)
    yield Property("each layer is waited for before it computes", waited, UNWAITED_HINT)
    started = all(before(events, ("start", order[at]), ("wait", order[at])) for events, order, at in every)
    yield Property("each layer is started before it's waited for", started, UNSTARTED_HINT)
    pairs = [(events, order[at], order[at + 1]) for events, order, at in every if at + 1 < len(order)]
    ahead = all(before(events, ("start", following), ("compute", layer)) for events, layer, following in pairs)
    yield Property("the next layer is on its way while one computes", ahead, NOT_AHEAD_HINT)
    early = any(before(events, ("wait", following), ("compute", layer)) for events, layer, following in pairs)
    yield Property("and it isn't waited for before its turn", not early, EARLY_WAIT_HINT)
    calls = [events.count((name, order[at])) for events, order, at in every for name in ("start", "wait")]
    yield Property("exactly once in each pass", max(calls) == 1, AGAIN_STARTED_HINT)


Lookahead = Exercise("Lookahead", observe_lookahead, lookahead_properties, communicates=False)
