"""The ring allreduce, an exercise of 01_mpi_basics.

Each call gets its own communicator, so a message that one call leaves unreceived is never mistaken for a message of the
next call.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from workshop_lib.judge import Exercise, Mistake, Property
from workshop_lib.judge.calls import Cases, JudgedCall, all_arrays, all_right, of_case, while_right
from workshop_lib.lessons.mpi_basics.counting import CountingComm, rounds

ORIGIN = 100  # rank r adds ORIGIN**r, so a sum's digits show how often each rank's value was added


def observe_ring(comm, function: Callable) -> Cases:
    """Sum four arrays.

    One sum shows whose values went into it, one array divides into equal chunks, one does not, and one has fewer values
    than there are ranks.
    """

    def add(own: np.ndarray) -> JudgedCall:
        counting = CountingComm(comm.Dup())
        values = own.copy()
        right = np.empty_like(own)
        returned = function(counting, values)
        comm.Allreduce(own, right)
        in_rounds = rounds(comm.allgather(counting.log))
        unchanged = np.array_equal(values, own)
        return JudgedCall(returned, right, unchanged, counting.messages_sent, counting.bytes_sent, in_rounds)

    random = np.random.default_rng(comm.rank)
    arrays = {
        "origin": np.full(2 * comm.size, float(ORIGIN**comm.rank)),
        "equal": random.random(1000 * comm.size),
        "uneven": random.random(2 * comm.size + comm.size // 2),
        "few": random.random(comm.size - 1),
    }
    return while_right(comm, arrays, add)


def ring_properties(observations: list[Cases]) -> Iterator[Property]:
    origin = of_case(observations, "origin")
    yield all_arrays(origin)
    yield _adds_each_once(origin)
    equal = of_case(observations, "equal")
    hint = "The values are added in the wrong places: a chunk must be added to the chunk with the same number."
    yield all_right("the sum agrees with comm.Allreduce, element by element", equal, hint)
    hint = "your ring changed the array it was given: begin with `total = values.copy()`."
    yield Property("`values` is as it was", all(call.unchanged for call in equal), hint)
    hint = "`np.array_split(total, p)` cuts any length into p chunks."
    uneven = of_case(observations, "uneven")
    yield all_right("also when the length is not a multiple of the number of ranks", uneven, hint)
    yield all_right("also with fewer values than ranks", of_case(observations, "few"), hint)
    yield from _ring_costs(equal, uneven)


def _adds_each_once(calls: list[JudgedCall]) -> Property:
    """Return a property that holds if every element of the sum contains each rank's value exactly once.

    The evidence is how often each element contains this rank's own value and, sorted, the other ranks' values. It does
    not depend on the direction of the ring or on where it begins.
    """
    p = len(calls)
    summed = all_right("it is the sum of all ranks' values, on every rank", calls)
    if summed.holds or any(np.shape(call.returned) != call.right.shape for call in calls):
        return summed
    returned = np.array([call.returned for call in calls])
    whole = np.array_equal(returned, np.floor(returned)) and 0 <= returned.min() <= returned.max() < ORIGIN**p
    if not whole:  # the result is no sum of the ranks' values at all
        return summed
    times = returned[..., None] // ORIGIN ** np.arange(p) % ORIGIN  # [rank, element, whose value]
    rank, element, of = np.argwhere(times != 1)[0]
    observed = f"value {element} on rank {rank} holds rank {of}'s value {times[rank, element, of]:.0f} times."
    evidence = sorted((n[me], *sorted(np.delete(n, me))) for me, of_me in enumerate(times) for n in of_me)
    return replace(summed, evidence=evidence, observed=observed)


def _ring_costs(equal: list[JudgedCall], uneven: list[JudgedCall]) -> Iterator[Property]:
    """Yield what must hold for bytes, messages and rounds. With unequal chunks, bytes may vary by their rounding."""
    p = len(equal)
    array = equal[0].right.nbytes
    needed = 2 * (p - 1)
    due = 2 * (p - 1) * array // p
    hint = _bytes_hint([call.bytes for call in equal], due, array, p)
    yield Property(f"every rank sends 2(p-1)/p of the array: {due:,} bytes for an array of {array:,}", not hint, hint)
    n = uneven[0].right.size
    sent = [call.bytes for call in uneven]
    low, high = (needed * uneven[0].right.itemsize * chunk for chunk in (n // p, -(-n // p)))
    hint = f"for {n} values the ranks sent {sent} bytes; with chunks it takes {low} to {high}."
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
        return observed + f"Rank {busy} does most of the work while others idle: let each send to its neighbor only."
    if min(sent) >= (p - 1) * array:
        return observed + "That is the whole array in each step: send one chunk, 1/p of it, per step."
    if all(due < b <= due + 2 * (p - 1) * 1000 for b in sent):
        return observed + "Slightly more than the chunks: pickle adds a description of each. Use upper-case calls."
    return observed + "Each step should send one chunk, 1/p of the array, and there are 2(p-1) steps."


def _ring(
    steps: Callable[[int], int] = lambda p: 2 * (p - 1),
    adds: Callable[[int, int], bool] = lambda step, p: step < p - 1,
    sends: Callable[[int, int], int] = lambda rank, step: rank - step,
    receives: Callable[[int, int], int] = lambda rank, step: rank - step - 1,
    returns: Callable[[np.ndarray, int], np.ndarray] = lambda total, p: total,
) -> Callable:
    """Make a ring allreduce with a mistake in one of its parts.

    The parts are: how many steps p ranks take, in which steps they add, the numbers of the chunks that a rank sends and
    receives in a step, and what the function returns.
    """

    def ring_allreduce(comm, values):
        p = comm.size
        rank = comm.rank
        total = values.copy()
        chunks = np.array_split(total, p)
        for step in range(steps(p)):
            place = chunks[receives(rank, step) % p]
            incoming = np.empty_like(place)
            comm.Sendrecv(chunks[sends(rank, step) % p], (rank + 1) % p, recvbuf=incoming, source=(rank - 1) % p)
            place[:] = place + incoming if adds(step, p) else incoming
        return returns(total, p)

    return ring_allreduce


_REPLACES = "In the second phase the chunks that arrive are finished: they replace what is there. Do not add them."
_SENT_TOO_EARLY = "Do you send a chunk on before you add what arrived? The first phase adds in all of its p-1 steps."
_SAME_CHUNK = "In each step a rank sends the chunk that it has just received, and receives the one before that."

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
            "The first phase leaves one finished chunk per rank. Pass the finished chunks round in p-1 more steps.",
        ),
        Mistake(_ring(steps=lambda p: 2 * (p - 1) - 1), "There is a step missing: each phase has p-1 of them."),
        Mistake(_ring(sends=lambda rank, step: rank, receives=lambda rank, step: rank - 1), _SAME_CHUNK),
        Mistake(_ring(receives=lambda rank, step: rank - step), _SAME_CHUNK),
        Mistake(
            _ring(returns=lambda total, p: total / p),
            "Those are the means of the ranks' values: an allreduce gives the sum, without dividing.",
        ),
        Mistake(lambda comm, values: values.copy(), "It returned its own values: nothing was added to them."),
    ],
    on=4,
    stuck="when every rank sends first, nobody receives. Sendrecv sends and receives at once; or let even ranks "
    "send first and odd ranks receive first. Does every rank take the same number of steps?",
    unknown="Each rank's value belongs in every sum exactly once: follow one chunk through the picture.",
)
