"""The exercises of 05_ddp accept the solutions, and reject wrong answers with the hint that names the mistake."""

from functools import partial

from exercises.answers import written
from exercises.verdicts import Verdicts, planted

from workshop_lib.exercises import ddp

NOTEBOOK = "05_ddp"
START = "future = dist.all_reduce(tensor, group=process_group, async_op=True).get_future()"
THEN = "return future.then(lambda done: done.value()[0])"
NOW = "future = torch.futures.Future(); future.set_result(tensor)"
ORDER = "order = np.random.default_rng(epoch).permutation(n)"

WITH = "with contextlib.nullcontext() if last else model.no_sync():"
LOSS = "loss = loss_function(model(inputs), targets)"
BACKWARD = "(loss / len(micro_batches)).backward()"
EMPTY = f"model.zero_grad(); {LOSS}"
BUFFER = "bucket.buffer() / process_group.size()"
GROUP = "group=process_group"
PERMUTATION = "np.random.default_rng(epoch).permutation(n)"
PART = "order[rank::size].tolist()"
FILLED = "np.resize(order, -(-n // size) * size)[rank::size]"
UNEVEN = "order[rank * (n // size) : (rank + 1) * (n // size) if rank < size - 1 else None]"


def kept_apart(forward: str, backward: str) -> list[tuple[str, str]]:
    """The solution of `accumulate` with these conditions for the forward and the backward to communicate."""
    apart = BACKWARD.join([f"{WITH.replace('last', backward)} ", ""])
    return [(WITH, WITH.replace("last", forward)), (f"    {BACKWARD}", apart)]


KNOWN = {
    "accumulate": {
        "no backward": ([(BACKWARD, "pass")], "no backward has run"),
        "the first communicates": ([("== len(micro_batches)", "== 1")], ddp.ADDED_HINT),
        "the last backward alone communicates": (kept_apart("False", "last"), ddp.UNAVERAGED_HINTS[False, True]),
        "none communicates": ([("if last", "if False")], ddp.UNAVERAGED_HINTS[False, False]),
        "DDP is not called": ([(WITH, "if True:"), ("(model(", "(model.module(")], ddp.UNAVERAGED_HINTS[True, True]),
        "DDP is not called, under no_sync": ([("(model(", "(model.module(")], ddp.UNAVERAGED_HINTS[True, True]),
        "not divided": ([("loss / len(micro_batches)", "loss")], "the sum over micro-batches"),
        "emptied": ([(LOSS, EMPTY)], ddp.EMPTIED_HINT),
        "emptied, not divided": ([(LOSS, EMPTY), ("loss / len(micro_batches)", "loss")], ddp.EMPTIED_HINT),
        "divided by the ranks": ([("(loss / ", "(loss / dist.get_world_size() / ")], "takes the mean over ranks"),
        "divided twice": ([("(loss / ", "(loss / len(micro_batches) / ")], "micro-batches is divided by twice"),
        "all communicate": ([("if last", "if True")], ddp.ROUNDS_HINTS[True, True]),
        "all forwards communicate": (kept_apart("True", "last"), ddp.ROUNDS_HINTS[True, False]),
        "two communicate": ([("== len(micro_batches)", "% 2 == 0")], ddp.ROUNDS_HINTS[False, False]),
        "with one micro-batch": ([("== len(micro_batches)", "== 4"), ("/ len(micro_batches)", "/ 4")], "also the last"),
    },
    "average_hook": {
        "the handle": ([(".get_future()", ""), (THEN, "return future")], ddp.RETURN_HINTS["Work"]),
        "nothing": ([("return future", "future")], ddp.RETURN_HINTS["NoneType"]),
        "the buffer": ([(THEN, "return tensor")], ddp.RETURN_HINTS["Tensor"]),
        "a list": ([(THEN, "return future")], ddp.RETURN_HINTS["Future of list"]),
        "nothing in the future": ([("done.value()[0]", "None")], ddp.RETURN_HINTS["Future of NoneType"]),
        "the sum": ([(BUFFER, "bucket.buffer()")], "the sum, not the mean"),
        "its own": ([(BUFFER, "bucket.buffer()"), (START, NOW)], ddp.OWN_HINT),
        "its own, divided": ([(START, NOW), (THEN, "return future")], ddp.OWN_HINT),
        "divided twice": ([(BUFFER, f"{BUFFER} / process_group.size()")], "the number of ranks was divided by twice"),
        "the first bucket": ([(START, f"{NOW}\n    if bucket.index() == 0: {START}")], ddp.MIXED_HINT),
        "divided by all ranks": ([("process_group.size()", "dist.get_world_size()")], ddp.WORLD_HINT),
        "among all ranks": ([("group=process_group, ", "")], ddp.FOREIGN_HINT),
        "waits": ([(START, f"{START}; future.wait()")], ddp.WAITED_HINT),
    },
    "shard_of": {
        "unseeded": ([("default_rng(epoch)", "default_rng()")], "must draw the same order"),
        "numbered from 1": ([(PERMUTATION, f"{PERMUTATION} + 1")], "from 0 to n - 1"),
        "drawn with replacement": ([("permutation(n)", "integers(n, size=n)")], "has each number once"),
        "seeded by rank": ([("rng(epoch)", "rng([epoch, rank])")], "share out one permutation"),
        "everything": ([(PART, "order.tolist()")], "give each only its part"),
        "filled up": ([(PART, FILLED)], "DistributedSampler fills up"),
        "cut off": ([(PART, "order[: n // size * size][rank::size]")], "some ranks take one more"),
        "the rest to the last": ([(PART, UNEVEN)], "spread what is left over"),
        "in the files' order": ([(PERMUTATION, "np.arange(n)")], "sees neighbours"),
        "the same in all epochs": ([("rng(epoch)", "rng(1)")], "forget `set_epoch`"),
        "shared out first": (
            [("permutation(n)", "permutation(range(rank, n, size))"), (PART, "order")],
            "shuffle first",
        ),
    },
}

