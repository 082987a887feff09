"""The exercises of 01_mpi_basics: a swap between partners, results collected as they arrive, the mean of all ranks'
values, and the ring allreduce (judge_ring.py).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from workshop_lib.judge import Exercise, Mistake, Property, is_number, shown
from workshop_lib.judge.calls import RETURN_IT, Cases, JudgedCall, all_arrays, all_right, of_case, while_right
from workshop_lib.lessons.mpi_basics.counting import CountingComm
from workshop_lib.lessons.mpi_basics.explorer import Exploration, explore
from workshop_lib.lessons.mpi_basics.judge_ring import ring_allreduce

__all__ = ["collect", "exchange", "global_mean", "ring_allreduce"]

RESULTS = [4, 1, 3, 0]  # the results that ranks send in `collect`, unsorted on purpose


def observe_exchange(comm, function: Callable) -> Cases:
    """Swap arrays between partners twice, with different lengths and types."""

    def swap(case: tuple[int, type]) -> JudgedCall:
        length, dtype = case
        counting = CountingComm(comm.Dup())
        own = (1000 * comm.rank + np.arange(length)).astype(dtype)
        mine = own.copy()
        returned = function(counting, mine)
        right = comm.allgather(own)[comm.rank ^ 1]
        return JudgedCall(returned, right, np.array_equal(mine, own), counting.messages_sent)

    return while_right(comm, {"floats": (6, np.float64), "integers": (1000, np.int32)}, swap)


def exchange_properties(observations: list[Cases]) -> Iterator[Property]:
    calls = of_case(observations, "floats")
    yield all_arrays(calls)
    yield _like_the_partners("it is as long as the partner's, and of its type", calls)
    yield all_right("it has the partner's values", calls)
    others = of_case(observations, "integers")
    yield _like_the_partners("also for an array of another length and type", others)
    yield all_right("with the partner's values", others)
    hint = "what arrived has overwritten it: receive into a separate array, `np.empty_like(mine)`."
    yield Property("`mine` is as it was", all(call.unchanged for call in calls), hint)
    most = max(call.messages for call in calls)
    hint = f"a rank sent {most} messages in one exchange; its array can go in one."
    yield Property("each rank sends one message", most == 1, hint)


def _like_the_partners(text: str, calls: list[JudgedCall]) -> Property:
    hint = ""
    for rank, call in reversed(list(enumerate(calls))):
        got = np.asarray(call.returned)
        right = call.right
        if (got.shape, got.dtype) != (right.shape, right.dtype):
            hint = (
                f"rank {rank} returned {got.dtype} of shape {got.shape}, its partner sent {right.dtype} of shape "
                f"{right.shape}. Make the array to receive into like `mine`: `np.empty_like(mine)`."
            )
    return Property(text, not hint, hint)


def _from_neighbor(shift: int) -> Callable:
    def exchange(comm, mine):
        source = (comm.rank + shift) % comm.size
        dest = (comm.rank - shift) % comm.size
        theirs = np.empty_like(mine)
        comm.Sendrecv(mine, dest, recvbuf=theirs, source=source)
        return theirs

    return exchange


_PARTNER = "That came from a neighbor in the ring: the partner is rank `comm.rank ^ 1`."

exchange = Exercise(
    "exchange",
    observe_exchange,
    exchange_properties,
    [
        Mistake(
            lambda comm, mine: mine.copy(), "Each rank returned its own values: return the array you received into."
        ),
        Mistake(_from_neighbor(-1), _PARTNER),
        Mistake(_from_neighbor(1), _PARTNER),
    ],
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


def observe_mean(comm, function: Callable) -> Cases:
    """Compute two means: one where every rank has a different number of values, and one where rank 1 has none."""

    def mean(length: int) -> JudgedCall:
        values = 10.0 * comm.rank**2 + np.arange(length)
        right = np.concatenate(comm.allgather(values)).mean()
        return JudgedCall(function(comm.Dup(), values.copy()), right)

    return while_right(comm, {"uneven": comm.rank + 2, "none": 0 if comm.rank == 1 else 3}, mean)


def mean_properties(observations: list[Cases]) -> Iterator[Property]:
    first = [call.returned for call in of_case(observations, "uneven")]
    without = [rank for rank, returned in enumerate(first) if returned is None]
    if len(without) == len(first):
        hint = f"rank 0 returned None: {RETURN_IT}"
    elif without:
        hint = (
            f"rank {without[0]} returned None: `reduce` and `gather` give their result to one rank, `allreduce` to all."
        )
    elif np.size(first[0]) == 1:
        hint = f"rank 0 returned {first[0]!r}: take the number out of it, as with `[0]`."
    else:
        hint = f"rank 0 returned {first[0]!r}: each rank has to add up its own values, too."
    yield Property("every rank returns a number", all(map(is_number, first)), hint)
    yield all_right("it is the mean of all values", of_case(observations, "uneven"))
    calls = of_case(observations, "none")
    hint = "the mean of no values is not a number (nan): add up sums and counts, and divide once."
    is_nan = any(is_number(call.returned) and math.isnan(call.returned) for call in calls)
    yield all_right("also when a rank has no values at all", calls, hint if is_nan else "")


global_mean = Exercise(
    "global_mean",
    observe_mean,
    mean_properties,
    [
        Mistake(
            lambda comm, values: comm.allreduce(values.mean()) / comm.size,
            "That is the mean of the ranks' means. A rank with few values must count less: add up values and counts.",
        ),
        Mistake(lambda c, v: c.allreduce(v.mean()), "That is the sum of the ranks' means: add up values and counts."),
        Mistake(lambda c, v: c.allreduce(v.sum()), "That is the sum of all values: divide by how many there are."),
        Mistake(lambda c, v: c.allreduce(v.sum()) / c.size, "You divided by the number of ranks: use that of values."),
        Mistake(
            lambda comm, values: comm.allreduce(values.sum()) / max(1, len(values)),
            "The sum is right, but you divided it by this rank's count alone: add up the counts as well.",
        ),
        Mistake(
            lambda comm, values: values.mean(), "That is the mean of this rank's own values: use `comm.allreduce`."
        ),
        Mistake(lambda comm, values: values.sum(), "That is the sum of this rank's own values: use `comm.allreduce`."),
    ],
    on=4,
    stuck="a collective ends only when every rank has called it: is it inside an `if`?",
    unknown="Add up the values of all ranks and their counts, each with one allreduce, and divide.",
)
