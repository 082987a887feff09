"""The exercises of 01_mpi_basics: a swap between partners, results collected as they arrive, the mean of all ranks'
values, and the ring allreduce.

Each call gets its own communicator, so a message that one call leaves unreceived is never mistaken for a message of the
next call.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from workshop_lib.collectives.counting import CountingComm, rounds
from workshop_lib.judge import own_or_solution
from workshop_lib.judge.play import Edit, played

NOTEBOOK = "01_mpi_basics"
written = partial(own_or_solution, notebook=NOTEBOOK)
RESULTS = [4, 1, 3, 0]  # the results that ranks send in `collect`, unsorted on purpose
ORDERS = ((2, 3, 1), (3, 1, 2))  # each names the ranks that send, from the first to the last
LONGEST_WAIT_S = 1.5  # for rank 0 to take a result; then the next rank sends its own anyway
ORIGIN = 100  # rank r adds ORIGIN**r, so a sum's digits show how often each rank's value was added


def play_exchange(exchange: Callable, comm) -> Iterator[tuple]:
    """Swap arrays between partners twice, with different lengths and types."""
    floats = 1000.0 * comm.rank + np.arange(6)
    integers = (1000 * comm.rank + np.arange(1000)).astype(np.int32)
    for mine, text in ((floats, "it is the partner's array"), (integers, "also for one of another length and type")):
        counting = CountingComm(comm.Dup())
        theirs = exchange(counting, mine.copy())
        yield text, theirs
        got = np.asarray(theirs).dtype
        observed = f"it returned {got} where its partner sent {mine.dtype}."
        advice = "Make the array to receive into like `mine`: `np.empty_like(mine)`."
        yield f"{text}: its type", str(got), observed, advice
    observed = f"rank {comm.rank} sent {counting.messages_sent} messages in one exchange:"
    yield "each rank sends one message", counting.messages_sent, observed, "its array can go in one."


SWAP = "comm.Sendrecv(mine, dest=partner, recvbuf=theirs, source=partner)"
exchange = played(
    "exchange",
    NOTEBOOK,
    play_exchange,
    [
        Edit(
            "Each rank returned its own values: return the array you received into.", ("return theirs", "return mine")
        ),
        Edit(
            "That came from a neighbor in the ring: the partner is rank `comm.rank ^ 1`.",
            (SWAP, "comm.Sendrecv(mine, (comm.rank + 1) % 4, recvbuf=theirs, source=(comm.rank - 1) % 4)"),
        ),
        Edit(
            "What arrived has overwritten it: receive into a separate array, `np.empty_like(mine)`.",
            ("theirs = np.empty_like(mine)", "theirs, mine = mine, mine.copy()"),
        ),
    ],
    returns="the partner's array, for which `np.empty_like(mine)` makes room",
    on=4,
    stuck="both partners do the same thing first, send or receive, and wait for each other. Let one of them receive "
    "before it sends, or use Sendrecv, which does both at once.",
    unknown="Did you return the array that you received into, and had the receive ended by then?",
)


def play_collect(collect: Callable, comm) -> Iterator[tuple]:
    """Collect results that are sent one after the other, in two orders."""
    rounds_played = [_in_order(collect, comm, order) for order in ORDERS]
    for order, (returned, _) in zip(ORDERS, rounds_played, strict=True):
        text = "rank 0 returns all results in the order of the ranks"
        yield text, returned, f"when ranks {', '.join(map(str, order))} send in this order"
    for _, took_the_ones_before in rounds_played:
        observed = f"when rank {comm.rank} sent its result, rank 0 hadn't taken one that was sent before."
        yield "it takes them as they come", took_the_ones_before, observed


def _in_order(collect: Callable, comm, order: Sequence[int]) -> tuple[list | None, bool]:
    """What `collect` returns on rank 0 if ranks send in this order, and whether rank 0 had taken what came before.

    A rank begins when the one before it is done, which its synchronous send is once rank 0 has taken its result.
    """
    done = comm.Dup()
    counting = CountingComm(comm.Dup())
    place = order.index(comm.rank) if comm.rank else 0
    took_the_ones_before = True
    if place > 0:
        # Later ranks wait longer: two that gave up together would send in either order.
        deadline = time.monotonic() + place * LONGEST_WAIT_S
        while not done.iprobe() and time.monotonic() < deadline:
            time.sleep(0.001)
        took_the_ones_before = done.iprobe()
    returned = collect(counting, RESULTS[comm.rank])
    if comm.rank and comm.rank != order[-1]:
        done.send(None, order[place + 1])
    if place > 0:
        done.recv(source=order[place - 1])
    return returned if comm.rank == 0 else None, took_the_ones_before


ONE_BY_ONE = "for _ in range(comm.size - 1)"
collect = played(
    "collect",
    NOTEBOOK,
    play_collect,
    [
        Edit(
            "You list them as they came, so who is quick comes first: `status.source` says whose result it is.",
            (ONE_BY_ONE, "for at in range(1, comm.size)"),
            ("[status.source]", "[at]"),
        ),
        Edit(
            "Rank 0 waits for rank 1 while the others may be ready: receive from `MPI.ANY_SOURCE`.",
            (ONE_BY_ONE, "for other in range(1, comm.size)"),
            ("source=MPI.ANY_SOURCE", "source=other"),
        ),
    ],
    watched=False,
    on=4,
    timeout_s=15.0,
    stuck="a receive from any source may have taken the very message that a later one waits for: receive all of them "
    "from any source, as many as there are other ranks.",
    unknown="Make a list with a place for each rank, receive size - 1 times from any source, and put each result in "
    "the place of the rank it came from.",
)


def play_global_mean(global_mean: Callable, comm) -> Iterator[tuple]:
    """Compute two means: one where every rank has a different number of values, and one where rank 1 has none."""
    for length, text in (
        (comm.rank + 2, "it is the mean of all values"),
        (0 if comm.rank == 1 else 3, "also when a rank has no values at all"),
    ):
        yield text, global_mean(comm.Dup(), 10.0 * comm.rank**2 + np.arange(length))


SUM = "values.sum()"
COUNT = "comm.allreduce(len(values))"
RETURN = "return total / count"
global_mean = played(
    "global_mean",
    NOTEBOOK,
    play_global_mean,
    [
        Edit(
            "That is the mean of the ranks' means. A rank with few values must count less: add up values and counts.",
            (SUM, "values.mean()"),
            (COUNT, "comm.size"),
        ),
        Edit("That is the sum of all values: divide by how many there are.", (RETURN, "return total")),
        Edit("You divided by the number of ranks: use that of values.", (COUNT, "comm.size")),
        Edit("That is the mean of this rank's own values: use `comm.allreduce`.", (RETURN, "return values.mean()")),
        Edit(
            "The mean of no values is not a number (nan): add up sums and counts, and divide once.",
            (SUM, "values.mean() * len(values)"),
        ),
    ],
    alone=True,
    returns="the mean, on every rank",
    on=4,
    stuck="a collective ends only when every rank has called it: is it inside an `if`?",
    unknown="Add up the values of all ranks and their counts, each with one allreduce, and divide.",
)


def play_ring(ring_allreduce: Callable, comm) -> Iterator[tuple]:
    """Sum four arrays.

    One sum shows whose values went into it, one array divides into equal chunks, one does not, and one has fewer values
    than there are ranks.
    """
    p = comm.size
    total = ring_allreduce(CountingComm(comm.Dup()), np.full(2 * p, float(ORIGIN**comm.rank)))
    yield "it is the sum of all ranks' values, on every rank", total, _times_added(comm, total)
    random = np.random.default_rng(comm.rank)
    equal = CountingComm(comm.Dup())
    total = ring_allreduce(equal, random.random(1000 * p))
    advice = "The values are added in the wrong places: a chunk must be added to the chunk with the same number."
    yield "the sum agrees with comm.Allreduce, element by element", total, "", advice
    advice = "`np.array_split(total, p)` cuts any length into p chunks."
    for n, text in (
        (2 * p + p // 2, "also when the length is not a multiple of the number of ranks"),
        (p - 1, "also with fewer values than ranks"),
    ):
        yield text, ring_allreduce(CountingComm(comm.Dup()), random.random(n)), "", advice

    array = 8 * 1000 * p
    needed = 2 * (p - 1)
    due = needed * array // p
    observed = f"rank {comm.rank} sent {equal.bytes_sent:,} bytes."
    advice = "Each step should send one chunk, 1/p of the array, to the neighbor, with upper-case calls."
    text = f"every rank sends 2(p-1)/p of the array: {due:,} bytes for an array of {array:,}"
    yield text, equal.bytes_sent == due, observed, advice
    observed = f"rank {comm.rank} sent {equal.messages_sent} messages:"
    advice = "send each chunk in one piece, once per step."
    yield f"every rank sends at most 2(p-1) = {needed} messages", equal.messages_sent <= needed, observed, advice
    took = rounds(comm.allgather(equal.log))
    observed = f"it took {took} rounds: in every step some ranks wait before they send."
    advice = "Sendrecv lets a rank send and receive in the same round."
    yield f"all of it takes at most {needed} rounds", took <= needed, observed, advice


def _times_added(comm, total: np.ndarray) -> str:
    """A sentence on a value that this sum contains twice or not at all; empty if there is none, or if it is unclear."""
    times = np.asarray(total)[:, None] // ORIGIN ** np.arange(comm.size) % ORIGIN  # [element, whose value]
    wrong = np.argwhere(times != 1)
    if len(wrong) == 0 or times.max() > comm.size:
        return ""
    element, of = wrong[0]
    return f"value {element} on rank {comm.rank} holds rank {of}'s value {times[element, of]:.0f} times."


STEPS = "range(2 * (p - 1))"
ADDS = "step < p - 1"
ring_allreduce = played(
    "ring_allreduce",
    NOTEBOOK,
    play_ring,
    [
        Edit(
            "In the second phase the chunks that arrive are finished: they replace what is there. Do not add them.",
            (ADDS, "True"),
        ),
        Edit(
            "The first phase leaves one finished chunk per rank. Pass the finished chunks round in p-1 more steps.",
            (STEPS, "range(p - 1)"),
        ),
        Edit(
            "In each step a rank sends the chunk that it has just received, and receives the one before that.",
            ("(comm.rank - step - 1) % p", "(comm.rank - step) % p"),
        ),
        Edit(
            "Those are the means of the ranks' values: an allreduce gives the sum, without dividing.",
            ("return total", "return total / p"),
        ),
        Edit("Begin with `total = values.copy()`.", ("total = values.copy()", "total = values")),
    ],
    returns="the sum of all ranks' values",
    on=4,
    stuck="when every rank sends first, nobody receives. Sendrecv sends and receives at once; or let even ranks "
    "send first and odd ranks receive first. Does every rank take the same number of steps?",
    unknown="Each rank's value belongs in every sum exactly once: follow one chunk through the picture.",
)
