"""The exercises of 07c_less_communication: a gradient's largest entries, and the outer step after local steps."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from workshop_lib.judge import Exercise, Mistake, Property, close, shown
from workshop_lib.lessons.mpi_basics.counting import GivenBytes

# (gradient, old residual, k)
GRADIENTS = [
    (np.array([0.5, -4.0, 1.0, 2.0, -0.25, 3.0]), np.zeros(6), 2),
    # The residual decides: the sum is largest at 0, 2 and 3, the gradient alone at 1, 3 and 5.
    (np.array([1.0, -4.0, 0.5, 6.0, 0.0, 3.0]), np.array([6.0, 3.5, -7.0, 1.0, 0.25, -1.5]), 3),
]


@dataclass(frozen=True)
class Compressed:
    """What `compress` returned for one of GRADIENTS, and whether it left its arguments alone."""

    returned: Any
    arguments_kept: bool


def observe_compress(comm, function: Callable) -> list[Compressed]:
    """Return what `function` returns for each of GRADIENTS, and whether it left its arguments alone."""
    compressed = []
    for gradient, residual, k in GRADIENTS:
        given = gradient.copy(), residual.copy()
        returned = function(*given, k)
        if isinstance(returned, tuple | list):
            returned = [None if part is None else np.array(part) for part in returned]
        kept = np.array_equal(given[0], gradient) and np.array_equal(given[1], residual)
        compressed.append(Compressed(returned, kept))
    return compressed


def compress_properties(observations: list) -> Iterator[Property]:
    compressed = observations[0]
    hint = f"it returned {shown(compressed[0].returned)}: `return values, indices, residual`."
    yield Property("it returns three arrays", all(_is_triple(seen.returned) for seen in compressed), hint)
    for seen, (gradient, residual, k) in zip(compressed, GRADIENTS, strict=True):
        values, indices, kept = seen.returned
        given = f"for the gradient {_listed(gradient)} and the residual {_listed(residual)}"
        again = ", with an old residual too" if residual.any() else ""
        fits = values.shape == indices.shape == (k,) and kept.shape == gradient.shape
        hint = f"for k = {k}, values have shape {values.shape}, indices {indices.shape}, the residual {kept.shape}."
        yield Property(f"k values, k indices and a residual of the gradient's shape{again}", fits, hint)
        total = gradient + residual
        indices = indices.astype(int)
        order = np.argsort(indices)
        chosen = indices[order].tolist()
        values = values[order]
        right = sorted(np.argsort(-np.abs(total))[:k].tolist())
        text = f"it chooses the largest{again}"
        observed = f"{given} it chose {chosen}."
        yield Property(text, chosen == right, evidence=chosen, observed=observed)
        text = f"it sends their values{again}"
        observed = f"{given} it sends {_listed(values)} from {chosen}."
        yield Property(text, close(values, total[chosen]), evidence=values, observed=observed)
        sent = np.zeros_like(total)
        sent[chosen] = values
        text = f"sent + new residual = gradient + old residual{again}"
        observed = f"{given} it keeps {_listed(kept)}."
        yield Property(text, close(kept + sent, total), evidence=kept, observed=observed)
    hint = "it changes an array it was given. Make a new one: `gradient + residual`, not `gradient += residual`."
    yield Property("the arguments are left alone", all(seen.arguments_kept for seen in compressed), hint)


def _is_triple(value) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(isinstance(part, np.ndarray) for part in value)


def _listed(values: np.ndarray) -> str:
    """Return the values as text, with a negative zero as 0."""
    return "[" + ", ".join(f"{value + 0.0:g}" for value in values) + "]"


def _compress(
    hint: str,
    size: Callable = lambda gradient, total: np.abs(total),
    values: Callable = lambda gradient, total: total,
    keep: Callable = lambda gradient, total, sent: total - sent,
) -> Mistake:
    """Make a wrong `compress`: `size` decides the indices it chooses, `values` what it sends, `keep` the residual."""

    def compress(gradient: np.ndarray, residual: np.ndarray, k: int) -> tuple:
        total = gradient + residual
        sent = np.zeros_like(gradient)
        indices = np.argsort(size(gradient, total))[-k:]
        sent[indices] = total[indices]
        return values(gradient, total)[indices], indices, keep(gradient, total, sent)

    return Mistake(compress, hint)


_LOST = "what it kept before is lost unless it is sent this time: start from gradient + residual."
_WRONG_COMPRESSIONS = [
    _compress("large negative values count as much: compare magnitudes, `np.abs`.", lambda gradient, total: total),
    _compress("those are the smallest magnitudes: choose the largest.", lambda gradient, total: -np.abs(total)),
    _compress(
        "it chooses by the gradient alone, so what it kept never gets its turn: choose by gradient + residual.",
        lambda gradient, total: np.abs(gradient),
    ),
    _compress("it leaves out what was kept back: send gradient + residual.", values=lambda gradient, total: gradient),
    _compress("send the values with their signs.", values=lambda gradient, total: np.abs(total)),
    _compress("it drops what was not sent: keep it.", keep=lambda gradient, total, sent: np.zeros_like(total)),
    _compress("it keeps what it sent, and will send it again: set it to 0.", keep=lambda gradient, total, sent: total),
    _compress(_LOST, keep=lambda gradient, total, sent: np.where(sent == 0, gradient, 0)),
    _compress(_LOST, keep=lambda gradient, total, sent: gradient - sent),
    _compress("that is what it sent: keep the rest.", keep=lambda gradient, total, sent: sent),
]
compress = Exercise("compress", observe_compress, compress_properties, _WRONG_COMPRESSIONS, communicates=False)


ROUNDS = 3
N = 4
# (outer learning rate, momentum): one goes to the mean of the weights, one halfway, and one has momentum.
OUTER = [(1.0, 0.0), (0.5, 0.0), (0.7, 0.9)]


@dataclass(frozen=True)
class SeenRounds:
    """What `outer_step` did in ROUNDS rounds on one rank, with one of OUTER.

    returned: None if every rank always returned a pair of arrays, else what this rank returned in the first round where
    one did not. weights: those after each round; right: what they should be. nbytes: how many bytes the rank passed to
    collectives in the first round.
    """

    returned: Any
    weights: list[np.ndarray]
    right: list[np.ndarray]
    nbytes: int


def observe_outer_step(comm, function: Callable) -> list[SeenRounds]:
    """Run ROUNDS rounds of `function` with each of OUTER; return what happened in them."""
    return [_rounds(comm, function, lr, momentum) for lr, momentum in OUTER]


def _rounds(comm, function: Callable, lr: float, momentum: float) -> SeenRounds:
    weights = right = np.arange(1.0, N + 1)
    velocity = right_velocity = np.zeros(N)
    nbytes = 0
    after: list[np.ndarray] = []
    after_right: list[np.ndarray] = []
    for turn in range(ROUNDS):
        counted = GivenBytes(comm)
        given = [array.copy() for array in (weights, weights + _moved(comm.rank, turn), velocity)]
        returned = function(counted, *given, lr, momentum)
        nbytes = nbytes or counted.nbytes
        if not all(comm.allgather(_is_pair(returned))):  # all ranks stop together, so that none waits
            return SeenRounds(returned, after, after_right, nbytes)
        weights, velocity = (np.array(part, dtype=float) for part in returned)
        mean_moved = np.mean([_moved(rank, turn) for rank in range(comm.size)], axis=0)
        right, right_velocity = _nesterov(right, -mean_moved, right_velocity, lr, momentum)
        after.append(weights)
        after_right.append(right)
    return SeenRounds(None, after, after_right, nbytes)


def _moved(rank: int, turn: int) -> np.ndarray:
    """Return how far this rank's local steps move its weights in this round."""
    return np.random.default_rng([rank, turn]).normal(size=N)


