"""The exercises of 01_mpi_basics: a swap between partners, results collected as they arrive, the mean of all ranks'
values, and the two halves of a ring allreduce.

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


ARRAYS = (  # (what must hold, the elements of an array, for p ranks)
    ("every element of the sum is right", lambda p: 1000 * p),
    ("also when the length is not a multiple of the number of ranks", lambda p: 2 * p + p // 2),
    ("also with fewer values than ranks", lambda p: p - 1),
)
STUCK = (
    "when every rank sends first, nobody receives. Sendrecv sends and receives at once. Does every rank take the same "
    "number of steps?"
)


def counted(comm, counting: CountingComm, nbytes: int) -> Iterator[tuple]:
    """What half a ring may send for an array of this size: p - 1 chunks, in p - 1 rounds."""
    p = comm.size
    due = (p - 1) * nbytes // p
    observed = f"rank {comm.rank} sent {counting.bytes_sent:,} bytes."
    advice = "In each step, send one chunk to the neighbor, with upper-case calls."
    text = f"every rank sends (p-1)/p of the array: {due:,} bytes for an array of {nbytes:,}"
    yield text, counting.bytes_sent, observed, advice
    took = rounds(comm.allgather(counting.log))
    observed = f"it took {took} rounds, in each of which a rank can send one message and receive one."
    advice = "Send each chunk in one piece, with Sendrecv, which sends and receives in the same round."
    yield f"all of it takes at most p-1 = {p - 1} rounds", took <= p - 1, observed, advice


def play_reduce_scatter(reduce_scatter: Callable, comm) -> Iterator[tuple]:
    """Sum an array whose digits show how often each rank's value was added, and then arrays of several lengths."""
    p = comm.size
    finished = (comm.rank + 1) % p
    chunks = np.array_split(np.full(2 * p, 100.0**comm.rank), p)
    reduce_scatter(CountingComm(comm.Dup()), chunks)
    text = "chunk (rank + 1) % p is the sum of all ranks' chunks"
    yield text, chunks[finished], "of the ranks' values 1, 100, 10000 and 1000000"
    random = np.random.default_rng(comm.rank)
    logs = []
    for text, length in ARRAYS:
        chunks = np.array_split(random.random(length(p)), p)
        logs.append(CountingComm(comm.Dup()))
        reduce_scatter(logs[-1], chunks)
        yield text, chunks[finished]
    yield from counted(comm, logs[0], 8 * 1000 * p)


def play_allgather(allgather: Callable, comm) -> Iterator[tuple]:
    """Share out chunks of several lengths, of which each rank at first has only one."""
    p = comm.size
    logs = []
    for text, length in ARRAYS:
        chunks = np.array_split(1.0 + np.arange(length(p)), p)
        for number, chunk in enumerate(chunks):
            if number != (comm.rank + 1) % p:
                chunk[:] = -1000.0 * (comm.rank + 1)  # not finished
        logs.append(CountingComm(comm.Dup()))
        allgather(logs[-1], chunks)
        yield text.replace("element of the sum is right", "rank has every finished chunk"), np.concatenate(chunks)
    yield from counted(comm, logs[0], 8 * 1000 * p)


OUTGOING = "(comm.rank - step) % p"
ARRIVING = "(comm.rank - step - 1) % p"
ADD = "place += incoming"
reduce_scatter = played(
    "reduce_scatter",
    NOTEBOOK,
    play_reduce_scatter,
    [
        Edit("The chunk that arrives replaces yours: add it to your own chunk.", (ADD, "place[:] = incoming")),
        Edit("That's one step too many: stop after p-1.", ("range(p - 1)", "range(p)")),
        Edit("In each step, a rank sends the chunk to which it has just added.", (OUTGOING, "comm.rank")),
        Edit(
            "In each step a rank sends the chunk that it has just received, and receives the one before that.",
            (ARRIVING, OUTGOING),
        ),
        Edit(
            "The sum is complete, but in another chunk: rank r sends chunk r first, and ends with chunk r+1.",
            (ARRIVING, "(comm.rank - step - 2) % p"),
            (OUTGOING, ARRIVING),
        ),
    ],
    on=4,
    group_of=2,
    stuck=STUCK,
    unknown="Each rank's value belongs in every sum exactly once: follow one chunk through the picture.",
)

allgather = played(
    "allgather",
    NOTEBOOK,
    play_allgather,
    [
        Edit("What arrives is finished: it replaces your chunk. Do not add it.", ("place[:] =", "place[:] +=")),
        Edit("Some chunks never arrive: it takes p-1 steps.", ("range(p - 1)", "range(p - 2)")),
        Edit(
            "Rank r begins with chunk r+1, the only one that it has finished.",
            ("(comm.rank - step) % p", "(comm.rank - step - 1) % p"),
            ("(comm.rank + 1 - step) % p", "(comm.rank - step) % p"),
        ),
        Edit("In each step, a rank sends the chunk that has just arrived.", ("comm.rank + 1 - step", "comm.rank + 1")),
    ],
    on=4,
    group_of=2,
    stuck=STUCK,
    unknown="Follow one finished chunk through steps 4 to 6 of the picture. On each rank, it replaces what is there.",
)
