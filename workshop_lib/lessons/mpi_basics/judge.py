"""The exercises of 01_mpi_basics: a swap between partners, results collected as they arrive, the mean of all ranks'
values, and the ring allreduce (judge_ring.py).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from workshop_lib.judge import Exercise, Mistake, Property, shown
from workshop_lib.judge.play import Edit, played
from workshop_lib.lessons.mpi_basics.counting import CountingComm
from workshop_lib.lessons.mpi_basics.explorer import Exploration, explore
from workshop_lib.lessons.mpi_basics.judge_ring import NOTEBOOK, ring_allreduce

__all__ = ["collect", "exchange", "global_mean", "ring_allreduce"]

RESULTS = [4, 1, 3, 0]  # the results that ranks send in `collect`, unsorted on purpose


def play_exchange(exchange: Callable, comm) -> Iterator[tuple]:
    """Swap arrays between partners twice, with different lengths and types."""
    counting = [CountingComm(comm.Dup()), CountingComm(comm.Dup())]
    mine = 1000.0 * comm.rank + np.arange(6)
    theirs = exchange(counting[0], mine.copy())
    yield "it has the type of the partner's array", *_type(theirs, mine)
    yield "it has the partner's values", theirs
    mine = (1000 * comm.rank + np.arange(1000)).astype(np.int32)
    theirs = exchange(counting[1], mine.copy())
    yield "also for an array of another length and type", *_type(theirs, mine)
    yield "with the partner's values", theirs
    most = max(comm.allgather(counting[0].messages_sent))
    observed = f"a rank sent {most} messages in one exchange:"
    yield "each rank sends one message", most == 1, observed, "its array can go in one."


def _type(theirs: np.ndarray, mine: np.ndarray) -> tuple[str, str, str]:
    """The type of what came back, with a sentence and advice."""
    got = np.asarray(theirs).dtype
    observed = f"it returned {got} where its partner sent {mine.dtype}."
    return str(got), observed, "Make the array to receive into like `mine`: `np.empty_like(mine)`."


NEIGHBOR = "That came from a neighbor in the ring: the partner is rank `comm.rank ^ 1`."
MAKE = "theirs = np.empty_like(mine)"
SWAP = "dest=partner, recvbuf=theirs, source=partner"
RIGHT = "(comm.rank + 1) % comm.size"
LEFT = "(comm.rank - 1) % comm.size"

exchange = played(
    "exchange",
    NOTEBOOK,
    play_exchange,
    [
        Edit(
            "Each rank returned its own values: return the array you received into.", ("return theirs", "return mine")
        ),
        Edit(NEIGHBOR, (SWAP, f"dest={RIGHT}, recvbuf=theirs, source={LEFT}")),
        Edit(NEIGHBOR, (SWAP, f"dest={LEFT}, recvbuf=theirs, source={RIGHT}")),
        Edit(
            "What arrived has overwritten it: receive into a separate array, `np.empty_like(mine)`.",
            (MAKE, "theirs, mine = mine, mine.copy()"),
        ),
    ],
    returns="the partner's array, for which `np.empty_like(mine)` makes room",
    on=4,
    stuck="both partners do the same thing first, send or receive, and wait for each other. Let one of them receive "
    "before it sends, or use Sendrecv, which does both at once.",
    unknown="Did you return the array that you received into, and had the receive ended by then?",
)


def observe_collect(comm, function: Callable) -> list[Exploration]:
    """Explore all orders on three ranks and on four, in this process. Of the ranks' results, keeps only rank 0's."""
    explored = [explore(lambda comm: function(comm, RESULTS[comm.rank]), ranks) for ranks in (3, 4)]
    return [replace(each, results=each.results[:1]) for each in explored]


def collect_properties(observations: list[list[Exploration]]) -> Iterator[Property]:
    three, four = observations[0]
    returned, of_four = (each.results[0] if each.results else None for each in (three, four))
    stuck = three.kind not in ("", "race")
    yield Property("no order gets stuck or fails", not stuck, evidence=three.kind, observed=str(three))
    observed = f"rank 0 returned {shown(returned)} where {RESULTS[:3]} is right."
    text = "rank 0 returns all results in the order of the ranks"
    yield Property(text, _is_right(returned, 3), evidence=returned, observed=observed)
    yield Property("whoever comes first", not three.kind, evidence=three.kind, observed=str(three))
    observed = f"messages can arrive in 2 orders, and it takes {three.orders} of them."
    calls = [box.name.lower() for lane in three.picture.lanes for box in lane] if three.picture else []
    gathers = any("gather" in name for name in calls)
    yield Property("it takes them as they come", three.orders > 1, evidence=gathers, observed=observed)
    yield Property("nothing is left over", not three.notes, " ".join(three.notes))
    right = _is_right(of_four, 4) and not four.kind and four.orders >= math.factorial(3)
    hint = f"{four} Rank 0 returned {shown(of_four)}."
    yield Property("the same holds on four ranks", right, hint)


def _is_right(returned, ranks: int) -> bool:
    return isinstance(returned, list | tuple | np.ndarray) and list(returned) == RESULTS[:ranks]


def _collects(receive: Callable) -> Callable:
    """Make a wrong `collect`: `receive` makes rank 0's list from the communicator and rank 0's own result."""

    def collect(comm, result):
        if comm.rank == 0:
            return receive(comm, result)
        comm.send(result, dest=0)
        return None

    return collect


def _any_then_named(comm, result) -> list:
    first = comm.recv()  # without a source, recv takes a message from any rank
    return [result, first, *(comm.recv(source=other) for other in range(2, comm.size))]


collect = Exercise(
    "collect",
    observe_collect,
    collect_properties,
    [
        Mistake(
            _collects(_any_then_named),
            "A receive from any source may have taken the very message that a later one waits for: receive all of them "
            "from any source.",
        ),
        Mistake(
            _collects(lambda comm, result: [result, *(comm.recv() for _ in range(comm.size - 1))]),
            "You list them as they came, so who is quick comes first: `status.source` says whose result it is.",
        ),
        Mistake(
            _collects(lambda comm, result: [result, *(comm.recv(source=r) for r in range(1, comm.size))]),
            "Rank 0 waits for rank 1 while the others may be ready: receive from `MPI.ANY_SOURCE`.",
        ),
        Mistake(
            lambda comm, result: comm.gather(result),
            "`gather` returns when the last one has come, and rank 0 can do nothing before: use `recv`.",
        ),
        Mistake(
            _collects(lambda comm, result: sorted([result, *(comm.recv() for _ in range(comm.size - 1))])),
            "They are sorted by their values: put each in the place of the rank that sent it.",
        ),
        Mistake(
            _collects(lambda comm, result: [comm.recv(source=r) for r in range(1, comm.size)]),
            "Rank 0 has a result, too: put it in the first place.",
        ),
        Mistake(lambda comm, result: result, "Nothing is sent: every rank but 0 sends its result to rank 0."),
    ],
    communicates=False,
    unknown="Make a list with a place for each rank, receive size - 1 times from any source, and put each result in "
    "the place of the rank it came from.",
)


def play_global_mean(global_mean: Callable, comm) -> Iterator[tuple]:
    """Compute two means: one where every rank has a different number of values, and one where rank 1 has none."""
    for length, text in (
        (comm.rank + 2, "it is the mean of all values"),
        (0 if comm.rank == 1 else 3, "also when a rank has no values at all"),
    ):
        mean = global_mean(comm.Dup(), 10.0 * comm.rank**2 + np.arange(length))
        advice = NO_VALUES if math.isnan(mean) else ""
        yield text, mean, "", advice


NO_VALUES = "The mean of no values is not a number (nan): add up sums and counts, and divide once."
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
        Edit(
            "That is the sum of the ranks' means: add up values and counts.",
            (SUM, "values.mean()"),
            (RETURN, "return total"),
        ),
        Edit("That is the sum of all values: divide by how many there are.", (RETURN, "return total")),
        Edit("You divided by the number of ranks: use that of values.", (COUNT, "comm.size")),
        Edit(
            "The sum is right, but you divided it by this rank's count alone: add up the counts as well.",
            (COUNT, "max(1, len(values))"),
        ),
        Edit("That is the mean of this rank's own values: use `comm.allreduce`.", (RETURN, "return values.mean()")),
        Edit("That is the sum of this rank's own values: use `comm.allreduce`.", (RETURN, "return values.sum()")),
        Edit(
            "`reduce` and `gather` give their result to one rank, `allreduce` to all.",
            (RETURN, f"if comm.rank == 0: {RETURN}"),
        ),
        Edit("Take the number out of it, as with `[0]`.", (RETURN, "return np.array([total]) / count")),
        Edit("Each rank has to add up its own values, too.", (RETURN, "return values / count")),
    ],
    returns="the mean, on every rank",
    on=4,
    stuck="a collective ends only when every rank has called it: is it inside an `if`?",
    unknown="Add up the values of all ranks and their counts, each with one allreduce, and divide.",
)
