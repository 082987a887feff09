"""The ring allreduce, an exercise of 01_mpi_basics.

Each call gets its own communicator, so a message that one call leaves unreceived is never mistaken for a message of the
next call.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from workshop_lib.judge import shown
from workshop_lib.judge.play import Edit, played
from workshop_lib.lessons.mpi_basics.counting import CountingComm, rounds

NOTEBOOK = "01_mpi_basics"
ORIGIN = 100  # rank r adds ORIGIN**r, so a sum's digits show how often each rank's value was added
WRONG_PLACES = "The values are added in the wrong places: a chunk must be added to the chunk with the same number."
ANY_LENGTH = "`np.array_split(total, p)` cuts any length into p chunks."


def play_ring(ring_allreduce: Callable, comm) -> Iterator[tuple]:
    """Sum four arrays.

    One sum shows whose values went into it, one array divides into equal chunks, one does not, and one has fewer values
    than there are ranks.
    """
    p = comm.size
    total = ring_allreduce(CountingComm(comm.Dup()), np.full(2 * p, float(ORIGIN**comm.rank)))
    yield "it is the sum of all ranks' values, on every rank", *_times_added(comm.allgather(total))
    random = np.random.default_rng(comm.rank)
    equal = CountingComm(comm.Dup())
    total = ring_allreduce(equal, random.random(1000 * p))
    yield "the sum agrees with comm.Allreduce, element by element", total, "", WRONG_PLACES
    uneven = CountingComm(comm.Dup())
    n = 2 * p + p // 2
    total = ring_allreduce(uneven, random.random(n))
    yield "also when the length is not a multiple of the number of ranks", total, "", ANY_LENGTH
    total = ring_allreduce(CountingComm(comm.Dup()), random.random(p - 1))
    yield "also with fewer values than ranks", total, "", ANY_LENGTH

    array = 8 * 1000 * p
    needed = 2 * (p - 1)
    due = needed * array // p
    sent = comm.allgather(equal.bytes_sent)
    text = f"every rank sends 2(p-1)/p of the array: {due:,} bytes for an array of {array:,}"
    yield text, all(b == due for b in sent), *_of_bytes(sent, due, array)
    sent = comm.allgather(uneven.bytes_sent)
    low, high = (needed * 8 * chunk for chunk in (n // p, -(-n // p)))
    observed = f"for {n} values the ranks sent {sent} bytes;"
    yield (
        "the same with unequal chunks",
        all(low <= b <= high for b in sent),
        observed,
        f"with chunks it takes {low} to {high}.",
    )
    messages = comm.allgather(equal.messages_sent)
    observed = f"the ranks sent {messages} messages:"
    advice = "send each chunk in one piece, once per step."
    yield f"every rank sends at most 2(p-1) = {needed} messages", max(messages) <= needed, observed, advice
    took = rounds(comm.allgather(equal.log))
    observed = f"it took {took} rounds: in every step some ranks wait before they send."
    advice = "Sendrecv lets a rank send and receive in the same round."
    yield f"all of it takes at most {needed} rounds", took <= needed, observed, advice


def _times_added(totals: list[np.ndarray]) -> tuple[Any, str]:
    """How often the elements of all ranks' sums contain the rank's own value and, sorted, those of the others.

    This does not depend on the direction of the ring or on where it begins. If they are no sums of the ranks' values,
    return the sums themselves. Either comes with a sentence on what is wrong.
    """
    p = len(totals)
    returned = np.array(totals)
    right = sum(ORIGIN**rank for rank in range(p))
    if not np.array_equal(returned, np.floor(returned)) or returned.min() < 0 or returned.max() >= ORIGIN**p:
        rank = next(rank for rank, total in enumerate(returned) if not np.all(total == right))
        right_total = np.full(2 * p, float(right))
        return returned, f"rank {rank} returned {shown(returned[rank])} where {shown(right_total)} is right."
    times = returned[..., None] // ORIGIN ** np.arange(p) % ORIGIN  # [rank, element, whose value]
    observed = ""
    if np.any(times != 1):
        rank, element, of = np.argwhere(times != 1)[0]
        observed = f"value {element} on rank {rank} holds rank {of}'s value {times[rank, element, of]:.0f} times."
    return sorted(
        [n[rank], *sorted(np.delete(n, rank))] for rank, of_rank in enumerate(times) for n in of_rank
    ), observed


def _of_bytes(sent: list[int], due: int, array: int) -> tuple[str, str]:
    """A sentence on the bytes that the ranks sent, and advice if it isn't what is due."""
    p = len(sent)
    observed = f"the ranks sent {', '.join(f'{b:,}' for b in sent)} bytes."
    if max(sent) >= 2 * max(1, min(sent)):
        busy = sent.index(max(sent))
        return observed, f"Rank {busy} does most of the work while others idle: let each send to its neighbor only."
    if min(sent) >= (p - 1) * array:
        return observed, "That is the whole array in each step: send one chunk, 1/p of it, per step."
    if all(due < b <= due + 2 * (p - 1) * 1000 for b in sent):
        return observed, "Slightly more than the chunks: pickle adds a description of each. Use upper-case calls."
    return observed, "Each step should send one chunk, 1/p of the array, and there are 2(p-1) steps."


STEPS = "range(2 * (p - 1))"
ADDS = "step < p - 1"
SENDS = "(comm.rank - step) % p"
RECEIVES = "(comm.rank - step - 1) % p"
REPLACES = "In the second phase the chunks that arrive are finished: they replace what is there. Do not add them."
SENT_TOO_EARLY = "Do you send a chunk on before you add what arrived? The first phase adds in all of its p-1 steps."
SAME_CHUNK = "In each step a rank sends the chunk that it has just received, and receives the one before that."

ring_allreduce = played(
    "ring_allreduce",
    NOTEBOOK,
    play_ring,
    [
        Edit(REPLACES, (ADDS, "True")),
        Edit(REPLACES, (ADDS, "step < p")),
        Edit(SENT_TOO_EARLY, (ADDS, "False")),
        Edit(SENT_TOO_EARLY, (ADDS, "step < p - 2")),
        Edit(
            "The first phase leaves one finished chunk per rank. Pass the finished chunks round in p-1 more steps.",
            (STEPS, "range(p - 1)"),
        ),
        Edit("There is a step missing: each phase has p-1 of them.", (STEPS, "range(2 * (p - 1) - 1)")),
        Edit(SAME_CHUNK, (SENDS, "comm.rank"), (RECEIVES, "(comm.rank - 1) % p")),
        Edit(SAME_CHUNK, (RECEIVES, SENDS)),
        Edit(
            "Those are the means of the ranks' values: an allreduce gives the sum, without dividing.",
            ("return total", "return total / p"),
        ),
        Edit("It returned its own values: nothing was added to them.", ("return total", "return values.copy()")),
        Edit("Begin with `total = values.copy()`.", ("total = values.copy()", "total = values")),
    ],
    returns="the sum of all ranks' values",
    on=4,
    stuck="when every rank sends first, nobody receives. Sendrecv sends and receives at once; or let even ranks "
    "send first and odd ranks receive first. Does every rank take the same number of steps?",
    unknown="Each rank's value belongs in every sum exactly once: follow one chunk through the picture.",
)
