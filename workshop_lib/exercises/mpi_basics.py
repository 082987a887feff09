"""Checks of the exercises in 01_mpi_basics."""

import math

import numpy as np

from workshop_lib.notebook.checks import Verdict, is_number, judged, shown
from workshop_lib.probes import mpi_basics as probes
from workshop_lib.probes.compare import close

ONCE = "give the result a name and `return` it."


def exchange(function) -> Verdict:
    """`exchange(comm, mine)` returns the array of the partner, rank ^ 1."""
    stuck = (
        "both partners do the same thing first, send or receive, and wait for each other. Let one of them "
        "receive before it sends, or use Sendrecv, which does both at once."
    )
    return judged(function, probes.exchange, _judge_exchange, on=4, stuck=stuck)


def global_mean(function) -> Verdict:
    """`global_mean(comm, values)` returns the mean of all ranks' values, on every rank."""
    stuck = "a collective ends only when every rank has called it: is it inside an `if`?"
    return judged(function, probes.global_mean, _judge_global_mean, on=4, stuck=stuck)


def ring_allreduce(function) -> Verdict:
    """`ring_allreduce(comm, values)` returns the sum of all ranks' arrays, at the ring's cost."""
    stuck = (
        "when every rank sends first, nobody receives. Sendrecv sends and receives at once; or let ranks of "
        "even number send first and the others receive first. Does every rank take the same number of steps?"
    )
    return judged(function, probes.ring_allreduce, _judge_ring, on=4, stuck=stuck)


def _judge_exchange(facts: list[dict[str, dict]]):
    first = _case(facts, "floats")
    yield _all_arrays(first)
    wrong = _first(first, lambda row: not np.array_equal(row["returned"], row["right"]))
    yield "it is the partner's array", wrong is None, _exchange_hint(*wrong) if wrong else ""
    wrong = _first(_case(facts, "integers"), lambda row: not _same(row["returned"], row["right"]))
    hint = _exchange_hint(*wrong) if wrong else ""
    yield "also for an array of another length and type", wrong is None, hint
    wrong = _first(first, lambda row: not row["unchanged"])
    hint = "what arrived has overwritten it: receive into an array of its own, `np.empty_like(mine)`."
    yield "`mine` is as it was", wrong is None, hint
    most = max(row["messages"] for row in first)
    hint = f"a rank sent {most} messages in one exchange; its array can go in one."
    yield "each rank sends one message", most == 1, hint


def _exchange_hint(rank: int, row: dict) -> str:
    got, right = np.asarray(row["returned"]), row["right"]
    if np.array_equal(got, row["own"]):
        return f"rank {rank} returned its own values: return the array that it received into."
    if (got.shape, got.dtype) != (right.shape, right.dtype):
        return (
            f"rank {rank} returned {got.dtype} of shape {got.shape}, its partner sent {right.dtype} of shape "
            f"{right.shape}. Make the array to receive into like `mine`: `np.empty_like(mine)`."
        )
    for of in range(4):
        if np.array_equal(got, 1000 * of + np.arange(got.size)):
            return f"rank {rank} returned the values of rank {of}; its partner is rank {rank ^ 1}."
    return (
        f"rank {rank} returned {shown(got)} where its partner sent {shown(right)}: is it the array that was "
        "received into, and had the receive ended?"
    )


def _judge_global_mean(facts: list[dict[str, dict]]):
    first = _case(facts, "uneven")
    without = [rank for rank, row in enumerate(first) if row["returned"] is None]
    hint = f"rank {without[0]} returned None. " if without else ""
    if len(without) == len(first):
        hint += ONCE
    elif without:
        hint += "`reduce` and `gather` give their result to one rank only: `allreduce` gives it to all."
    elif np.size(first[0]["returned"]) == 1:
        hint = f"rank 0 returned {first[0]['returned']!r}: take the number out of it, as with `[0]`."
    else:
        hint = f"rank 0 returned {first[0]['returned']!r}: a rank's values have to be added up, too."
    yield "every rank returns a number", all(is_number(row["returned"]) for row in first), hint
    for text, case in (("it is the mean of all values", "uneven"), ("also when a rank has no values at all", "none")):
        wrong = _first(_case(facts, case), lambda row: not close(row["returned"], row["right"]))
        yield text, wrong is None, _mean_hint(*wrong) if wrong else ""


