"""The exercises of 01_mpi_basics: a swap between partners, the mean of all ranks' values, and the ring allreduce.

Each call has a communicator of its own, so that a message which one call leaves unreceived is never taken for one of
the next. Cases come one at a time, the easy ones first, and end with the first whose value is wrong on some rank: a
later one might then fail in a way that says less.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from workshop_lib.comm.counting import CountingComm, rounds
from workshop_lib.exercises import Exercise, Mistake, Property, close, is_number, shown

RETURN_IT = "give the result a name and `return` it."
ORIGIN = 100  # rank r puts ORIGIN**r into a sum: its digits then say how often each rank's value was added
Cases = dict[str, "Call"]  # one rank's calls, by case


@dataclass
class Call:
    """What one call returned on one rank, what it should have returned, and what it sent.

    own: what this rank put in; unchanged: whether the function left that as it was.
    """

    returned: Any
    own: np.ndarray
    right: Any
    unchanged: bool = True
    messages: int = 0
    bytes: int = 0
    rounds: int = 0


def _while_right(comm, cases: dict[str, Any], call: Callable[[Any], Call]) -> Cases:
    """The call made for each case, up to the first whose value is wrong on some rank."""
    calls = {}
    for name, case in cases.items():
        calls[name] = call(case)
        if not all(comm.allgather(close(calls[name].returned, calls[name].right))):
            break
    return calls


def _of_case(observations: list[Cases], case: str) -> list[Call]:
    """Every rank's call of one case. It is there only if those before it were right."""
    return [cases[case] for cases in observations]


def _first_wrong(calls: list[Call]) -> tuple[int, Call] | None:
    """The first rank that did not return what is right, with its call."""
    return next(((rank, call) for rank, call in enumerate(calls) if not close(call.returned, call.right)), None)


def _all_arrays(calls: list[Call]) -> Property:
    other = [(rank, call.returned) for rank, call in enumerate(calls) if not isinstance(call.returned, np.ndarray)]
    hint = f"rank {other[0][0]} returned {shown(other[0][1])}: {RETURN_IT}" if other else ""
    return Property("every rank returns an array", not other, hint)


def observe_exchange(comm, function: Callable) -> Cases:
    """Two swaps between partners, of different length and type."""

    def swap(case: tuple[int, type]) -> Call:
        length, dtype = case
        counting = CountingComm(comm.Dup())
        own = (1000 * comm.rank + np.arange(length)).astype(dtype)
        mine = own.copy()
        returned = function(counting, mine)
        right = comm.allgather(own)[comm.rank ^ 1]
        return Call(returned, own, right, np.array_equal(mine, own), counting.messages_sent)

    return _while_right(comm, {"floats": (6, np.float64), "integers": (1000, np.int32)}, swap)


def exchange_properties(observations: list[Cases]) -> Iterator[Property]:
    calls = _of_case(observations, "floats")
    yield _all_arrays(calls)
    yield _is_the_partners("it is the partner's array", calls)
    yield _is_the_partners("also for an array of another length and type", _of_case(observations, "integers"))
    hint = "what arrived has overwritten it: receive into an array of its own, `np.empty_like(mine)`."
    yield Property("`mine` is as it was", all(call.unchanged for call in calls), hint)
    most = max(call.messages for call in calls)
    hint = f"a rank sent {most} messages in one exchange; its array can go in one."
    yield Property("each rank sends one message", most == 1, hint)


def _is_the_partners(text: str, calls: list[Call]) -> Property:
    """The returned array has the values, shape and type of the partner's."""
    hint, observed = "", ""
    for rank, call in enumerate(calls):
        got, right = np.asarray(call.returned), call.right
        if (got.shape, got.dtype) != (right.shape, right.dtype):
            hint = (
                f"rank {rank} returned {got.dtype} of shape {got.shape}, its partner sent {right.dtype} of shape "
                f"{right.shape}. Make the array to receive into like `mine`: `np.empty_like(mine)`."
            )
            break
        if not np.array_equal(got, right):
            observed = f"rank {rank} returned {shown(got)} where its partner, rank {rank ^ 1}, sent {shown(right)}."
            break
    return Property(text, not (hint or observed), hint, [call.returned for call in calls], observed)