def _is_pair(value) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(np.shape(part) == (N,) for part in value)


def outer_properties(observations: list[list[SeenRounds]]) -> Iterator[Property]:
    first = observations[0]
    wrong = next((seen.returned for seen in first if seen.returned is not None), None)
    hint = f"it returned {shown(wrong)}: `return weights, velocity`, both as long as the weights."
    complete = all(len(seen.weights) == ROUNDS for of_rank in observations for seen in of_rank)
    yield Property("it returns weights and velocity", complete, hint)
    for case, text in enumerate(
        (
            "with lr 1 and no momentum, the weights are the mean of the ranks' own",
            "with lr 0.5 and no momentum, they go halfway to it",
            f"with lr 0.7 and momentum 0.9, they are right after {ROUNDS} rounds",
        )
    ):
        of_ranks = [of_rank[case] for of_rank in observations]
        right = all(close(a, b, 1e-6) for seen in of_ranks for a, b in zip(seen.weights, seen.right, strict=True))
        seen = of_ranks[0]
        at = next((at for at in range(ROUNDS) if not close(seen.weights[at], seen.right[at], 1e-6)), 0)
        observed = f"after round {at + 1} they are {_listed(np.round(seen.weights[at], 3))} on rank 0"
        observed += f", and should be {_listed(np.round(seen.right[at], 3))}."
        yield Property(text, right, evidence=of_ranks[0].weights, observed=observed)
    sent = max(seen.nbytes for of_rank in observations for seen in of_rank)
    hint = f"a round gives {sent} bytes to collectives, and the weights are {8 * N}: send them once, and nothing else."
    yield Property("a round sends the weights once", sent <= 8 * N, hint)


