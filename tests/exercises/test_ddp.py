"""The exercises of 05_ddp accept the solutions, and reject wrong answers with the hint that names the mistake."""

from functools import partial

from exercises.answers import written
from exercises.verdicts import Verdicts

from workshop_lib.exercises import ddp

NOTEBOOK = "05_ddp"
START = "future = dist.all_reduce(tensor, group=process_group, async_op=True).get_future()"
THEN = "return future.then(lambda done: done.value()[0])"
NOW = ["future = torch.futures.Future()", "future.set_result(tensor)", "return future"]
ORDER = "order = np.random.default_rng(epoch).permutation(n)"

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
    wrong = {
        "a tensor, averaged": (
            lambda: hook("dist.all_reduce(tensor, group=process_group)", "return tensor / process_group.size()"),
            "A future is a promise",
        ),
        "complete too early": (
            lambda: hook(
                "tensor = tensor / process_group.size()",
                "dist.all_reduce(tensor, group=process_group, async_op=True)",
                "tensor = tensor.clone()",
                *NOW,
            ),
            "complete before the allreduce was",
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
            lambda: hook("if dist.get_rank(process_group) == 0:", f"    {START}; {THEN}", *NOW),
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
