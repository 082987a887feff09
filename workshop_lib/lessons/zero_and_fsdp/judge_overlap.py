"""Judges two exercises of 06_zero_and_fsdp: stage 2 that overlaps messages, and stage 3 that looks ahead."""

import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch.distributed as dist

from workshop_lib.collectives.counting import CountingComm
from workshop_lib.judge.network import backward, batch, network, weights_of
from workshop_lib.judge.play import Edit, played
from workshop_lib.lessons.ddp.judge_own_ddp import last_rank_late
from workshop_lib.lessons.ddp.process_group import join
from workshop_lib.lessons.zero_and_fsdp.judge_stages import NOTEBOOK, STEPS, load_optimizers, make_sgd
from workshop_lib.lessons.zero_and_fsdp.newer_names import give_newer_names

SCATTERS = ("reduce_scatter_single", "reduce_scatter_tensor", "all_reduce")


class _Sending:
    """Records each call of the collectives that a learner may use, and whether somebody waits for it."""

    def __init__(self):
        self.in_backward = False
        self.sent: list[tuple[str, bool, bool]] = []  # a collective's name, whether it ran in the backward pass, waited
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


def play_overlapped(make: Callable, comm) -> Iterator[tuple]:
    """Train a few steps. The last rank starts its backward pass late, so a hook that waits for it shows."""
    model = network()
    sending = _Sending()
    zero = make(model, CountingComm(comm), make_sgd)
    weights = []
    stood_still = False
    with sending.patched():
        for step in range(STEPS):
            zero.optimizer.zero_grad()
            sending.in_backward = True
            stood_still |= last_rank_late(comm, functools.partial(backward, model, [batch(comm.rank, step)]))
            sending.in_backward = False
            kept_whole = sum(p.grad is not None for p in model.parameters())
            zero.step()
            waited = all(handle.wait.called for handle in sending.handles)
            for handle in sending.handles:
                handle.wait()  # a class that doesn't wait must not disturb the next step with its messages
            weights.append(weights_of(model))
            if any(comm.allgather(stood_still)):
                break
    parameters = len(list(model.parameters()))
    observed = f"rank {comm.rank} sent {len(sending.sent)} messages for {parameters} parameters in {STEPS} steps."
    sent = [("scatter" in name, in_backward) for name, in_backward, _ in sending.sent[:parameters]]
    yield "each gradient is sent in the backward pass, by a reduce-scatter of its own", sent, observed, IN_REDUCE
    blocking = any(blocking for *_, blocking in sending.sent)
    observed = "the collective waits for all ranks, inside the hook:"
    yield "each is started, and not waited for", blocking, observed, "pass `async_op=True`, and wait in `finish`."
    yield "no hook waits for other ranks", stood_still, "the backward pass stood still until the last rank had sent."
    yield "no whole gradient is left after the backward pass", kept_whole
    yield "`finish` waits until everything has arrived", waited
    yield "the first step is that of one process with the global batch", weights[0]
    advice = "Is `self.pending` empty at the end of `finish`?"
    yield f"so are {STEPS} steps with momentum", weights[-1], f"after {STEPS} steps", advice


IN_REDUCE = "Start one `dist.reduce_scatter_single(part, gradient, async_op=True)` in each call of `reduce`."
SEND = "dist.reduce_scatter_single(part, gradient, async_op=True)"
APPEND = "self.pending.append((p, part, gradient, handle))"
OverlappedZero2 = played(
    "OverlappedZero2",
    NOTEBOOK,
    play_overlapped,
    [
        Edit(
            "an allreduce sends every shard to everyone, twice the bytes: `dist.reduce_scatter_single` is enough.",
            (SEND, "dist.all_reduce(gradient, async_op=True)"),
        ),
        Edit("call the handle's `wait()` in `finish`.", (APPEND, f"handle.wait()\n        {APPEND}")),
        Edit(
            "the whole gradients are still there after the backward pass. Drop each with `p.grad = None` in `reduce`.",
            ("p.grad = None", "pass"),
        ),
        Edit(
            "messages were still on their way when `finish` returned: call `wait()` on every handle.",
            ("handle.wait()", "pass"),
        ),
        Edit(
            "the gradient is the sum over the ranks, not the mean: divide by `self.comm.size`.",
            (" / self.comm.size", ""),
        ),
    ],
    rounding=1e-9,  # all numbers are float64
    ready=ready,
    stuck="every rank must start the same reduce-scatters in the same order, one for every parameter.",
    unknown="does `self.shards[p].grad` hold the part that arrived, divided by the number of ranks?",
)

Event = tuple[str, int | None]  # "start", "wait" or "compute", and the number of a layer
PASSES = 4  # forward and backward, twice


def passes(make: Callable, layers: int) -> Iterator[tuple[list[int], list[Event]]]:
    """The order in which the layers compute in each pass, and the events of the pass."""
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
    for number in range(PASSES):
        events.clear()
        order = [*range(layers)][:: -1 if number % 2 else 1]
        for layer, following in zip(order, [*order[1:], None], strict=True):
            lookahead.enter(layer, following)
            events.append(("compute", layer))
        yield order, events.copy()


def play_lookahead(make: Callable, comm) -> Iterator[tuple]:
    """Gather the layers of a network of four layers, and of one."""
    by_pass = [_holds(*each) for layers in (4, 1) for each in passes(make, layers)]
    for text in by_pass[0]:
        yield text, all(holds[text] for holds in by_pass)


def _holds(order: list[int], events: list[Event]) -> dict[str, bool]:
    """What must hold in a pass, and whether it does."""

    def before(first: Event, then: Event) -> bool:
        return first in events and then in events and events.index(first) < events.index(then)

    pairs = list(zip(order, order[1:], strict=False))
    return {
        "only layers are gathered": {layer for _, layer in events} == set(order),
        "each layer is waited for before it computes": all(before(("wait", n), ("compute", n)) for n in order),
        "each layer is started before it's waited for": all(before(("start", n), ("wait", n)) for n in order),
        "the next layer is on its way while one computes": all(
            before(("start", following), ("compute", layer)) for layer, following in pairs
        ),
        "and it isn't waited for before its turn": not any(
            before(("wait", following), ("compute", layer)) for layer, following in pairs
        ),
        "each is started and waited for once in each pass": len(events) == 3 * len(order),
    }


IF_MORE = "if following is not None:"
Lookahead = played(
    "Lookahead",
    NOTEBOOK,
    play_lookahead,
    [
        Edit("after the last layer there's nothing left to gather: `following` is None.", (IF_MORE, "if True:")),
        Edit(
            "`enter` waited for a layer that nobody had started: start `layer` before you wait for it. "
            "Nobody else starts the first layer of a pass.",
            ("self.start(layer)", "pass"),
        ),
        Edit(
            "a layer computed before its weights were there: call `self.wait(layer)` before `enter` returns.",
            ("self.wait(layer)", "pass"),
        ),
        Edit(
            "every layer is started only when it's needed, so it waits: start `following` before `enter` returns.",
            (IF_MORE, "if False:"),
        ),
        Edit(
            "`enter` also waits for the following layer, so computing can't hide that wait: wait for it when its turn "
            "comes.",
            ("self.start(following)", "self.start(following); self.wait(following)"),
        ),
    ],
    communicates=False,
    unknown="start `layer` and `following`, and wait for `layer`, each of them once.",
)