def _from_neighbour(shift: int) -> Callable:
    def exchange(comm, mine):
        source, dest = (comm.rank + shift) % comm.size, (comm.rank - shift) % comm.size
        theirs = np.empty_like(mine)
        comm.Sendrecv(mine, dest, recvbuf=theirs, source=source)
        return theirs

    return exchange


_PARTNER = "That came from a neighbour in the ring: the partner is rank `comm.rank ^ 1`."

exchange = Exercise(
    "exchange",
    observe_exchange,
    exchange_properties,
    [
        Mistake(lambda comm, mine: mine.copy(), "Those are its own values: return the array that it received into."),
        Mistake(_from_neighbour(-1), _PARTNER),
        Mistake(_from_neighbour(1), _PARTNER),
    ],
    on=4,
    stuck="both partners do the same thing first, send or receive, and wait for each other. Let one of them receive "
    "before it sends, or use Sendrecv, which does both at once.",
    unknown="Did you return the array that was received into, and had the receive ended by then?",
)


def observe_mean(comm, function: Callable) -> Cases:
    """Two means: every rank with a different number of values, and rank 1 with none at all."""

    def mean(length: int) -> Call:
        values = 10.0 * comm.rank**2 + np.arange(length)
        right = np.concatenate(comm.allgather(values)).mean()
        return Call(function(comm.Dup(), values.copy()), values, right)

    return _while_right(comm, {"uneven": comm.rank + 2, "none": 0 if comm.rank == 1 else 3}, mean)


def mean_properties(observations: list[Cases]) -> Iterator[Property]:
    first = [call.returned for call in _of_case(observations, "uneven")]
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
    for text, case in (("it is the mean of all values", "uneven"), ("also when a rank has no values at all", "none")):
        calls = _of_case(observations, case)
        hint, observed = "", ""
        if wrong := _first_wrong(calls):
            rank, call = wrong
            observed = f"rank {rank} returned {call.returned!r}, but the mean is {call.right:.6g}."
            if is_number(call.returned) and math.isnan(call.returned):
                hint = "the mean of no values is not a number (nan): add up sums and counts, and divide once."
        yield Property(text, not wrong, hint, [call.returned for call in calls], observed)


