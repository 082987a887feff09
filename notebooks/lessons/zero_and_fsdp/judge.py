"""Judges the exercises of 06_zero_and_fsdp: stages 1 and 3 of ZeRO, stage 3 that looks ahead, and a matrix that its
owner computes."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from unittest import mock

import torch
from torch.nn.functional import cross_entropy

from workshop_lib.exercises.judge import own_or_solution
from workshop_lib.exercises.network import backward, batch, network, weights_of
from workshop_lib.exercises.play import Edit, played
from workshop_lib.training.collectives.counting import CountingComm
from workshop_lib.training.collectives.traffic import Traffic
from workshop_lib.training.memory import storage_bytes, tensors
from workshop_lib.training.optimizers import orthogonal

from lessons.ddp import process_group
from lessons.zero_and_fsdp import by_hand

NOTEBOOK = "06_zero_and_fsdp"
STEPS = 3
written = functools.partial(own_or_solution, notebook=NOTEBOOK)


def make_sgd(parameters: Iterable) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(parameters), lr=0.1, momentum=0.9)


def ready() -> None:
    """Join the process group, and create an optimizer: the first one takes long."""
    process_group.join()
    make_sgd(network().parameters())


def play_zero1(make: Callable, comm) -> Iterator[tuple]:
    """Train a few steps with the class, on the rank's own samples."""
    model = network()
    counting = CountingComm(comm)
    zero = make(model, counting, make_sgd)
    weights = []  # after each step
    before = counting.bytes_sent
    traffic = Traffic()
    for step in range(STEPS):
        zero.optimizer.zero_grad()  # gradients left over from the last step don't count
        backward(model, [batch(comm.rank, step)])
        with traffic:
            zero.step()
        weights.append(weights_of(model))
    by_allreduce = 2 * (comm.size - 1) / comm.size * traffic.handed_bytes["allreduce"]
    sent_bytes = (counting.bytes_sent - before + traffic.sharded_bytes_sent + by_allreduce) / STEPS

    advice = (
        "Does the shard have the mean gradient in its `.grad` before `self.optimizer.step()`, and does an allgather "
    )
    advice += "of `self.weights` come last?"
    yield FIRST_STEP, weights[0], "after one step", advice
    advice = "is the gradient of the step before still in a shard's `.grad`, or is the optimizer's state lost?"
    yield ALL_STEPS, weights[-1], f"after {STEPS} steps", advice
    shard_bytes = 8 * -(-len(weights[0]) // comm.size)  # padded
    states = [value for state in zero.optimizer.state.values() for value in state.values()]
    state_bytes = sum(value.nbytes for value in states if isinstance(value, torch.Tensor))
    observed = f"rank {comm.rank} holds {state_bytes} bytes of state, but its shard is {shard_bytes}."
    advice = "Make the optimizer for the shards, not for the model's parameters."
    yield f"a rank holds 1/{comm.size} of the optimizer's state", state_bytes, observed, advice
    due_bytes = 2 * (comm.size - 1) * shard_bytes  # as an allreduce (Patarasuk and Yuan 2009)
    observed = f"a rank sends {sent_bytes:.0f} bytes per step, and {due_bytes} are enough."
    advice = "One reduce-scatter of the gradients and one allgather of the weights are enough."
    yield "a step sends no more bytes than an allreduce", max(sent_bytes, due_bytes), observed, advice


FIRST_STEP = "the first step is that of one process with the global batch"
ALL_STEPS = f"so are {STEPS} steps with momentum"
REDUCE = "total = lesson.ring.reduce_scatter(self.comm, gradient.numpy())"
MEAN = "total / self.comm.size"
OWN_PART = "total = gradient.numpy()[lesson.ring.part(len(gradient), self.comm.rank, self.comm.size)]"
GATHER = "lesson.ring.allgather(self.comm, self.weights.numpy())"
SAME_CALLS = "every rank must make the same calls in the same order."
Zero1 = played(
    "Zero1",
    NOTEBOOK,
    play_zero1,
    [
        Edit(
            "a part is updated from its own rank's samples alone. `lesson.ring.reduce_scatter` adds up the gradients.",
            (REDUCE, OWN_PART),
        ),
        Edit("the gradient is the sum over ranks, not the mean: divide by `self.comm.size`.", (MEAN, "total")),
        Edit("End the step with an allgather of the weights.", (GATHER, "pass")),
    ],
    rounding=1e-9,  # all numbers are float64
    ready=ready,
    grouped=process_group.alone,
    stuck=SAME_CALLS,
    raised={
        "truncate": SAME_CALLS,
        "has no attribute 'copy'": "`lesson.ring` takes NumPy arrays: `gradient.numpy()`.",
        "to be a Tensor": "a gradient is a tensor: `torch.from_numpy(array)`.",
        "float vs. double": "the check trains in float64: `torch.empty_like(self.shard)` has the type of the weights.",
    },
)


def shards_in_place(weights: Sequence[torch.Tensor], shards: Sequence[torch.Tensor]) -> list[int] | None:
    """The ranks whose shards are where they belong in a layer's weights. None if the weights aren't in memory."""
    if not storage_bytes(weights):
        return None
    flat = torch.cat([each.flatten() for each in weights])
    right = torch.cat(list(shards))[: len(flat)]
    parts = zip(flat.split(len(shards[0])), right.split(len(shards[0])), strict=True)
    return [rank for rank, (part, shard) in enumerate(parts) if torch.equal(part, shard)]


PLAYS = itertools.count()  # each has other numbers, so memory that nobody wrote never holds the right ones


def play_zero3(make: Callable, comm) -> Iterator[tuple]:
    """Gather and drop every layer twice, with other shards the second time, and then train a few steps."""
    model = network().float()
    counting = by_hand.CountingAllgathers(comm)
    zero = make(model, counting, make_sgd)
    recorder = by_hand.LayerRecorder(zero)
    layers = list(zero.weights)
    scale = 2.0 ** (1 + next(PLAYS) % 30)
    with torch.no_grad():
        for shard in zero.shards.values():
            shard.mul_(scale)
    # Autograd keeps such views for the backward pass. So weights count only if they are in the memory of before.
    views = {layer: [p.detach() for p in zero.parameters[layer]] for layer in layers}

    def gathered(text: str) -> Iterator[tuple]:
        for number, layer in enumerate(layers, 1):
            zero.gather(layer)
            of_ranks = shards_in_place(views[layer], comm.allgather(zero.shards[layer].detach()))
            has = "no memory" if of_ranks is None else f"the shards of these ranks in place: {of_ranks}"
            observed = f"after `gather`, layer {number} on rank {comm.rank} has {has}."
            yield text, of_ranks, observed, ADVICE[text]

    def dropped() -> list[int]:
        """The bytes of each layer's weights that are left."""
        for layer in layers:
            zero.drop(layer)
        return recorder.spans[-1].alive_bytes

    yield from gathered(WHOLE)
    alive = sum(map(bool, recorder.spans[0].alive_bytes))
    yield OTHERS, alive, f"after one call of `gather`, {alive} layers are in memory.", ADVICE[OTHERS]
    left = dropped()
    yield DROPS, left, f"bytes that are left of each layer after `drop`: {left}.", ADVICE[DROPS]
    shard_bytes = [storage_bytes([shard]) for shard in zero.shards.values()]
    yield KEEPS_SHARDS, shard_bytes, "after `drop`, the memory of a shard is gone.", ADVICE[KEEPS_SHARDS]
    with torch.no_grad():
        for shard in zero.shards.values():
            shard.mul_(2 / scale)  # an optimizer's step
    yield from gathered(WHOLE_AGAIN)
    dropped()
    kept = storage_bytes(tensors(vars(zero))) - sum(shard_bytes)
    observed = f"after `drop`, the class still keeps {kept} bytes in its attributes, besides the shards."
    yield KEEPS_NOTHING, kept < comm.size * min(shard_bytes), observed, ADVICE[KEEPS_NOTHING]

    recorder.clear()
    before = counting.bytes_sent
    weights = []  # after each step
    with Traffic() as traffic:
        for step in range(STEPS):
            for micro_batch in range(2):
                inputs, labels = batch(comm.rank, 2 * step + micro_batch)
                cross_entropy(model(inputs.float()), labels).backward()
            zero.step()
            weights.append(torch.cat(comm.allgather(torch.cat(list(zero.shards.values())).detach())))
    most = max(sum(map(bool, span.alive_bytes)) for span in recorder.spans)
    yield "in training, at most one layer's weights are in memory", most, f"{most} layers are in memory at once."
    yield FIRST_STEP, weights[0], "after one step"
    yield ALL_STEPS, weights[-1], f"after {STEPS} steps"
    sent_bytes = (counting.bytes_sent - before + traffic.sharded_bytes_sent) / (2 * STEPS)
    due_bytes = 3 * (comm.size - 1) * sum(shard.nbytes for shard in zero.shards.values())
    observed = f"a rank sends {sent_bytes:.0f} bytes, and {due_bytes} are enough."
    advice = "`gather` needs one allgather of the layer's weights, with the same type of numbers."
    text = "both passes send no more bytes than a reduce-scatter and two allgathers"
    yield text, max(sent_bytes, due_bytes), observed, advice


WHOLE = "`gather` brings a layer's whole weights into the memory that the layer uses"
WHOLE_AGAIN = "`gather` takes the shards as they are after an optimizer's step"
DROPS = "`drop` frees this memory"
KEEPS_SHARDS = "`drop` keeps this rank's shard"
KEEPS_NOTHING = "after `drop`, nothing but shards is in memory"
OTHERS = "`gather` leaves the other layers alone"
ADVICE = {
    WHOLE: "put this rank's shard at its place in a new array, fill in the others' by an allgather, and then fill "
    "`self.weights[layer]`.",
    WHOLE_AGAIN: "The shards have changed since the last `gather`, so the ranks must send them again each time.",
    DROPS: "The layer's parameters are views of `self.weights[layer]`, so its memory stays until you free it: "
    "`lesson.by_hand.free(self.weights[layer])`.",
    KEEPS_SHARDS: "No other rank has this shard: free `self.weights[layer]` alone.",
    KEEPS_NOTHING: "A copy of whole weights takes as much memory as the weights. Let it go when `gather` returns.",
    OTHERS: "Each call of `gather` brings in the layer that it's called for, and no other.",
}
RAISED = {
    "not resizable": "memory that `numpy()` has lent can't be freed any more. Gather into a new array, and free "
    "`self.weights[layer]`, of which nobody has asked for `numpy()`.",
    "SIGSEGV": "Python crashes if it reads or writes an array that has been freed. First give `self.weights[layer]` "
    "its memory back: `lesson.by_hand.fill(self.weights[layer], whole)`. The new ranks know nothing until you run the "
    "cells above with `%%ranks` or `team.push` again.",
    "out of bounds for storage of size 0": "this array has been freed. `lesson.by_hand.fill` gives it new memory.",
    "NoneType": "`lesson.ring.allgather` fills its array in place, and returns nothing.",
    "requires grad": "`self.shards[layer]` is a parameter, and `self.shards[layer].detach()` its numbers alone.",
    "must match the size": "the layer's array is as long as the shards of all ranks together: gather into an array of "
    "this length.",
    "has no allgather": "use `lesson.ring.allgather(self.comm, array)`, which fills in the others' parts.",
}
GATHER_ALL = """def gather(self, layer):
        for each in self.weights:
            self.gather_one(each)

    def gather_one(self, layer):"""
PLACE = "len(whole), self.comm.rank, self.comm.size"
SEND_SHARDS = "lesson.ring.allgather(self.comm, whole.numpy())"
FILL = "lesson.by_hand.fill(self.weights[layer], whole)"
FREE = "lesson.by_hand.free(self.weights[layer])"
Zero3 = played(
    "Zero3",
    NOTEBOOK,
    play_zero3,
    [
        Edit(
            "each rank puts its shard at a place of its own: `lesson.ring.part` takes the rank.",
            (PLACE, "len(whole), 0, self.comm.size"),
        ),
        Edit(
            "the other ranks' shards are missing: `lesson.ring.allgather` fills them in.",
            (SEND_SHARDS, "whole.numpy()"),
        ),
        Edit(
            "The layer's parameters are views of `self.weights[layer]`, which has no memory yet. A new array doesn't "
            "reach them. Give this one memory and values: `lesson.by_hand.fill(self.weights[layer], whole)`.",
            (FILL, "self.weights[layer] = whole"),
        ),
        Edit(ADVICE[DROPS], (FREE, "self.weights[layer] = None")),
        Edit(
            "`gather` brings in more than the layer that it was called for.", ("def gather(self, layer):", GATHER_ALL)
        ),
    ],
    ready=ready,
    grouped=process_group.alone,
    stuck=SAME_CALLS,
    raised=RAISED,
    timeout_s=10.0,
    unknown="does `gather` fill `self.weights[layer]`, and `drop` free it, each for this layer alone?",
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


def passes_of(make: Callable, layers: int) -> Iterator[tuple[list[int], list[tuple]]]:
    """Gather the layers of a network forward and backward, twice. Each pass: its layers in order, and its events.

    An event is "start", "wait" or "compute", and the number of a layer.
    """
    events: list[tuple] = []
    lookahead = make(lambda layer: events.append(("start", layer)), lambda layer: events.append(("wait", layer)))
    forward = list(range(layers))
    for order in (forward, forward[::-1]) * 2:
        events.clear()
        for layer, following in zip(order, [*order[1:], None], strict=True):
            lookahead.enter(layer, following)
            events.append(("compute", layer))
        yield order, list(events)


def play_lookahead(make: Callable, comm) -> Iterator[tuple]:
    """Gather the layers of a network of four layers, and of one."""
    passes = [*passes_of(make, 4), *passes_of(make, 1)]
    for order, events in passes:
        yield "only layers are gathered", {layer for _, layer in events} == set(order)
    for order, events in passes:
        for layer in order:
            of_layer = list(dict.fromkeys(name for name, of in events if of == layer))
            observed = f"layer {layer} of {len(order)}: {', '.join(of_layer)}."
            yield "each layer is started, then waited for, and then it computes", of_layer, observed
    for order, events in passes:
        for layer, following in itertools.pairwise(order):
            before = sorted({name for name, of in events[: events.index(("compute", layer))] if of == following})
            observed = f"before layer {layer} computes, the next layer's calls are {before}."
            yield "meanwhile, the next layer is on its way, and not waited for yet", before, observed


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