def _outer(hint: str, gradient: Callable | None = None, step: Callable | None = None) -> Mistake:
    """Make a wrong `outer_step`: `gradient` takes start, mine, the mean and the world size; `step` updates."""

    def outer_step(comm, start, mine, velocity, lr, momentum):
        mean = comm.allreduce(mine) / comm.size
        moved = gradient(start, mine, mean, comm.size) if gradient else start - mean
        return (step or _nesterov)(start, moved, velocity, lr, momentum)

    return Mistake(outer_step, hint)


def _nesterov(start, gradient, velocity, lr, momentum):
    velocity = momentum * velocity + gradient
    return start - lr * (gradient + momentum * velocity), velocity


def _heavy_ball(start, gradient, velocity, lr, momentum):
    velocity = momentum * velocity + gradient
    return start - lr * velocity, velocity


def _damped(start, gradient, velocity, lr, momentum):
    velocity = momentum * velocity + (1 - momentum) * gradient
    return start - lr * (gradient + momentum * velocity), velocity


_WRONG_OUTER_STEPS = [
    _outer("every rank continues with its own weights: average `mine` over the ranks.", lambda s, mine, *_: s - mine),
    _outer("that is the sum over the ranks: divide by `comm.size`.", lambda s, mine, mean, n: s - n * mean),
    _outer("the sign is wrong: SGD subtracts the gradient, so it is start - mean.", lambda s, mine, mean, n: mean - s),
    _outer("the gradient is how far the mean is from `start`: start - mean.", lambda s, mine, mean, n: mean),
    _outer(
        "it averages and ignores `lr`: go from `start`, by `lr` times the step.", step=lambda s, g, v, *_: (s - g, v)
    ),
    _outer("momentum is missing.", step=lambda s, g, v, lr, m: (s - lr * g, v)),
    _outer("that is plain momentum: Nesterov steps by gradient + momentum * velocity, the new one.", step=_heavy_ball),
    _outer("leave out the factor (1 - momentum): the gradient goes into the velocity as it is.", step=_damped),
    _outer(
        "it returns the old velocity: return the new one, or every round starts without momentum.",
        step=lambda s, g, v, lr, m: (s - lr * (g + m * (m * v + g)), v),
    ),
]
outer_step = Exercise("outer_step", observe_outer_step, outer_properties, _WRONG_OUTER_STEPS)
