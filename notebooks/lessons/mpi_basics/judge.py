"""The exercises of 01_mpi_basics: a swap between partners, results collected as they arrive, the mean of all ranks'
values, and the ring allreduce.

Each call gets its own communicator, so a message that one call leaves unreceived is never mistaken for a message of the
next call.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from workshop_lib.exercises.judge import own_or_solution
from workshop_lib.exercises.play import Edit, played
from workshop_lib.training.collectives.counting import CountingComm, rounds

NOTEBOOK = "01_mpi_basics"
written = partial(own_or_solution, notebook=NOTEBOOK)
RESULTS = [4, 1, 3, 0]  # the results that ranks send in `collect`, unsorted on purpose
ORDER = (2, 3, 1)  # the ranks that send, from the first to the last
LONGEST_WAIT_S = 1.5  # for rank 0 to take a result; then the next rank sends its own anyway


def play_exchange(exchange: Callable, comm) -> Iterator[tuple]:
    """Swap arrays between partners twice, with different lengths and types."""
    floats = 1000.0 * comm.rank + np.arange(6)
    integers = (1000 * comm.rank + np.arange(1000)).astype(np.int32)
    for mine, text in ((floats, "it is the partner's array"), (integers, "also for one of another length and type")):
        counting = CountingComm(comm.Dup())
        yield text, exchange(counting, mine.copy())
    observed = f"rank {comm.rank} sent {counting.messages_sent} messages in one exchange:"
    yield "each rank sends one message", counting.messages_sent, observed, "its array can go in one."


exchange = played(
    "exchange",
    NOTEBOOK,
    play_exchange,
    [Edit("Each rank returned its own values: return the array you received into.", ("return theirs", "return mine"))],
    returns="the partner's array, for which `np.empty_like(mine)` makes room",
    on=4,
    group_of=2,  # alone, a rank has nobody to swap with
    stuck="both partners do the same thing first, send or receive, and wait for each other. Let one of them receive "
    "before it sends, or use Sendrecv, which does both at once.",
    unknown="Did you return the array that you received into, is it like `mine`, and had the receive ended by then?",
)


def play_collect(collect: Callable, comm) -> Iterator[tuple]:
    """Collect results that ranks send one after the other.

    A rank begins when the one before it is done, which its synchronous send is once rank 0 has taken its result.
    """
    done = comm.Dup()
    counting = CountingComm(comm.Dup())
    place = ORDER.index(comm.rank) if comm.rank else 0
    took_the_ones_before = True
    if place > 0:
        # Later ranks wait longer: two that gave up together would send in either order.
        deadline = time.monotonic() + place * LONGEST_WAIT_S
        while not done.iprobe() and time.monotonic() < deadline:
            time.sleep(0.001)
        took_the_ones_before = done.iprobe()
    returned = collect(counting, RESULTS[comm.rank])
    if comm.rank and comm.rank != ORDER[-1]:
        done.send(None, ORDER[place + 1])
    if place > 0:
        done.recv(source=ORDER[place - 1])
    listed = ", ".join(map(str, ORDER))
    text = "rank 0 returns all results in the order of the ranks"
    yield text, returned if comm.rank == 0 else None, f"when ranks {listed} send in this order"
    observed = f"when rank {comm.rank} sent its result, rank 0 hadn't taken one that was sent before."
    yield "it takes them as they come", took_the_ones_before, observed


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
        Edit("That is the mean of this rank's own values: use `comm.allreduce`.", (RETURN, "return values.mean()")),
    ],
    returns="the mean, on every rank",
    on=4,
    stuck="a collective ends only when every rank has called it: is it inside an `if`?",
    unknown="Add up the values of all ranks and their counts, each with one allreduce, and divide.",
)


def play_ring(ring_allreduce: Callable, comm) -> Iterator[tuple]:
    """Sum four arrays: one whose digits show how often each rank's value was added, one that divides into equal chunks,
    one that does not, and one with fewer values than there are ranks.
    """
    p = comm.size
    total = ring_allreduce(CountingComm(comm.Dup()), np.full(2 * p, 100.0**comm.rank))
    observed = "of the ranks' values 1, 100, 10000 and 1000000"
    yield "it is the sum of all ranks' values, on every rank", total, observed
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
    took = rounds(comm.allgather(equal.log))
    observed = f"it took {took} rounds, in each of which a rank can send one message and receive one."
    advice = "Send each chunk in one piece, with Sendrecv, which sends and receives in the same round."
    yield f"all of it takes at most 2(p-1) = {needed} rounds", took <= needed, observed, advice


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
    ],
    returns="the sum of all ranks' values",
    on=4,
    group_of=2,
    stuck="when every rank sends first, nobody receives. Sendrecv sends and receives at once. Does every rank take the "
    "same number of steps?",
    unknown="Each rank's value belongs in every sum exactly once: follow one chunk through the picture.",
)
