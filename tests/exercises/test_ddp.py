"""The checks of 05_ddp accept the solutions and say of wrong answers what is wrong."""

import pytest
from answers import from_source, solution, stub, variant

from workshop_lib import ranks
from workshop_lib.notebook.exercises import ddp as check

NOTEBOOK = "05_ddp"
NAMES = ["accumulate", "average_hook", "shard_of"]
IMPORTS = "import contextlib, random\nimport numpy as np, torch, torch.distributed as dist\n"


@pytest.fixture(scope="module", autouse=True)
def team():
    yield ranks.start(2)
    ranks.stop()


@pytest.fixture(autouse=True)
def healthy(team):
    if not team.healthy:
        team.restart()


def function(head: str, *lines: str):
    """A learner's function with this head and these lines."""
    body = "\n    ".join(lines)
    return from_source(f"{IMPORTS}def {head}:\n    {body}\n", head.split("(")[0])


def accumulate(*lines: str):
    return function("accumulate(model, micro_batches, loss_function)", "k = len(micro_batches)", *lines)


def hook(*lines: str):
    return function("average_hook(process_group, bucket)", "tensor = bucket.buffer()", *lines)


def shard_of(*lines: str):
    return function("shard_of(n, epoch, rank, size)", *lines)


@pytest.mark.parametrize("name", NAMES)
def test_the_solution_passes(name):
    verdict = getattr(check, name)(solution(NOTEBOOK, name))
    assert verdict.passed, verdict


@pytest.mark.parametrize("name", NAMES)
def test_the_stub_is_not_solved_yet(name):
    verdict = getattr(check, name)(stub(NOTEBOOK, name))
    assert verdict.passed is None
    assert "not solved yet" in repr(verdict)


EACH = "for inputs, targets in micro_batches:"
BACKWARD = "    (loss_function(model(inputs), targets) / k).backward()"
THEN = "return future.then(lambda done: done.value()[0])"
START = "future = dist.all_reduce(tensor, group=process_group, async_op=True).get_future()"
ORDER = "order = np.random.default_rng(epoch).permutation(n)"

RIGHT = {
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
    "shard_of, in blocks": lambda: shard_of(
        ORDER, "return [int(i) for i in np.array_split(order, size)[rank]]"
    ),
    "shard_of, an array": lambda: shard_of(ORDER, "return order[rank::size]"),
    "shard_of, with Python's random": lambda: shard_of(
        "order = list(range(n))", "random.Random(epoch).shuffle(order)", "return order[rank::size]"
    ),
}