global_mean = Exercise(
    "global_mean",
    observe_mean,
    mean_properties,
    [
        Mistake(
            lambda comm, values: comm.allreduce(values.mean()) / comm.size,
            "That is the mean of the ranks' means, in which a rank with few values counts as much as one with many: "
            "add up the values, add up their counts, divide once.",
        ),
        Mistake(
            lambda comm, values: comm.allreduce(values.mean()),
            "That is the sum of the ranks' means: add up the values and their counts instead.",
        ),
        Mistake(
            lambda comm, values: comm.allreduce(values.sum()),
            "That is the sum of all values: divide by how many there are on all ranks.",
        ),
        Mistake(
            lambda comm, values: comm.allreduce(values.sum()) / comm.size,
            "That is the sum divided by the number of ranks: divide by the number of values.",
        ),
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


def observe_ring(comm, function: Callable) -> Cases:
    """Four sums of arrays: one that tells whose values went into it, one that divides into equal chunks, one that does
    not, and one with fewer values than ranks.
    """

    def add(own: np.ndarray) -> Call:
        counting = CountingComm(comm.Dup())
        values, right = own.copy(), np.empty_like(own)
        returned = function(counting, values)
        comm.Allreduce(own, right)
        in_rounds = rounds(comm.allgather(counting.log))
        unchanged = np.array_equal(values, own)
        return Call(returned, own, right, unchanged, counting.messages_sent, counting.bytes_sent, in_rounds)

    random = np.random.default_rng(comm.rank)
    arrays = {
        "origin": np.full(2 * comm.size, float(ORIGIN**comm.rank)),
        "equal": random.random(1000 * comm.size),
        "uneven": random.random(2 * comm.size + comm.size // 2),
        "few": random.random(comm.size - 1),
    }
    return _while_right(comm, arrays, add)


def ring_properties(observations: list[Cases]) -> Iterator[Property]:
    origin = _of_case(observations, "origin")
    yield _all_arrays(origin)
    yield _adds_each_once(origin)
    equal = _of_case(observations, "equal")
    hint = "the values are added in the wrong places: a chunk must be added to the chunk of the same number."
    yield Property("the sum agrees with comm.Allreduce, element by element", _first_wrong(equal) is None, hint)
    hint = "the ring worked in the array that it was given: begin with `total = values.copy()`."
    yield Property("`values` is as it was", all(call.unchanged for call in equal), hint)
    for case, text in (
        ("uneven", "also when the ranks' number does not divide the length"),
        ("few", "also with fewer values than ranks"),
    ):
        hint = ""
        if wrong := _first_wrong(_of_case(observations, case)):
            rank, call = wrong
            hint = (
                f"for {call.right.size} values on {len(equal)} ranks, rank {rank} returned {shown(call.returned)}; "
                f"right is {shown(call.right)}. `np.array_split(total, p)` cuts any length into p chunks."
            )
        yield Property(text, not wrong, hint)
    yield from _ring_costs(equal, _of_case(observations, "uneven"))


def _adds_each_once(calls: list[Call]) -> Property:
    """Each rank's value is in every element of the sum once. The evidence is how often, whichever way round the ring
    goes and wherever it begins: for each element, this rank's own value, then those of the others.
    """
    text, p = "it is the sum of all ranks' values, on every rank", len(calls)
    wrong = _first_wrong(calls)
    if wrong is None:
        return Property(text, True)
    rank, call = wrong
    if np.shape(call.returned) != call.right.shape:
        return Property(text, False, f"rank {rank} returned {call.returned.size} values, not {call.right.size}.")
    times = [[_times_added(value, p) for value in call.returned] for call in calls]
    observed = f"rank {rank} returned {shown(call.returned)} where {shown(call.right)} is right."
    if not all(map(all, times)):
        return Property(text, False, evidence=[call.returned for call in calls], observed=observed)
    element, of = next((at, of) for at, counts in enumerate(times[rank]) for of in range(p) if counts[of] != 1)
    n = times[rank][element][of]
    observed = f"value {element} on rank {rank} holds rank {of}'s value {n} time{'s' * (n != 1)}."
    evidence = sorted(
        (counts[me], *sorted(counts[:me] + counts[me + 1 :])) for me, by_rank in enumerate(times) for counts in by_rank
    )
    return Property(text, False, evidence=evidence, observed=observed)


def _times_added(value: float, p: int) -> list[int]:
    """How often each rank's value is in this sum; nothing if it is no such sum."""
    if not (math.isfinite(value) and value == int(value) and 0 <= value < ORIGIN**p):
        return []
    return [int(value) // ORIGIN**of % ORIGIN for of in range(p)]


def _ring_costs(equal: list[Call], uneven: list[Call]) -> Iterator[Property]:
    """Bytes, messages and rounds, for equal chunks exactly, for unequal ones within a chunk's rounding."""
    p, array = len(equal), equal[0].own.nbytes
    needed, due = 2 * (p - 1), 2 * (p - 1) * array // p
    hint = _bytes_hint([call.bytes for call in equal], due, array, p)
    yield Property(f"every rank sends 2(p-1)/p of the array: {due:,} bytes for an array of {array:,}", not hint, hint)
    n, sent = uneven[0].own.size, [call.bytes for call in uneven]
    low, high = (needed * uneven[0].own.itemsize * chunk for chunk in (n // p, -(-n // p)))
    hint = f"of {n} values the ranks sent {sent} bytes; {low} to {high} is what chunks need."
    yield Property("the same with unequal chunks", all(low <= b <= high for b in sent), hint)
    messages = [call.messages for call in equal]
    hint = f"the ranks sent {messages} messages: send each chunk in one piece, once per step."
    yield Property(f"every rank sends 2(p-1) = {needed} messages", set(messages) == {needed}, hint)
    hint = (
        f"it took {equal[0].rounds} rounds: in every step some ranks wait before they send. Sendrecv lets a rank send "
        "and receive in the same round."
    )
    yield Property(f"all of it takes {needed} rounds", equal[0].rounds <= needed, hint)


def _bytes_hint(sent: list[int], due: int, array: int, p: int) -> str:
    if all(b == due for b in sent):
        return ""
    observed = f"the ranks sent {', '.join(f'{b:,}' for b in sent)} bytes. "
    if max(sent) >= 2 * max(1, min(sent)):
        busy = sent.index(max(sent))
        return observed + f"Rank {busy} does most of the work while others idle: let each send to its neighbour only."
    if min(sent) >= (p - 1) * array:
        return observed + "That is the whole array in each step: send one chunk, 1/p of it, per step."
    if all(due < b <= due + 2 * (p - 1) * 1000 for b in sent):
        return observed + "A little more than the chunks: a pickled object carries a description. Use upper-case calls."
    return observed + "Each step should send one chunk, 1/p of the array, and there are 2(p-1) steps."


def _ring(
    steps: Callable[[int], int] = lambda p: 2 * (p - 1),
    adds: Callable[[int, int], bool] = lambda step, p: step < p - 1,
    sends: Callable[[int, int], int] = lambda rank, step: rank - step,
    receives: Callable[[int, int], int] = lambda rank, step: rank - step - 1,
    returns: Callable[[np.ndarray, int], np.ndarray] = lambda total, p: total,
) -> Callable:
    """A ring allreduce that goes wrong in one of these: how many steps of p ranks, in which of them it adds, the
    numbers of the chunks that a rank sends and receives, and what is returned.
    """

    def ring_allreduce(comm, values):
        p, rank, total = comm.size, comm.rank, values.copy()
        chunks = np.array_split(total, p)
        for step in range(steps(p)):
            place = chunks[receives(rank, step) % p]
            incoming = np.empty_like(place)
            comm.Sendrecv(chunks[sends(rank, step) % p], (rank + 1) % p, recvbuf=incoming, source=(rank - 1) % p)
            place[:] = place + incoming if adds(step, p) else incoming
        return returns(total, p)

    return ring_allreduce


_REPLACES = "A chunk that goes round finished, in the second phase, replaces what is there: do not add it."
_SENT_TOO_EARLY = (
    "Is a chunk sent on before what arrived was added to it? The first phase adds in all of its p-1 steps."
)
_SAME_CHUNK = (
    "A rank sends on the chunk that it has just received: both numbers, of the chunk it sends and of the one it "
    "receives, go down by one in each step, and the second is one behind the first."
)

ring_allreduce = Exercise(
    "ring_allreduce",
    observe_ring,
    ring_properties,
    [
        Mistake(_ring(adds=lambda step, p: True), _REPLACES),
        Mistake(_ring(adds=lambda step, p: step < p), _REPLACES),
        Mistake(_ring(adds=lambda step, p: False), _SENT_TOO_EARLY),
        Mistake(_ring(adds=lambda step, p: step < p - 2), _SENT_TOO_EARLY),
        Mistake(
            _ring(steps=lambda p: p - 1),
            "Each rank has one finished chunk, and the others hold parts of the sum: that is the first phase. Pass the "
            "finished chunks round in p-1 more steps, each rank keeping what arrives.",
        ),
        Mistake(_ring(steps=lambda p: 2 * (p - 1) - 1), "There is a step missing: each phase has p-1 of them."),
        Mistake(_ring(sends=lambda rank, step: rank, receives=lambda rank, step: rank - 1), _SAME_CHUNK),
        Mistake(_ring(receives=lambda rank, step: rank - step), _SAME_CHUNK),
        Mistake(
            _ring(returns=lambda total, p: total / p),
            "Those are the means of the ranks' values: an allreduce gives the sum, without dividing.",
        ),
        Mistake(
            lambda comm, values: values.copy(), "It returned its own values: nothing was added to what it returns."
        ),
    ],
    on=4,
    stuck="when every rank sends first, nobody receives. Sendrecv sends and receives at once; or let ranks of even "
    "number send first and the others receive first. Does every rank take the same number of steps?",
    unknown="Each rank's value belongs into every sum exactly once: follow one chunk through the picture.",
)
