"""Answers to `shard_of` of 05_ddp: right ones, and wrong ones with their hint."""

from exercises.answers import variant, written

NOTEBOOK = "05_ddp"
ORDER = "order = np.random.default_rng(epoch).permutation(n)"


def shard_of(*lines: str):
    imports = "import random\nimport numpy as np, torch.distributed as dist"
    return written(imports, "shard_of(n, epoch, rank, size)", *lines)


RIGHT = {
    "shard_of, in blocks": lambda: shard_of(ORDER, "return [int(i) for i in np.array_split(order, size)[rank]]"),
    "shard_of, an array": lambda: shard_of(ORDER, "return order[rank::size]"),
    "shard_of, with Python's random": lambda: shard_of(
        "order = list(range(n))", "random.Random(epoch).shuffle(order)", "return order[rank::size]"
    ),
}
WRONG = {
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
        lambda: shard_of(ORDER, "order = np.resize(order, -(-n // size) * size)", "return order[rank::size].tolist()"),
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
        lambda: shard_of("mine = np.arange(rank, n, size)", "return np.random.default_rng(epoch).permutation(mine)"),
        "shuffle first",
    ),
    "counts from 1": (lambda: shard_of(ORDER, "return (order[rank::size] + 1).tolist()"), "numbered from 0"),
    "prints": (lambda: shard_of(ORDER, "print(order[rank::size])"), "returned None"),
}
