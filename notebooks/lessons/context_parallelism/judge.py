"""How 11c_context_parallelism checks its exercises: merged partial results, ring attention, and zigzag's order."""

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from mpi4py import MPI
from torch import Tensor

from workshop_lib.exercises.judge import own_or_solution
from workshop_lib.exercises.play import Edit, played
from workshop_lib.exercises.solutions import Solution
from workshop_lib.training.collectives.counting import CountingComm

from lessons.context_parallelism.blocks import BlockAttention, Partial, contiguous

NOTEBOOK = "11c_context_parallelism"
written = partial(own_or_solution, notebook=NOTEBOOK)
SHAPE = 2, 3, 24, 5  # sequences, heads, tokens and numbers per head; the tokens divide by 2, 3 and 4 ranks
ORDERS = ((24, 3), (16, 2), (40, 4))  # tokens and ranks


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def one_part(seed: int, keys: int, larger: float = 0.0) -> Partial:
    """The partial result of 4 queries over some random keys, with `larger` added to all scores."""
    scores = random(seed, 4, keys) + larger
    value = random(seed + 1, keys, 3)
    top = scores.amax(dim=1, keepdim=True)
    weights = (scores - top).exp()
    return top, weights.sum(dim=1, keepdim=True), weights @ value


NO_KEYS: Partial = (
    torch.full((4, 1), -math.inf, dtype=torch.float64),
    torch.zeros(4, 1, dtype=torch.float64),
    torch.zeros(4, 3, dtype=torch.float64),
)


def play_merge(merge: Callable, comm) -> Iterator[tuple]:
    a = one_part(1, keys=3)
    b = one_part(3, keys=5)
    top, total, out = merge(a, b)
    yield "`top` is the larger of the two, for each query", top
    yield "`total` and `out` are sums over all keys", total, "for `total`", BOTH_SCALED
    yield "`total` and `out` are sums over all keys", out, "for `out`", BOTH_SCALED
    far = merge(one_part(1, keys=3, larger=2000.0), b)
    advice = "Only use exp of a difference that is 0 or negative: `top_a - top`, where `top` is the larger of the two."
    yield "scores of 2,000 overflow nowhere", list(far), "with scores around 2,000", advice
    empty = merge(a, NO_KEYS)
    yield "a part without any keys changes nothing", list(empty), "with a part without keys"


BOTH_SCALED = (
    "Each part was computed relative to its own `top`. Multiply it by `(top_a - top).exp()` or `(top_b - top).exp()`."
)
SCALED_OUT = "out_a * scale_a + out_b * scale_b"
merge = played(
    "merge",
    NOTEBOOK,
    play_merge,
    [
        Edit(
            "The two parts are relative to different tops. Bring both to the new `top` before you add them: multiply "
            "by `(top_a - top).exp()` and `(top_b - top).exp()`.",
            ("total_a * scale_a + total_b * scale_b", "total_a + total_b"),
            (SCALED_OUT, "out_a + out_b"),
        ),
        Edit("`out` is relative to its top as well: scale it like `total`.", (SCALED_OUT, "out_a + out_b")),
        Edit(
            "The scale is the wrong way round. What was divided by `exp(top_a)` has to be divided by `exp(top)`.",
            ("(top_a - top).exp()", "(top - top_a).exp()"),
            ("(top_b - top).exp()", "(top - top_b).exp()"),
        ),
    ],
    returns="(top, total, out)",
    communicates=False,
)


class WatchedComm(CountingComm):
    """Knows which messages are under way: started, but not waited for."""

    def __init__(self, comm):
        super().__init__(comm)
        self.sends: list[MPI.Request] = []
        self.receives: list[MPI.Request] = []

    def Isend(self, *args, **kwargs) -> MPI.Request:
        self.sends.append(super().Isend(*args, **kwargs))
        return self.sends[-1]

    def Irecv(self, *args, **kwargs) -> MPI.Request:
        self.receives.append(super().Irecv(*args, **kwargs))
        return self.receives[-1]

    def both_under_way(self) -> bool:
        """Whether this rank is sending and receiving; a request is null once it has been waited for."""
        return all(any(each != MPI.REQUEST_NULL for each in started) for started in (self.sends, self.receives))


class WatchedAttend:
    """Notes, for a play, whose keys `attend` was asked about, whether those were the keys that it was given, and
    whether messages were under way meanwhile."""

    def __init__(self, attend: BlockAttention, keys: list[Tensor], values: list[Tensor], comm: WatchedComm):
        self.attend = attend
        self.comm = comm
        self.overlaps: list[bool] = []
        self.keys = keys
        self.values = values
        self.sources: list[int] = []
        self.mismatches: list[str] = []

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, source: int) -> Partial:
        self.sources.append(int(source))
        self.overlaps.append(self.comm.both_under_way())
        owner = next((rank for rank, keys in enumerate(self.keys) if torch.equal(keys, key)), None)
        if owner is None or not torch.equal(self.values[owner], value):
            self.mismatches.append(f"neither keys nor values of one rank, as source {source}")
        elif owner != source:
            self.mismatches.append(f"the block of rank {owner}, as source {source}")
        return self.attend(query, key, value, source)