def _mean_hint(rank: int, row: dict) -> str:
    got, of_ranks, right = row["returned"], row["of_ranks"], row["right"]
    own = of_ranks[rank]
    total = sum(values.sum() for values in of_ranks)
    if not is_number(got):
        return f"rank {rank} returned {got!r}."
    if math.isnan(got):
        return "the mean of no values is not a number (nan): share sums and counts, and divide once."
    told = f"rank {rank} returned {got:.6g}, but the mean is {right:.6g}. "
    filled = [values.mean() for values in of_ranks if values.size]
    if close(got, np.mean(filled)):
        return told + (
            "That is the mean of the ranks' means, in which a rank with few values weighs as much as one "
            "with many: add up the values, add up their counts, divide once."
        )
    if close(got, total):
        return told + "That is the sum of all values: divide by how many there are on all ranks."
    if close(got, sum(filled)):
        return told + "That is the sum of the ranks' means: add up the values and their counts instead."
    if close(got, total / len(of_ranks)):
        return told + "That is the sum divided by the number of ranks: divide by the number of values."
    if own.size and close(got, total / own.size):
        return told + "The sum is right, but it was divided by this rank's count alone: add up the counts as well."
    if own.size and close(got, own.mean()):
        return told + "That is the mean of this rank's own values: use `comm.allreduce`."
    return told + "Add up the values of all ranks and their counts, each with one allreduce, and divide."


def _judge_ring(facts: list[dict[str, dict]]):
    origin = _case(facts, "origin")
    yield _all_arrays(origin)
    wrong = _first(origin, lambda row: not close(row["returned"], row["right"]))
    hint = _origin_hint(origin, *wrong) if wrong else ""
    yield "it is the sum of all ranks' values, on every rank", wrong is None, hint
    equal = _case(facts, "equal")
    wrong = _first(equal, lambda row: not close(row["returned"], row["right"]))
    hint = "the values are added in the wrong places: a chunk must be added to the chunk of the same number."
    yield "the sum agrees with comm.Allreduce, element by element", wrong is None, hint
    wrong = _first(equal, lambda row: not row["unchanged"])
    hint = "the ring worked in the array that it was given: begin with `total = values.copy()`."
    yield "`values` is as it was", wrong is None, hint
    for case, text in (
        ("uneven", "when the ranks' number does not divide the length"),
        ("few", "with fewer values than ranks"),
    ):
        wrong = _first(_case(facts, case), lambda row: not close(row["returned"], row["right"]))
        hint = ""
        if wrong:
            got, right = wrong[1]["returned"], wrong[1]["right"]
            hint = (
                f"for {right.size} values on {len(facts)} ranks, rank {wrong[0]} returned {shown(got)}; "
                f"right is {shown(right)}. `np.array_split(total, p)` cuts any length into p chunks."
            )
        yield f"also {text}", wrong is None, hint
    yield from _judge_cost(equal, _case(facts, "uneven"))


