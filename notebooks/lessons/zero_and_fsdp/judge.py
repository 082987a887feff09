"""Judges the exercises of 06_zero_and_fsdp: stages 1 and 2 of ZeRO, what each stage leaves on a rank, a matrix that its
owner computes, stage 2 that overlaps messages, and stage 3 that looks ahead."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from workshop_lib.exercises.judge import own_or_solution
from workshop_lib.exercises.network import backward, batch, network, weights_of
from workshop_lib.exercises.play import Edit, played
from workshop_lib.training import KINDS
from workshop_lib.training.collectives.counting import CountingComm
from workshop_lib.training.optimizers import orthogonal

from lessons.ddp import process_group
from lessons.ddp.judge_own_ddp import last_rank_late

NOTEBOOK = "06_zero_and_fsdp"
STEPS = 3
SENDS = ("reduce_scatter_single", "reduce_scatter_tensor", "all_reduce")
written = functools.partial(own_or_solution, notebook=NOTEBOOK)


def make_sgd(parameters: Iterable) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(parameters), lr=0.1, momentum=0.9)


def ready() -> None:
    """Join the process group, and create an optimizer: the first one takes long."""
    process_group.join()
    make_sgd(network().parameters())


def play_steps(make: Callable, comm, gradients_too: bool) -> Iterator[tuple]:
    """Train a few steps with the class, on the rank's own samples.

    gradients_too: whether the class shards the gradients, too. Each of its steps then has two backward passes.
    """
    model = network()
    passes = 2 if gradients_too else 1
    counting = CountingComm(comm)
    zero = make(model, counting, make_sgd)
    weights = []  # after each step
    held_bytes = in_backward_bytes = 0
    before = counting.bytes_sent
    for step in range(STEPS):
        zero.optimizer.zero_grad()  # gradients left over from the last step don't count
        model.zero_grad()
        sent = counting.bytes_sent
        for micro_batch in range(passes):
            inputs, labels = batch(comm.rank, passes * step + micro_batch)
            cross_entropy(model(inputs), labels).backward()
        in_backward_bytes += counting.bytes_sent - sent
        holding = {*model.parameters(), *(p for group in zero.optimizer.param_groups for p in group["params"])}
        held_bytes = sum(p.grad.nbytes for p in holding if p.grad is not None)
        zero.step()
        weights.append(weights_of(model))
    sent_bytes = (counting.bytes_sent - before) / STEPS

    text = "the first step is that of one process with the global batch"
    advice = "Does the shard have the mean gradient in its `.grad` before `self.optimizer.step()`?"
    yield text, weights[0], "after one step", ONLY_SHARDS if gradients_too else advice
    advice = "is the gradient of the step before still in a shard's `.grad`, or is the optimizer's state lost?"
    yield f"so are {STEPS} steps with momentum", weights[-1], f"after {STEPS} steps", advice
    counts = [p.numel() for p in model.parameters()]
    buffers = counts if gradients_too else [sum(counts)]
    shard_bytes = 8 * sum(-(-n // comm.size) for n in buffers)  # each buffer is padded
    if gradients_too:
        text = "the gradients are sent during the backward pass"
        yield text, in_backward_bytes > 0, "", "The reduce-scatter belongs in `reduce`, not in `step`."
        observed = f"after the backward pass a rank holds {held_bytes} bytes of gradients; its shard is {shard_bytes}."
        yield f"after the backward pass a rank holds 1/{comm.size} of the gradients", held_bytes, observed, ONLY_SHARDS
    states = [value for state in zero.optimizer.state.values() for value in state.values()]
    state_bytes = sum(value.nbytes for value in states if isinstance(value, torch.Tensor))
    observed = f"rank {comm.rank} holds {state_bytes} bytes of state, but its shard is {shard_bytes}."
    advice = "Make the optimizer for the shards, not for the model's parameters."
    yield f"a rank holds 1/{comm.size} of the optimizer's state", state_bytes, observed, advice
    due_bytes = (passes + 1) * (comm.size - 1) * shard_bytes  # each half of an allreduce (Patarasuk and Yuan 2009)
    observed = f"a rank sends {sent_bytes:.0f} bytes per step, and should send {due_bytes}."
    advice = "One reduce-scatter per backward pass and one allgather of the weights are enough."
    yield "a step sends no more bytes than reduce-scatters and one allgather", sent_bytes, observed, advice


ONLY_SHARDS = "Keep only the shard of each gradient, and drop the rest as soon as it is reduced."
REDUCE = "total = lesson.ring.reduce_scatter(self.comm, gradient.numpy())"
MEAN = "total / self.comm.size"
OWN_PART = "total = gradient.numpy()[lesson.ring.part(len(gradient), self.comm.rank, self.comm.size)]"
ADD = "mean if before is None else before + mean"
GATHER = "lesson.ring.allgather(self.comm, self.weights.numpy())"
EDITS = [
    Edit(
        "a part is updated from its own rank's samples alone. `lesson.ring.reduce_scatter` adds up the gradients.",
        (REDUCE, OWN_PART),
    ),
    Edit("the gradient is the sum over ranks, not the mean: divide by `self.comm.size`.", (MEAN, "total")),
]
OF_ONE = {
    "Zero1": [Edit("End the step with an allgather of the weights.", (GATHER, "pass"))],
    "Zero2": [
        Edit(
            "Only the last backward pass counts. Add its gradient to what the shard's `.grad` already holds.",
            (ADD, "mean"),
        ),
        Edit(
            "The whole gradient is still there. Drop it, `p.grad = None`, as soon as you have its shard.",
            ("p.grad = None", "pass"),
        ),
    ],
}
SAME_CALLS = "every rank must make the same calls in the same order, in the backward pass once for every parameter."
Zero1, Zero2 = (
    played(
        name,
        NOTEBOOK,
        functools.partial(play_steps, gradients_too=gradients_too),
        [*EDITS, *OF_ONE[name]],
        rounding=1e-9,  # all numbers are float64
        ready=ready,
        stuck=SAME_CALLS,
        raised={"truncate": SAME_CALLS},
    )
    for name, gradients_too in (("Zero1", False), ("Zero2", True))
)

# (parameters, ranks) for which `bytes_per_rank` is called in every stage.
MODELS = [(1_000, 2), (64, 8), (7_000, 1)]


def play_bytes(bytes_per_rank: Callable, comm) -> Iterator[tuple]:
    calls = [(stage, model, bytes_per_rank(*model, stage)) for stage in range(4) for model in MODELS]
    for kind in KINDS:
        for stage, (parameters, ranks), state in calls:
            text = f"{kind}: stage 0" if stage == 0 else f"{kind}: stages 1 to 3"
            yield text, state[kind], f"for {parameters} parameters, ranks={ranks}, in stage {stage}"


bytes_per_rank = played(
    "bytes_per_rank",
    NOTEBOOK,
    play_bytes,
    [
        Edit("that is the number of weights: each takes 4 bytes in fp32.", ('"parameters": 4', '"parameters": 1')),
        Edit("Adam keeps two numbers per weight, of 4 bytes each.", ('"optimizer": 8', '"optimizer": 4')),
        Edit("from stage 2 on, a rank holds only its shard of `gradients`.", ("stage >= 2", "False")),
        Edit("stage 2 doesn't divide `parameters` yet, so every rank holds all of it.", ("stage >= 3", "stage >= 2")),
    ],
    returns="the bytes of each kind",
    communicates=False,
)


def play_by_owner(by_owner: Callable, comm) -> Iterator[tuple]:
    """Two matrices with different owners. The rows of the second one don't divide evenly."""
    for rows, owner in ((4 * comm.size, 0), (4 * comm.size - 1, comm.size - 1)):
        matrix = torch.randn(rows, 3, generator=torch.Generator().manual_seed(rows), dtype=torch.float64)
        counted = mock.Mock(wraps=orthogonal)
        mine = by_owner(comm.Dup(), matrix.chunk(comm.size)[comm.rank], owner, counted)
        yield "each rank gets its rows of the orthogonal matrix", mine, f"with {rows} rows on {comm.size} ranks"
        observed = f"rank {comm.rank} called `orthogonal` {counted.call_count} times, and the owner is rank {owner}:"
        yield "the owner computes it, once", counted.call_count, observed, "compare `comm.rank` with `owner`."