def play_ring(ring_attention: Callable, comm, overlaps: bool = False) -> Iterator[tuple]:
    size = comm.size
    tokens = SHAPE[2]
    query, key, value = (random(seed, *SHAPE) for seed in (1, 2, 3))
    positions = [contiguous(tokens, rank, size) for rank in range(size)]
    right_merge = Solution(NOTEBOOK, "merge").load()  # whatever the learner's does
    counting = WatchedComm(comm)
    keys, values = ([whole[:, :, at].contiguous() for at in positions] for whole in (key, value))
    watched = WatchedAttend(BlockAttention(positions, comm.rank), keys, values, counting)
    mine = query[:, :, positions[comm.rank]].contiguous()
    out, logsumexp = ring_attention(
        mine, keys[comm.rank].clone(), values[comm.rank].clone(), watched, right_merge, counting
    )
    observed = f"rank {comm.rank} called `attend` for the sources {watched.sources}:"
    advice = "each rank's block has to be attended to exactly once, its own included."
    yield "every rank attends to each rank's block once", sorted(watched.sources), observed, advice
    mismatch = watched.mismatches[0] if watched.mismatches else ""
    observed = f"rank {comm.rank} gave `attend` {mismatch}:"
    advice = "after `step` exchanges, a rank holds the block of rank `(comm.rank - step) % comm.size`."
    yield "`source` says whose keys and values these are", mismatch, observed, advice
    yield "every rank has its queries' part of full attention", out
    yield "and the logarithm of each query's sum of exponentials", logsumexp
    block = 2 * mine.nbytes
    observed = f"rank {comm.rank} sent {counting.bytes_sent / block:.3g} blocks of keys and values:"
    advice = f"{size - 1} are enough for {size} ranks."
    yield "every rank sends p − 1 blocks", counting.bytes_sent, observed, advice
    if overlaps:
        late = [step for step, under_way in enumerate(watched.overlaps[:-1]) if not under_way]
        observed = f"rank {comm.rank} called `attend` without a message under way in the steps {late}:"
        yield "the next block travels while you compute", late, observed, STARTED


STARTED = "Call `Isend` and `Irecv` before `attend`, and `Wait` for both after it."
SOURCE = "source = (comm.rank - step) % comm.size"
ring_attention = played(
    "ring_attention",
    NOTEBOOK,
    play_ring,
    [
        Edit(
            "Blocks travel to the right, so what you hold comes from your left: `(comm.rank - step) % comm.size`.",
            (SOURCE, "source = (comm.rank + step) % comm.size"),
        ),
        Edit(
            "In each step, send on the block that has just arrived. You keep sending your own.",
            ("Sendrecv(block.numpy()", "Sendrecv(torch.stack([key, value]).numpy()"),
        ),
    ],
    returns="the attention of this rank's queries, and their logsumexp",
    on=4,  # on 2 ranks, left and right are the same
    stuck="some rank waits for a block that nobody sends: each rank sends to its right and receives from its left.",
)

SENDRECV = "            comm.Sendrecv(block.numpy(), right, recvbuf=arriving.numpy(), source=left)\n"
BOTH_STARTED = """            sending = comm.Isend(block.numpy(), right)
            receiving = comm.Irecv(arriving.numpy(), left)
"""
BOTH_DONE = """            sending.Wait()
            receiving.Wait()
"""
overlapped_ring = played(
    "overlapped_ring",
    NOTEBOOK,
    partial(play_ring, overlaps=True),
    [
        Edit(
            "Nothing travels while you compute. " + STARTED, (BOTH_STARTED, ""), (BOTH_DONE, BOTH_STARTED + BOTH_DONE)
        ),
        Edit(
            "In each step, send on the block that has just arrived. You keep sending your own.",
            ("Isend(block.numpy()", "Isend(torch.stack([key, value]).numpy()"),
        ),
    ],
    returns="the attention of this rank's queries, and their logsumexp",
    on=4,
    stuck="some rank waits for a block that nobody sends: each rank sends to its right and receives from its left.",
)


def play_zigzag(zigzag: Callable, comm) -> Iterator[tuple]:
    orders = [(size, [zigzag(tokens, rank, size) for rank in range(size)]) for tokens, size in ORDERS]
    for size, positions in orders:
        every = np.sort(np.concatenate(positions))
        yield "together, the ranks have each token once", every, f"with {size} ranks"
    for size, positions in orders:
        rising = [bool((np.diff(each) > 0).all()) for each in positions]
        advice = "Put the chunk with the earlier tokens first."
        yield "each rank's positions rise", rising, f"with {size} ranks, some rank's positions do not rise:", advice
    for size, positions in orders:
        scores = [scores_in_step(positions, step) for step in range(size)]
        yield "in each step of the ring, all ranks compute as many scores", scores, f"with {size} ranks"


def scores_in_step(positions: list[Tensor], step: int) -> list[int]:
    """How many scores per head each rank computes in one step of a causal ring."""
    size = len(positions)
    counts = []
    for rank in range(size):
        attend = BlockAttention([torch.as_tensor(each) for each in positions], rank)
        queries, keys = attend.needed((rank - step) % size)
        counts.append((queries.stop - queries.start) * (keys.stop - keys.start))
    return counts


TWO = "torch.cat([chunks[rank], chunks[2 * size - 1 - rank]])"
zigzag = played(
    "zigzag",
    NOTEBOOK,
    play_zigzag,
    [
        Edit(
            "Neighboring chunks are still one contiguous part: the last rank has the most to do.",
            (TWO, "torch.cat([chunks[2 * rank], chunks[2 * rank + 1]])"),
        ),
        Edit(
            "Every rank's second chunk is as far from the first as everyone else's, so later ranks still see more. "
            "Pair the first chunk with the last one.",
            (TWO, "torch.cat([chunks[rank], chunks[size + rank]])"),
        ),
        Edit(
            "Single tokens dealt out like cards are balanced, but every block is then half masked, and `attend` skips "
            "nothing. Use two whole chunks per rank.",
            (TWO, "torch.arange(tokens)[rank::size]"),
        ),
    ],
    returns="the positions of this rank's tokens",
    communicates=False,
)