imports = "import contextlib, random, torch, torch.distributed as dist, numpy as np"
accumulate = partial(written, imports, "accumulate(model, micro_batches, loss_function)", "k = len(micro_batches)")
hook = partial(written, imports, "average_hook(process_group, bucket)", "tensor = bucket.buffer()")
shard_of = partial(written, imports, "shard_of(n, epoch, rank, size)")


class TestDDP(Verdicts):
    check, notebook, names = ddp, NOTEBOOK, ["accumulate", "average_hook", "shard_of"]
    right = {
        "accumulate, last one apart": lambda: accumulate(
            "model.zero_grad()",
            "with model.no_sync():",
            "    for inputs, targets in micro_batches[:-1]:",
            "        (loss_function(model(inputs), targets) / k).backward()",
            "inputs, targets = micro_batches[-1]",
            "(loss_function(model(inputs), targets) / k).backward()",
        ),
        "accumulate, divided at the end": lambda: accumulate(
            "for i, (inputs, targets) in enumerate(micro_batches):",
            "    with model.no_sync() if i < k - 1 else contextlib.nullcontext():",
            "        loss_function(model(inputs), targets).backward()",
            "for p in model.parameters():",
            "    p.grad /= k",
        ),
        "average_hook, divided after": lambda: hook(
            START, "return future.then(lambda done: done.value()[0].div_(process_group.size()))"
        ),
        "average_hook, in place": lambda: hook("tensor.div_(process_group.size())", START, THEN),
        "shard_of, in blocks": lambda: shard_of(ORDER, "return [int(i) for i in np.array_split(order, size)[rank]]"),
        "shard_of, an array": lambda: shard_of(ORDER, "return order[rank::size]"),
        "shard_of, with Python's random": lambda: shard_of(
            "order = list(range(n))", "random.Random(epoch).shuffle(order)", "return order[rank::size]"
        ),
    }
    wrong = planted(NOTEBOOK, KNOWN) | {
        "one forward": (
            lambda: accumulate(
                "inputs, targets = map(torch.cat, zip(*micro_batches))",
                "loss_function(model(inputs), targets).backward()",
            ),
            "don't fit into memory together",
        ),
        "one backward": (
            lambda: accumulate("(sum(loss_function(model(x), y) for x, y in micro_batches) / k).backward()"),
            "on each loss before the next forward",
        ),
        "a tensor, averaged": (
            lambda: hook("dist.all_reduce(tensor, group=process_group)", "return tensor / process_group.size()"),
            "A future is a promise",
        ),
        "complete too early": (
            lambda: hook(
                "tensor = tensor / process_group.size()",
                "dist.all_reduce(tensor, group=process_group, async_op=True)",
                "tensor = tensor.clone()",
                NOW,
                "return future",
            ),
            "complete before it was",
        ),
        "divided by 4": (lambda: hook("tensor = tensor / 4", START, THEN), "the number of ranks was divided by twice"),
        "divided by 3": (lambda: hook("tensor = tensor / 3", START, THEN), "times the mean"),
        "half precision": (
            lambda: hook(
                "half = (tensor / process_group.size()).half()",
                "future = dist.all_reduce(half, group=process_group, async_op=True).get_future()",
                "return future.then(lambda done: done.value()[0].double())",
            ),
            "half precision",
        ),
        "waits for the handle": (
            lambda: hook(
                "tensor = tensor / process_group.size()",
                "work = dist.all_reduce(tensor, group=process_group, async_op=True)",
                "work.wait()",
                "future = work.get_future()",
                THEN,
            ),
            "it waited for its allreduce",
        ),
        "global random state": (
            lambda: shard_of("order = list(range(n))", "random.shuffle(order)", "return order[rank::size]"),
            "must draw the same order",
        ),
        "not returned": (lambda: shard_of(ORDER, "order[rank::size]"), "returned None"),
    }
    never_ends = {
        "rank 0 alone communicates": (
            lambda: accumulate(
                "for i, (inputs, targets) in enumerate(micro_batches):",
                "    last = i == k - 1 and dist.get_rank() == 0",
                "    with contextlib.nullcontext() if last else model.no_sync():",
                "        (loss_function(model(inputs), targets) / k).backward()",
            ),
            "All ranks must enter `no_sync`",
        ),
        "allreduce on rank 0 alone": (
            lambda: hook("if dist.get_rank(process_group) == 0:", f"    {START}; {THEN}", NOW, "return future"),
            "never starts its allreduce",
        ),
        "a future that nobody completes": (
            lambda: hook("dist.all_reduce(tensor, group=process_group)", "return torch.futures.Future()"),
            "never completed",
        ),
    }


def test_it_is_the_learners_function_that_runs_on_every_rank(team):
    team.push(seen=[])
    ddp.accumulate(accumulate("import __ranks__; __ranks__.seen.append((dist.get_rank(), len(micro_batches)))"))
    assert team.pull("seen") == [[(rank, 4), (rank, 1)] for rank in (0, 1)]


def test_the_ranks_keep_their_process_group(team):
    group = "import __ranks__; __ranks__.group = id(dist.group.WORLD)"
    ddp.shard_of(shard_of(group, "return []"))
    first = team.pull("group")
    ddp.average_hook(hook(group, START, THEN))
    assert team.pull("group") == first