by_owner = played(
    "by_owner",
    NOTEBOOK,
    play_by_owner,
    [
        Edit(
            "some rows of an orthogonal matrix differ from what `orthogonal` gives for these rows alone: gather first.",
            ("shards = comm.gather(shard, root=owner)", "return lesson.orthogonal(shard)"),
        ),
        Edit(
            "every rank computed the whole matrix: let only the owner do it.",
            ("comm.gather(shard, root=owner)", "comm.allgather(shard)"),
            ("comm.rank == owner", "shards"),
        ),
    ],
    returns="this rank's rows",
    stuck="all ranks must call the same collectives: is one of them inside the `if`?",
    unknown="gather the shards on the owner, and scatter the rows of its result, as many to each rank as it had.",
)


class _Sending:
    """Records each call of the collectives that a learner may use, and whether somebody waits for it."""

    def __init__(self):
        self.in_backward = False
        self.sent: list[tuple[bool, bool]] = []  # whether it's a reduce-scatter, and ran in the backward pass
        self.handles: list[mock.Mock] = []  # each one records whether somebody has waited for it

    def recorded(self, name: str, send: Callable, *arguments, async_op: bool = False, **options):
        self.sent.append((name != "all_reduce", self.in_backward))
        self.handles.append(mock.Mock(wraps=send(*arguments, async_op=True, **options)))
        if async_op:
            return self.handles[-1]
        self.handles[-1].wait()
        return None

    def patched(self):
        recorded: dict[str, Any] = {name: functools.partial(self.recorded, name, getattr(dist, name)) for name in SENDS}
        return mock.patch.multiple(dist, **recorded)


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
    sent = sending.sent[:parameters]
    yield "each gradient is sent in the backward pass, by a reduce-scatter of its own", sent, observed, IN_REDUCE
    observed = "the backward pass stood still until the last rank had sent."
    advice = "Pass `async_op=True`, and wait in `finish`."
    yield "each is started, and no hook waits for other ranks", stood_still, observed, advice
    yield "no whole gradient is left after the backward pass", kept_whole
    yield "`finish` waits until everything has arrived", waited
    yield "the first step is that of one process with the global batch", weights[0]
    advice = "Is `self.pending` empty at the end of `finish`?"
    yield f"so are {STEPS} steps with momentum", weights[-1], f"after {STEPS} steps", advice


