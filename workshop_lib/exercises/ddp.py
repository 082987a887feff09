"""The exercises of 05_ddp. The ranks keep one gloo process group for their life."""

import contextlib
import functools
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from workshop_lib.exercises import ENDLESS_HINT, Exercise, Mistake, Property, close, shown
from workshop_lib.training import rendezvous
from workshop_lib.training import world as worlds

K, SAMPLES = 4, 5  # micro-batches, and samples in each
LATE_S = 0.06  # by which rank 1 comes later to a step: who waits for an allreduce waits that long
SHARED = [(n, size) for n in (10, 103, 8, 1) for size in (1, 2, 3, 4)]  # samples, ranks
EPOCHS = (1, 2, 3)


def join() -> None:
    """Join the process group; PyTorch is imported by then, so that an exercise itself is quick."""
    rendezvous.join_process_group(worlds.detect(), torch.device("cpu"))
    _alone()


@functools.cache
def _alone() -> dist.ProcessGroup:
    """A group of this rank alone. All ranks call it, the first time."""
    return [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]


def _network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def _samples(rank: int, k: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The k micro-batches of a rank: float64 [SAMPLES, 6] and labels int64 [SAMPLES]."""
    random = torch.Generator().manual_seed(100 + rank)
    return [
        (
            torch.randn(SAMPLES, 6, generator=random, dtype=torch.float64) * (1 + rank),
            torch.randint(3, (SAMPLES,), generator=random),
        )
        for _ in range(k)
    ]


def _gradient(model: nn.Module) -> np.ndarray | None:
    """All gradients in one vector; None when one is missing."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if len(gradients) < len(list(model.parameters())):
        return None
    return torch.cat([gradient.flatten() for gradient in gradients]).numpy().copy()


def _gradient_of(micro_batches: Sequence) -> np.ndarray | None:
    """The gradient of the mean loss over all samples in these micro-batches, on one process."""
    model = _network()
    inputs, labels = (torch.cat(column) for column in zip(*micro_batches, strict=True))
    cross_entropy(model(inputs), labels).backward()
    return _gradient(model)


class Event(NamedTuple):
    """A forward or backward of the network: whether DDP was set to communicate, and for how many samples."""

    kind: str
    synced: bool
    samples: int


@dataclass(frozen=True)
class Accumulated:
    """What `accumulate` did on one rank with some micro-batches."""

    gradient: np.ndarray | None
    expected: np.ndarray | None
    allreduces: int
    events: list[Event]


def observe_accumulate(comm, function: Callable) -> list[Accumulated]:
    """With K micro-batches, and with a single one."""
    join()
    return [_accumulated(comm, function, k) for k in (K, 1)]


def _accumulated(comm, function: Callable, k: int) -> Accumulated:
    model = DistributedDataParallel(_network())
    allreduces: list[int] = []
    events: list[Event] = []

    def count(group, bucket):
        allreduces.append(bucket.index())
        return default_hooks.allreduce_hook(group, bucket)

    def record(_, inputs, output):
        events.append(Event("forward", model.require_backward_grad_sync, len(inputs[0])))
        if output.requires_grad:
            output.register_hook(
                lambda _: events.append(Event("backward", model.require_backward_grad_sync, len(inputs[0])))
            )

    model.register_comm_hook(dist.group.WORLD, count)
    model.module.register_forward_hook(record)
    function(model, _samples(comm.rank, k), cross_entropy)
    of_all = [batch for rank in range(comm.size) for batch in _samples(rank, k)]
    return Accumulated(_gradient(model.module), _gradient_of(of_all), len(allreduces), events)


def accumulate_properties(observations: list[list[Accumulated]]) -> Iterator[Property]:
    several, single = zip(*observations, strict=True)
    first = several[0]
    forwards = [event.synced for event in first.events if event.kind == "forward"]
    backwards = [event.synced for event in first.events if event.kind == "backward"]
    yield Property("every parameter has a gradient", all(seen.gradient is not None for seen in several), evidence=())
    same = all(np.array_equal(seen.gradient, first.gradient) for seen in several)
    synced_last = (any(seen.allreduces for seen in several), forwards[-1:], backwards[-1:])
    yield Property("the ranks hold the same gradients", same, evidence=synced_last)
    right = close(first.gradient, first.expected)
    yield Property(
        "they are those of the mean loss over all micro-batches of all ranks", right, evidence=first.gradient
    )
    once = max(seen.allreduces for seen in several) == 1
    synced = (all(forwards), all(backwards))
    yield Property(f"{K} micro-batches take one round of allreduces", once, evidence=synced)
    most = max(event.samples for event in first.events)
    yield Property("no forward sees more than one micro-batch", most == SAMPLES, evidence=())
    order = [event.kind for event in first.events]
    alternate = order == ["forward", "backward"] * K
    yield Property("each backward comes before the next forward", alternate, evidence=order[:2])
    right = all(close(seen.gradient, seen.expected) and seen.allreduces == 1 for seen in single)
    yield Property("also when there is only one micro-batch", right, evidence=())


def _is_last(i: int, k: int) -> bool:
    return i == k - 1


def _accumulate(
    forward: Callable[[int, int], bool] = _is_last,
    backward: Callable[[int, int], bool] | None = None,
    scale: Callable[[int], float] = lambda k: 1 / k,
    emptied: bool = False,
    network: Callable[[Any], Any] = lambda model: model,
) -> Callable:
    """A wrong `accumulate`: which forwards and backwards communicate, what each loss is multiplied by, whether
    gradients are emptied for each micro-batch, and which network computes."""

    def accumulate(model, micro_batches, loss_function):
        k = len(micro_batches)
        for i, (inputs, targets) in enumerate(micro_batches):
            if emptied:
                model.zero_grad()
            with contextlib.nullcontext() if forward(i, k) else model.no_sync():
                loss = loss_function(network(model)(inputs), targets) * scale(k)
            with contextlib.nullcontext() if (backward or forward)(i, k) else model.no_sync():
                loss.backward()

    return accumulate


def _only_forward(model, micro_batches, loss_function):
    for inputs, targets in micro_batches:
        loss_function(model(inputs), targets)


def _one_forward(model, micro_batches, loss_function):
    inputs, targets = map(torch.cat, zip(*micro_batches, strict=True))
    loss_function(model(inputs), targets).backward()


def _one_backward(model, micro_batches, loss_function):
    losses = [loss_function(model(inputs), targets) for inputs, targets in micro_batches]
    (sum(losses) / len(losses)).backward()


EMPTIED_HINT = (
    "only the last micro-batch is in them, because something empties the gradients in between. Call `zero_grad` "
    "once before the loop, or leave it to the caller."
)

accumulate = Exercise(
    "accumulate",
    observe_accumulate,
    accumulate_properties,
    [
        Mistake(_only_forward, "no backward has run. For each micro-batch: forward, loss, `backward()`."),
        Mistake(
            _accumulate(lambda i, k: i == 0),
            "DDP averaged once, but each rank added gradients of its own afterwards: the *last* micro-batch is the one "
            "that must communicate.",
        ),
        Mistake(
            _accumulate(lambda i, k: False, _is_last),
            "nothing was averaged. The last backward ran outside `no_sync`, but its forward ran inside, and it is the "
            "forward that prepares DDP to communicate: keep both together.",
        ),
        Mistake(
            _accumulate(lambda i, k: False),
            "nothing was averaged, because all of it ran inside `no_sync`. The last micro-batch must run outside.",
        ),
        Mistake(
            _accumulate(lambda i, k: True, network=lambda model: model.module),
            "nothing was averaged, although nothing ran inside `no_sync`: call `model`, not `model.module`.",
        ),
        Mistake(
            _accumulate(scale=lambda k: 1), "they are the sum over micro-batches: divide each loss by their number."
        ),
        Mistake(_accumulate(emptied=True), EMPTIED_HINT),
        Mistake(_accumulate(scale=lambda k: 1, emptied=True), EMPTIED_HINT),
        Mistake(
            _accumulate(scale=lambda k: 1 / k / dist.get_world_size()),
            "they are too small by the number of ranks, so something is divided twice. DDP itself takes the mean over "
            "ranks.",
        ),
        Mistake(
            _accumulate(scale=lambda k: 1 / k**2),
            "they are too small by the number of micro-batches, so something is divided twice.",
        ),
        Mistake(
            _accumulate(lambda i, k: True),
            "every micro-batch was averaged by itself. Run all micro-batches but the last inside "
            "`with model.no_sync():`.",
        ),
        Mistake(
            _accumulate(lambda i, k: True, _is_last),
            "backward runs inside `no_sync`, but forward does not, and it is the forward that prepares DDP to "
            "communicate: put both inside the context.",
        ),
        Mistake(
            _accumulate(lambda i, k: i % 2 == 1),
            "several micro-batches were averaged. Only the last micro-batch may run outside `no_sync`.",
        ),
        Mistake(
            _one_forward,
            "one forward got all samples at once. Micro-batches exist because they don't fit into memory together, and "
            "one at a time saves memory.",
        ),
        Mistake(
            _one_backward,
            "the activations of several micro-batches were kept at once. Call `backward()` on each loss before the "
            "next forward.",
        ),
        Mistake(
            _accumulate(lambda i, k: i == K - 1, scale=lambda k: 1 / K),
            "with one micro-batch the first is also the last: which one communicates must follow from "
            "`len(micro_batches)`, and so must the number to divide by.",
        ),
    ],
    ready=join,
    stuck="a rank waits for an allreduce that another rank never starts. All ranks must enter `no_sync` for the same "
    "micro-batches, whatever their rank.",
)


@dataclass
class Hooked:
    """What DDP made of the hook on one rank, in one group."""

    expected: np.ndarray | None
    returned: set[str] = field(default_factory=set)  # types
    held: set[str] = field(default_factory=set)  # types in the futures
    gradient: np.ndarray | None = None
    longest_call_s: list[float] = field(default_factory=list, compare=False)  # of each step


def observe_average_hook(comm, function: Callable) -> list[Hooked]:
    """With all ranks in the process group, and in a group of one."""
    join()
    return [_hooked(comm, function, group) for group in (dist.group.WORLD, _alone())]


def _hooked(comm, function: Callable, group) -> Hooked:
    # A tiny cap gives each parameter a bucket of its own, from the second step on.
    model = DistributedDataParallel(_network(), process_group=group, bucket_cap_mb=1e-6)
    members = dist.get_process_group_ranks(group)
    seen = Hooked(_gradient_of([_samples(rank, 1)[0] for rank in members]))

    def watched(process_group, bucket):
        start = time.perf_counter()
        returned = function(process_group, bucket)
        seen.longest_call_s[-1] = max(seen.longest_call_s[-1], time.perf_counter() - start)
        seen.returned.add(type(returned).__name__)
        buffer = bucket.buffer()  # what DDP gets where the hook has nothing for it, so that the step ends
        if not isinstance(returned, torch._C.Future):
            returned = torch.futures.Future()
            returned.set_result(buffer)

        def result(future):
            value = future.value()
            seen.held.add(type(value).__name__)
            return value if isinstance(value, torch.Tensor) else buffer

        return returned.then(result)

    model.register_comm_hook(group, watched)
    [(inputs, labels)] = _samples(comm.rank, 1)
    for _ in range(3):
        seen.longest_call_s.append(0.0)
        model.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        if comm.rank == 1 and len(members) > 1:
            time.sleep(LATE_S)
        loss.backward()
    seen.gradient = _gradient(model.module)
    comm.Barrier()  # an allreduce that the hook did not wait for has ended on no rank before this
    return seen


def hook_properties(observations: list[list[Hooked]]) -> Iterator[Property]:
    together, alone = zip(*observations, strict=True)
    returned = set.union(*(seen.returned for seen in together))
    yield Property("it returns a future for every bucket", returned <= {"Future"}, evidence=sorted(returned))
    held = set.union(*(seen.held for seen in together))
    yield Property("the future holds a tensor", held == {"Tensor"}, evidence=sorted(held))
    wrong = [seen for seen in together if not close(seen.gradient, seen.expected)]
    hint = _factor_hint(wrong[0], len(together)) if wrong else ""
    evidence = wrong[0].gradient if wrong else ()
    text = "DDP ends with the mean of all ranks' gradients, on every rank"
    yield Property(text, not wrong, hint, evidence)
    same = all(np.array_equal(seen.gradient, together[0].gradient) for seen in together)
    hint = "they differ in their last bits: let one allreduce give all ranks the same sum, and divide it alike."
    yield Property("the ranks hold identical gradients", same, hint)
    wrong = [seen for seen in alone if not close(seen.gradient, seen.expected)]
    evidence = wrong[0].gradient if wrong else ()
    yield Property("also in a process group of one rank", not wrong, evidence=evidence)
    at_once = min(together[0].longest_call_s) < LATE_S / 2
    yield Property("it returns at once, while the bucket is under way", at_once, evidence=())


def _factor_hint(seen: Hooked, size: int) -> str:
    """For values that a number written out has divided, whatever number that is; nearly right ones are rounded."""
    if seen.gradient is None or seen.expected is None:
        return ""
    factor = float(np.linalg.norm(seen.gradient) / np.linalg.norm(seen.expected))
    if close(seen.gradient, seen.expected, 1e-2):
        return "the values are nearly right: was something rounded on the way, as to half precision?"
    if close(seen.gradient, seen.expected * factor) and not np.isclose(factor, [size, 1 / size]).any():
        return f"the values are {factor:.3g} times the mean: divide by `process_group.size()`, once."
    return ""


def _hook(
    before: Callable[[Any], float] = lambda group: 1 / group.size(),
    after: Callable[[Any], Any] = lambda future: future.then(lambda done: done.value()[0]),
    group: Callable[[Any], Any] = lambda group: group,
    reduces: Callable[[Any], bool] = lambda bucket: True,
) -> Callable:
    """A wrong `average_hook`: what the bucket is multiplied by, what is made of the allreduce's handle, its group,
    and which buckets are sent; the others are complete as they are."""

    def average_hook(process_group, bucket):
        tensor = bucket.buffer() * before(process_group)
        if reduces(bucket):
            return after(dist.all_reduce(tensor, group=group(process_group), async_op=True).get_future())
        return _complete(tensor)

    return average_hook


def _complete(tensor: torch.Tensor) -> Any:
    future: torch.futures.Future = torch.futures.Future()
    future.set_result(tensor)
    return future


def _handle(process_group, bucket):
    return dist.all_reduce(bucket.buffer(), group=process_group, async_op=True)


def _waits(process_group, bucket):
    tensor = bucket.buffer() / process_group.size()
    dist.all_reduce(tensor, group=process_group)
    return _complete(tensor)


OWN_HINT = (
    "some rank ended with gradients of its own samples alone: either there was no allreduce, or the future was "
    "complete before the allreduce was."
)

average_hook = Exercise(
    "average_hook",
    observe_average_hook,
    hook_properties,
    [
        Mistake(_handle, "it returned the handle of the allreduce: its `get_future()` gives the future."),
        Mistake(lambda process_group, bucket: None, "it returned nothing (None): `return` the future."),
        Mistake(
            lambda process_group, bucket: bucket.buffer(),
            "it returned a tensor, which must be there at once. A future is a promise of a tensor: "
            "`all_reduce(..., async_op=True).get_future()` gives one.",
        ),
        Mistake(
            _hook(after=lambda future: future),
            "it holds a list with one tensor in it, as the future of every allreduce does. `future.then(f)` makes a "
            "future of what `f(future)` returns: take the tensor out of `value()` there.",
        ),
        Mistake(
            _hook(after=lambda future: future.then(lambda done: None)),
            "it holds nothing (None): does the function in `then` return the tensor?",
        ),
        Mistake(_hook(lambda group: 1.0), "the values are the sum, not the mean: divide by `process_group.size()`."),
        Mistake(_hook(lambda group: 1.0, reduces=lambda bucket: False), OWN_HINT),
        Mistake(_hook(reduces=lambda bucket: False), OWN_HINT),
        Mistake(
            _hook(lambda group: group.size() ** -2.0),
            "the values are too small: the number of ranks was divided by twice.",
        ),
        Mistake(
            _hook(reduces=lambda bucket: bucket.index() == 0),
            "some of the values are averaged, and others are this rank's own. Is every bucket averaged?",
        ),
        Mistake(
            _hook(lambda group: 1 / dist.get_world_size()),
            "the values were divided by the number of all ranks, but this group has one rank: `process_group.size()` "
            "knows, while `dist.get_world_size()` counts every rank unless you pass the group.",
        ),
        Mistake(
            _hook(group=lambda group: None),
            "gradients of other ranks are in it: pass `group=process_group` to the allreduce.",
        ),
        Mistake(
            _waits,
            "it waited for its allreduce while another rank was late, so nothing overlaps with backward. Pass "
            "`async_op=True`, and return the future without waiting for it.",
        ),
    ],
    ready=join,
    stuck="either some rank never starts its allreduce (all of them must, for every bucket), or the future that the "
    "hook returned is never completed.",
)


@dataclass(frozen=True)
class Shards:
    """What each rank takes, by (samples, ranks) and epoch; and the same when asked again."""

    first: dict[tuple[int, int], list[list]]
    again: dict[tuple[int, int], list[list]]


def observe_shard_of(comm, function: Callable) -> Shards:
    """`function` for all of SHARED and EPOCHS, twice."""
    first, again = (
        {
            (n, size): [[_plain(function(n, epoch, rank, size)) for rank in range(size)] for epoch in EPOCHS]
            for n, size in SHARED
        }
        for _ in range(2)
    )
    return Shards(first, again)


def _plain(returned):
    """Arrays and tensors as lists, their numbers as Python's; anything else as it is."""
    if hasattr(returned, "tolist"):
        return returned.tolist()
    if isinstance(returned, list | tuple | range):
        return [operator.index(i) if hasattr(i, "__index__") else i for i in returned]
    return returned


def shard_properties(observations: list[Shards]) -> Iterator[Property]:
    first = observations[0].first
    returned = [part for epochs in first.values() for parts in epochs for part in parts]
    bad = [part for part in returned if not (isinstance(part, list) and all(isinstance(i, int) for i in part))]
    hint = f"for some samples it returned {shown(bad[0])}." if bad else ""
    yield Property("it returns a list of whole numbers", not bad, hint)
    agree = all(shards == first for seen in observations for shards in (seen.first, seen.again))
    yield Property("the same question has the same answer, on all ranks", agree, evidence=())
    shared_out = [(n, parts) for (n, _), epochs in first.items() for parts in epochs]
    wrong = [flaw for n, parts in shared_out if any(flaw := _flaw(n, parts))]
    yield Property("each sample is taken once in each epoch", not wrong, evidence=wrong[:1])
    even = all(max(map(len, parts)) - min(map(len, parts)) <= 1 for _, parts in shared_out)
    yield Property("no rank gets two samples more than another", even, evidence=())
    alone = [parts[0] for parts in first[103, 1]]
    yield Property("the samples are shuffled", alone[0] != list(range(103)), evidence=())
    yield Property("each epoch has another order", len(set(map(tuple, alone))) == len(EPOCHS), evidence=())
    changes = len({frozenset(parts[0]) for parts in first[103, 2]}) == len(EPOCHS)
    yield Property("a rank gets other samples in the next epoch", changes, evidence=())


class Flaw(NamedTuple):
    """Why what the ranks take is not each sample once."""

    outside: bool  # there is no such sample
    repeated: bool  # a rank takes one twice
    everything: bool  # every rank takes all of them
    shared: bool  # two ranks take the same one
    missing: bool  # nobody takes it


def _flaw(n: int, parts: list[list[int]]) -> Flaw:
    taken = [i for part in parts for i in part]
    if any(not 0 <= i < n for i in taken):
        return Flaw(True, False, False, False, False)
    if any(len(set(part)) < len(part) for part in parts):
        return Flaw(False, True, False, False, False)
    twice, missing = len(taken) > len(set(taken)), len(set(taken)) < n
    return Flaw(False, False, twice and not missing and all(len(part) == n for part in parts), twice, missing)


def _shards(order: Callable[[int, int, int], Any], part: Callable[[Any, int, int], Any] | None = None) -> Callable:
    """A wrong `shard_of`: the order of an epoch, and a rank's part of it."""

    def shard_of(n, epoch, rank, size):
        samples = order(n, epoch, rank)
        return samples[rank::size] if part is None else part(samples, rank, size)

    return shard_of


def _permuted(n: int, epoch: int, rank: int) -> np.ndarray:
    return np.random.default_rng(epoch).permutation(n)


def _block(order: np.ndarray, rank: int, size: int) -> np.ndarray:
    return order[rank * (len(order) // size) :][: len(order) // size]


shard_of = Exercise(
    "shard_of",
    observe_shard_of,
    shard_properties,
    [
        Mistake(
            _shards(lambda n, epoch, rank: np.random.default_rng().permutation(n)),
            "asked twice for the same epoch, or on two ranks, it gave different answers. Ranks that shuffle must draw "
            "the same order: seed a generator of its own, as `np.random.default_rng(seed)`, with the same number on "
            "all of them.",
        ),
        Mistake(
            _shards(lambda n, epoch, rank: _permuted(n, epoch, rank) + 1),
            "there is no such sample: they are numbered from 0 to n - 1.",
        ),
        Mistake(
            _shards(lambda n, epoch, rank: np.random.default_rng(epoch).integers(n, size=n)),
            "a rank takes the same sample twice: a permutation has each number once.",
        ),
        Mistake(
            _shards(lambda n, epoch, rank: np.random.default_rng([epoch, rank]).permutation(n)),
            "some samples are taken twice and others by nobody. Has each rank its own order? All must share out the "
            "same permutation, so the seed must not depend on the rank.",
        ),
        Mistake(
            _shards(_permuted, lambda order, rank, size: order),
            "every rank takes all samples: give each only its part.",
        ),
        Mistake(
            _shards(_permuted, lambda order, rank, size: np.resize(order, -(-len(order) // size) * size)[rank::size]),
            "some samples are taken twice. Filling up until all ranks have equally many is what DistributedSampler "
            "does; here some ranks may have one less.",
        ),
        Mistake(
            _shards(_permuted, _block),
            "some samples are taken by nobody. When the ranks do not divide the samples, some ranks take one more.",
        ),
        Mistake(
            _shards(
                _permuted,
                lambda order, rank, size: (
                    _block(order, rank, size) if rank < size - 1 else order[rank * (len(order) // size) :]
                ),
            ),
            "one rank gets several samples more than the others, and all wait for the slowest: spread the rest.",
        ),
        Mistake(
            _shards(lambda n, epoch, rank: range(n)),
            "the order is that of the files, 0, 1, 2, …: shuffle it, or each batch sees neighbours.",
        ),
        Mistake(
            _shards(lambda n, epoch, rank: _permuted(n, 1, rank)),
            "every epoch has the same order, which is what happens if you forget `set_epoch`: the generator's seed "
            "must depend on the epoch.",
        ),
        Mistake(
            lambda n, epoch, rank, size: np.random.default_rng(epoch).permutation(range(rank, n, size)),
            "a rank sees the same samples in all epochs: shuffle first, then share out.",
        ),
    ],
    communicates=False,
    ready=join,
    stuck=ENDLESS_HINT,
)
