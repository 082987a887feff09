"""The exercises of 07c_less_communication: sending only the largest entries of a gradient."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from workshop_lib.exercises import Exercise, Mistake, Property, close, shown

# Gradient, old residual and k.
GRADIENTS = [
    (np.array([0.5, -4.0, 1.0, 2.0, -0.25, 3.0]), np.zeros(6), 2),
    # The residual decides: together the largest are at 0, 2 and 3, of the gradient alone at 1, 3 and 5.
    (np.array([1.0, -4.0, 0.5, 6.0, 0.0, 3.0]), np.array([6.0, 3.5, -7.0, 1.0, 0.25, -1.5]), 3),
]


@dataclass(frozen=True)
class Compressed:
    """What `compress` returned for one of GRADIENTS, and whether it left its arguments alone."""

    returned: Any
    arguments_kept: bool


def observe_compress(comm, function: Callable) -> list[Compressed]:
    """What `function` makes of each of GRADIENTS."""
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
    hint = f"it returned {shown(compressed[0].returned)}: `return values, places, residual`."
    yield Property("it returns three arrays", all(_is_triple(seen.returned) for seen in compressed), hint)
    for seen, (gradient, residual, k) in zip(compressed, GRADIENTS, strict=True):
        values, places, kept = seen.returned
        given = f"for the gradient {_listed(gradient)} and the residual {_listed(residual)}"
        again = ", with an old residual too" if residual.any() else ""
        fits = values.shape == places.shape == (k,) and kept.shape == gradient.shape
        hint = f"for k = {k}, values have shape {values.shape}, places {places.shape}, the residual {kept.shape}."
        yield Property(f"k values, k places and a residual of the gradient's shape{again}", fits, hint)
        total, places = gradient + residual, places.astype(int)
        order = np.argsort(places)
        chosen, values = places[order].tolist(), values[order]
        right = sorted(np.argsort(-np.abs(total))[:k].tolist())
        text, observed = f"it chooses the largest{again}", f"{given} it chose {chosen}."
        yield Property(text, chosen == right, evidence=chosen, observed=observed)
        text, observed = f"it sends what is there{again}", f"{given} it sends {_listed(values)} from {chosen}."
        yield Property(text, close(values, total[chosen]), evidence=values, observed=observed)
        sent = np.zeros_like(total)
        sent[chosen] = values
        text, observed = f"sent + new residual = gradient + old residual{again}", f"{given} it keeps {_listed(kept)}."
        yield Property(text, close(kept + sent, total), evidence=kept, observed=observed)
    hint = "it changes an array it was given. Make a new one: `gradient + residual`, not `gradient += residual`."
    yield Property("the arguments are left alone", all(seen.arguments_kept for seen in compressed), hint)


def _is_triple(value) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(isinstance(part, np.ndarray) for part in value)


def _listed(values: np.ndarray) -> str:
    """The values as text, a negative zero as 0."""
    return "[" + ", ".join(f"{value + 0.0:g}" for value in values) + "]"


def _compress(
    hint: str,
    size: Callable = lambda gradient, total: np.abs(total),
    values: Callable = lambda gradient, total: total,
    keep: Callable = lambda gradient, total, sent: total - sent,
) -> Mistake:
    """A wrong `compress`: by what it chooses places, which values it sends from there, and what it keeps."""

    def compress(gradient: np.ndarray, residual: np.ndarray, k: int) -> tuple:
        total, sent = gradient + residual, np.zeros_like(gradient)
        places = np.argsort(size(gradient, total))[-k:]
        sent[places] = total[places]
        return values(gradient, total)[places], places, keep(gradient, total, sent)

    return Mistake(compress, hint)


_LOST = "what it kept before is gone unless it was sent now: start from gradient + residual."
_WRONG_COMPRESSIONS = [
    _compress("large negative values count as much: compare magnitudes, `np.abs`.", lambda gradient, total: total),
    _compress("those are the smallest.", lambda gradient, total: -np.abs(total)),
    _compress(
        "it chooses by the gradient alone, so what it kept never gets its turn: choose by gradient + residual.",
        lambda gradient, total: np.abs(gradient),
    ),
    _compress("what was kept is due now: send gradient + residual.", values=lambda gradient, total: gradient),
    _compress("send the values with their signs.", values=lambda gradient, total: np.abs(total)),
    _compress("it drops what was not sent: keep it.", keep=lambda gradient, total, sent: np.zeros_like(total)),
    _compress("what it sent is kept, and sent twice: set it to 0.", keep=lambda gradient, total, sent: total),
    _compress(_LOST, keep=lambda gradient, total, sent: np.where(sent == 0, gradient, 0)),
    _compress(_LOST, keep=lambda gradient, total, sent: gradient - sent),
    _compress("that is what it sent: keep the rest.", keep=lambda gradient, total, sent: sent),
]
compress = Exercise("compress", observe_compress, compress_properties, _WRONG_COMPRESSIONS, communicates=False)