WRONG = {
    # accumulate
    "no no_sync": (lambda: accumulate(EACH, BACKWARD), "Run all micro-batches but the last inside"),
    "all inside no_sync": (
        lambda: accumulate("with model.no_sync():", "    " + EACH, "    " + BACKWARD),
        "all of it ran inside `no_sync`",
    ),
    "not divided": (
        lambda: variant(NOTEBOOK, "accumulate", ("(loss / len(micro_batches))", "loss")),
        "divide each loss by their number",
    ),
    "zero_grad inside the loop": (
        lambda: variant(NOTEBOOK, "accumulate", ("        last =", "        model.zero_grad(); last =")),
        "`zero_grad` once before the loop",
    ),
    "zero_grad inside, not divided": (
        lambda: accumulate(
            EACH, "    model.zero_grad()", "    loss_function(model(inputs), targets).backward()"
        ),
        "`zero_grad` once before the loop",
    ),
    "forward outside no_sync": (
        lambda: accumulate(
            "for i, (inputs, targets) in enumerate(micro_batches):",
            "    loss = loss_function(model(inputs), targets) / k",
            "    with model.no_sync() if i < k - 1 else contextlib.nullcontext():",
            "        loss.backward()",
        ),
        "put both inside the context",
    ),
    "last forward inside no_sync": (
        lambda: accumulate(
            "with model.no_sync():",
            "    for inputs, targets in micro_batches:",
            "        loss = loss_function(model(inputs), targets) / k",
            "        if inputs is not micro_batches[-1][0]:",
            "            loss.backward()",
            "loss.backward()",
        ),
        "keep both together",
    ),
    "the first communicates": (
        lambda: variant(NOTEBOOK, "accumulate", ("number == len(micro_batches)", "number == 1")),
        "the *last* micro-batch is the one",
    ),
    "divided by the ranks too": (
        lambda: variant(NOTEBOOK, "accumulate", ("(loss / len", "(loss / dist.get_world_size() / len")),
        "divided twice",
    ),
    "every other one communicates": (
        lambda: accumulate(
            "for i, (inputs, targets) in enumerate(micro_batches):",
            "    with contextlib.nullcontext() if i % 2 else model.no_sync():",
            "        (loss_function(model(inputs), targets) / k).backward()",
        ),
        "Only the last micro-batch may run outside",
    ),
    "all in one forward": (
        lambda: accumulate(
            "inputs, targets = map(torch.cat, zip(*micro_batches))",
            "loss_function(model(inputs), targets).backward()",
        ),
        "one at a time saves memory",
    ),
    "one backward for all": (
        lambda: accumulate("sum(loss_function(model(x), y) for x, y in micro_batches).div(k).backward()"),
        "before the next forward",
    ),
    "four micro-batches assumed": (
        lambda: variant(NOTEBOOK, "accumulate", ("len(micro_batches)", "4")),
        "must follow from",
    ),
    "around DDP": (
        lambda: accumulate(EACH, BACKWARD.replace("model(", "model.module(")),
        "call `model`, not `model.module`",
    ),
    "no backward": (
        lambda: accumulate(EACH, "    loss_function(model(inputs), targets)"),
        "no backward has run",
    ),
    # average_hook
    "a future of a list": (
        lambda: hook("tensor /= 2", START, "return future"),
        "holds a list with one tensor",
    ),
    "a future of nothing": (
        lambda: hook(START, "return future.then(lambda done: print(end=str()))"),
        "does the function in `then` return",
    ),
    "sum": (lambda: hook(START, THEN), "the sum, not the mean"),
    "a tensor": (
        lambda: hook("dist.all_reduce(tensor, group=process_group)", "return tensor / process_group.size()"),
        "A future is a promise",
    ),
    "the handle": (
        lambda: hook(
            "tensor /= process_group.size()",
            "return dist.all_reduce(tensor, group=process_group, async_op=True)",
        ),
        "its `get_future()`",
    ),
    "nothing returned": (
        lambda: variant(NOTEBOOK, "average_hook", ("return future.then", "future.then")),
        "`return` the future",
    ),
    "no allreduce": (
        lambda: hook("future = torch.futures.Future()", "future.set_result(tensor)", "return future"),
        "own samples alone",
    ),
    "no allreduce, but divided": (
        lambda: hook(
            "future = torch.futures.Future()",
            "future.set_result(tensor / process_group.size())",
            "return future",
        ),
        "own samples alone",
    ),
    "complete too early": (
        lambda: hook(
            "tensor = tensor / process_group.size()",
            "dist.all_reduce(tensor, group=process_group, async_op=True)",
            "future = torch.futures.Future()",
            "future.set_result(tensor.clone())",
            "return future",
        ),
        "complete before the allreduce was",
    ),
    "divided twice": (
        lambda: variant(
            NOTEBOOK, "average_hook", ("done.value()[0]", "done.value()[0] / process_group.size()")
        ),
        "divided by twice",
    ),
    "divided by 4": (
        lambda: hook("tensor = tensor / 4", START, THEN),
        "the number of ranks was divided by twice",
    ),
    "divided by 3": (
        lambda: hook("tensor = tensor / 3", START, THEN),
        "times the mean",
    ),
    "the world's size": (
        lambda: variant(NOTEBOOK, "average_hook", ("process_group.size()", "dist.get_world_size()")),
        "but this group has one rank",
    ),
    "the world's allreduce": (
        lambda: variant(NOTEBOOK, "average_hook", ("group=process_group, ", "")),
        "pass `group=process_group`",
    ),
    "the first bucket only": (
        lambda: hook(
            "tensor = tensor / process_group.size()",
            "if bucket.index() == 0:",
            f"    {START}; {THEN}",
            "future = torch.futures.Future()",
            "future.set_result(tensor)",
            "return future",
        ),
        "Is every bucket averaged",
    ),
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
    "blocking, then wrapped": (
        lambda: hook(
            "dist.all_reduce(tensor, group=process_group)",
            "future = torch.futures.Future()",
            "future.set_result(tensor / process_group.size())",
            "return future",
        ),
        "it waited for its allreduce",
    ),
    # shard_of
    "every epoch alike": (
        lambda: variant(NOTEBOOK, "shard_of", ("default_rng(epoch)", "default_rng(1)")),
        "forget `set_epoch`",
    ),
    "own seed on each rank": (
        lambda: variant(NOTEBOOK, "shard_of", ("default_rng(epoch)", "default_rng([epoch, rank])")),
        "must not depend on the rank",
    ),
    "no seed": (
        lambda: variant(NOTEBOOK, "shard_of", ("default_rng(epoch)", "default_rng()")),
        "must draw the same order",
    ),
    "global random state": (
        lambda: shard_of("order = list(range(n))", "random.shuffle(order)", "return order[rank::size]"),
        "must draw the same order",
    ),
    "not shuffled": (lambda: shard_of("return list(range(rank, n, size))"), "shuffle it"),
    "drops the rest": (
        lambda: shard_of(ORDER, "each = n // size", "return order[rank * each : (rank + 1) * each].tolist()"),
        "taken by nobody",
    ),
    "fills up": (
        lambda: shard_of(
            ORDER, "order = np.resize(order, -(-n // size) * size)", "return order[rank::size].tolist()"
        ),
        "DistributedSampler does",
    ),
    "last takes the rest": (
        lambda: shard_of(
            ORDER,
            "each = n // size",
            "return order[rank * each : n if rank == size - 1 else (rank + 1) * each].tolist()",
        ),
        "all wait for the slowest",
    ),
    "everything on every rank": (lambda: shard_of(ORDER, "return order.tolist()"), "give each only its part"),
    "with replacement": (
        lambda: shard_of("return np.random.default_rng(epoch).integers(n, size=n)[rank::size].tolist()"),
        "has each number once",
    ),
    "shared out, then shuffled": (
        lambda: shard_of(
            "mine = np.arange(rank, n, size)", "return np.random.default_rng(epoch).permutation(mine)"
        ),
        "shuffle first",
    ),
    "counts from 1": (
        lambda: shard_of(ORDER, "return (order[rank::size] + 1).tolist()"),
        "numbered from 0",
    ),
    "prints": (lambda: shard_of(ORDER, "print(order[rank::size])"), "returned None"),
}
NEVER_ENDS = {
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
        lambda: hook(
            "if dist.get_rank(process_group) == 0:",
            f"    {START}; {THEN}",
            "future = torch.futures.Future()",
            "future.set_result(tensor)",
            "return future",
        ),
        "never starts its allreduce",
    ),
    "a future that nobody completes": (
        lambda: hook("dist.all_reduce(tensor, group=process_group)", "return torch.futures.Future()"),
        "never completed",
    ),
}