def _judge_cost(equal: list[dict], uneven: list[dict]):
    """Bytes, messages and rounds, for equal chunks exactly, for unequal ones within a chunk's rounding."""
    p, array = len(equal), equal[0]["own"].nbytes
    due = 2 * (p - 1) * array // p
    sent = [row["bytes"] for row in equal]
    hint = _bytes_hint(sent, due, array, p)
    yield f"every rank sends 2(p-1)/p of the array: {due:,} bytes for an array of {array:,}", not hint, hint
    value = uneven[0]["own"].itemsize
    low, high = (2 * (p - 1) * value * chunk for chunk in (uneven[0]["own"].size // p, -(-uneven[0]["own"].size // p)))
    sent = [row["bytes"] for row in uneven]
    hint = f"of {uneven[0]['own'].size} values the ranks sent {sent} bytes; {low} to {high} is what chunks need."
    yield "the same with unequal chunks", all(low <= b <= high for b in sent), hint
    messages, needed = [row["messages"] for row in equal], 2 * (p - 1)
    hint = f"the ranks sent {messages} messages: send each chunk in one piece, once a step."
    yield f"every rank sends 2(p-1) = {needed} messages", set(messages) == {needed}, hint
    rounds = equal[0]["rounds"]
    hint = (
        f"it took {rounds} rounds: in every step some ranks wait before they send. Sendrecv lets a rank send "
        "and receive in the same round."
    )
    yield f"all of it takes {needed} rounds", rounds <= needed, hint


def _bytes_hint(sent: list[int], due: int, array: int, p: int) -> str:
    if all(b == due for b in sent):
        return ""
    told = f"the ranks sent {', '.join(f'{b:,}' for b in sent)} bytes. "
    if max(sent) >= 2 * max(1, min(sent)):
        busy = sent.index(max(sent))
        return told + f"Rank {busy} does most of the work while others idle: let each send to its neighbour only."
    if min(sent) >= (p - 1) * array:
        return told + "That is the whole array in each step: send one chunk, 1/p of it, a step."
    if all(due < b <= due + 2 * (p - 1) * 1000 for b in sent):
        return told + "A little more than the chunks: pickled objects carry a description; use the upper-case calls."
    return told + "Each step sends one chunk, 1/p of the array, and there are 2(p-1) steps."


def _origin_hint(rows: list[dict], rank: int, row: dict) -> str:
    """Whose values a wrong sum holds how often, read off its digits."""
    p, returned = len(rows), np.asarray(row["returned"], dtype=float)
    if returned.shape != row["right"].shape:
        return f"rank {rank} returned {returned.size} values where {row['right'].size} are right."
    if close(returned, row["right"] / p):
        return "these are the means of the ranks' values: an allreduce gives the sum, without dividing."
    if np.array_equal(returned, row["own"]):
        return f"rank {rank} returned its own values: nothing was added to what it returns."
    times = [[_times(value, of, p) for of in range(p)] for value in returned]
    if any(None in element for element in times):
        return f"rank {rank} returned {shown(returned)}, which no sum of the ranks' values gives."
    done = [[all(n == 1 for n in _digits(v, p)) for v in np.ravel(r["returned"])] for r in rows]
    if all(sum(finished) == len(finished) // p for finished in done) and _others_partial(rows, p):
        return (
            "each rank has one finished chunk, the others hold parts of the sum: that is the first phase. "
            "Pass the finished chunks round, p-1 steps more, each rank keeping what arrives."
        )
    element, of = next((e, of) for e, counts in enumerate(times) for of in range(p) if counts[of] != 1)
    n = times[element][of]
    told = f"value {element} on rank {rank} holds rank {of}'s value {n} times. "
    if n == 0:
        return told + "Is a chunk sent on before what arrived was added to it, or is a step missing?"
    return told + "A chunk that goes round finished, in the second phase, replaces what is there: do not add it."


def _others_partial(rows: list[dict], p: int) -> bool:
    return all(n in (0, 1) for row in rows for value in np.ravel(row["returned"]) for n in _digits(value, p))


def _digits(value: float, p: int) -> list:
    return [_times(value, of, p) for of in range(p)]


def _times(value: float, of: int, p: int) -> int | None:
    """How often the value of rank `of` is in this sum; None when it is no such sum."""
    if not (math.isfinite(value) and value == int(value) and 0 <= value < probes.ORIGIN**p):
        return None
    return int(value) // probes.ORIGIN**of % probes.ORIGIN


def _all_arrays(rows: list[dict]) -> tuple[str, bool, str]:
    wrong = _first(rows, lambda row: not isinstance(row["returned"], np.ndarray))
    hint = ""
    if wrong:
        rank, returned = wrong[0], wrong[1]["returned"]
        hint = f"rank {rank} returned {shown(returned)}: {ONCE}"
    return "every rank returns an array", wrong is None, hint


def _case(facts: list[dict[str, dict]], name: str) -> list[dict]:
    """One case's rows by rank. It is there only if those before it were right."""
    return [of_rank[name] for of_rank in facts]


def _first(rows: list[dict], is_wrong) -> tuple[int, dict] | None:
    """The first rank whose row is wrong, and the row."""
    return next(((rank, row) for rank, row in enumerate(rows) if is_wrong(row)), None)


def _same(returned, right: np.ndarray) -> bool:
    return isinstance(returned, np.ndarray) and returned.dtype == right.dtype and np.array_equal(returned, right)