IN_REDUCE = "Start one `dist.reduce_scatter_single(part, gradient, async_op=True)` in each call of `reduce`."
SEND = "dist.reduce_scatter_single(part, gradient, async_op=True)"
OverlappedZero2 = played(
    "OverlappedZero2",
    NOTEBOOK,
    play_overlapped,
    [
        Edit(
            "an allreduce sends every shard to everyone, twice the bytes: `dist.reduce_scatter_single` is enough.",
            (SEND, "dist.all_reduce(gradient, async_op=True)"),
        ),
        Edit(
            "the whole gradients are still there after the backward pass. Drop each with `p.grad = None` in `reduce`.",
            ("p.grad = None", "pass"),
        ),
        Edit(
            "messages were still on their way when `finish` returned: call `wait()` on every handle.",
            ("handle.wait()", "pass"),
        ),
    ],
    rounding=1e-9,  # all numbers are float64
    ready=ready,
    grouped=process_group.alone,
    stuck="every rank must start the same reduce-scatters in the same order, one for every parameter.",
    unknown="does `self.shards[p].grad` hold the part that arrived, divided by the number of ranks?",
)


def play_lookahead(make: Callable, comm) -> Iterator[tuple]:
    """Gather the layers of a network of four layers, and of one, forward and backward, twice."""
    for layers in (4, 1):
        events: list[tuple[str, Any]] = []  # "start", "wait" or "compute", and the number of a layer
        lookahead = make(
            lambda layer, to=events: to.append(("start", layer)), lambda layer, to=events: to.append(("wait", layer))
        )
        for number in range(4):
            events.clear()
            order = [*range(layers)][:: -1 if number % 2 else 1]
            for layer, following in zip(order, [*order[1:], None], strict=True):
                lookahead.enter(layer, following)
                events.append(("compute", layer))
            yield "only layers are gathered", {layer for _, layer in events} == set(order)
            for layer in order:
                calls = list(dict.fromkeys(name for name, of_layer in events if of_layer == layer))
                observed = f"layer {layer} of {layers}: {', '.join(calls)}."
                yield "each layer is started, then waited for, and then it computes", calls, observed
            for layer, following in zip(order, order[1:], strict=False):
                before = {name for name, of in events[: events.index(("compute", layer))] if of == following}
                observed = f"before layer {layer} computes, the next layer's calls are {sorted(before)}."
                yield "meanwhile, the next layer is on its way, and not waited for yet", sorted(before), observed


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