def judge(answer):
    return getattr(check, answer.__name__)(answer)


@pytest.mark.parametrize("way", RIGHT)
def test_another_right_way_passes(way):
    verdict = judge(RIGHT[way]())
    assert verdict.passed, verdict


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_answer_is_rejected_with_its_hint(mistake):
    answer, hint = WRONG[mistake]
    verdict = judge(answer())
    assert verdict.passed is False, verdict
    assert hint.lower() in verdict.hint.lower(), verdict


@pytest.mark.parametrize("mistake", NEVER_ENDS)
def test_an_answer_that_never_ends_is_stopped_and_the_hint_says_why(mistake, team):
    answer, hint = NEVER_ENDS[mistake]
    verdict = judge(answer())
    assert verdict.passed is False, verdict
    assert "is at" in verdict.failed, "it says on which line the ranks wait"
    assert hint.lower() in verdict.hint.lower(), verdict
    assert team.healthy, "fresh ranks are there for the next cell"


def test_it_is_the_learners_function_that_runs_on_every_rank(team):
    team.push(seen=[])
    spy = "import __ranks__; __ranks__.seen.append((dist.get_rank(), len(micro_batches)))"
    check.accumulate(accumulate(spy))
    assert team.pull("seen") == [[(rank, 4), (rank, 1)] for rank in (0, 1)]


def test_the_ranks_keep_their_process_group(team):
    group = "import __ranks__; __ranks__.group = id(dist.group.WORLD)"
    check.shard_of(shard_of(group, "return []"))
    first = team.pull("group")
    check.average_hook(hook(group, START, THEN))
    assert team.pull("group") == first
