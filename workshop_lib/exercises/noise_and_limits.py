"""Checks of the exercises in 07b_noise_and_limits."""

import numpy as np

from workshop_lib.notebook.checks import ENDLESS_HINT, Verdict, is_number, judged, shown
from workshop_lib.probes import noise_and_limits as probes
from workshop_lib.probes.compare import close


def noise_estimates(function) -> Verdict:
    """`noise_estimates(small_sq, big_sq, small_batch, big_batch)` returns |G|² and tr(Σ), without bias."""
    return judged(function, probes.noise_estimates, _judge_noise, stuck=ENDLESS_HINT)


def compress(function) -> Verdict:
    """`compress(gradient, residual, k)` returns the values to send, their places, and the new residual."""
    return judged(function, probes.compress, _judge_compress, stuck=ENDLESS_HINT)


def _judge_noise(facts: list[dict]):
    found = facts[0]
    shaped = all(_is_pair(got) for got in found.values())
    got = next(iter(found.values()))
    hint = "it returned nothing: `return` both estimates." if got is None else f"it returned {shown(got)}."
    yield "it returns a pair of numbers", shaped, hint
    for part, name in enumerate(("|G|²", "tr(Σ)")):
        wrong = [batches for batches, truth in probes.TRUTHS.items() if not _near(found[batches][part], truth[part])]
        hint = _noise_hint(wrong[0], found[wrong[0]], part, name) if wrong else ""
        yield f"{name} is right where the norms are exactly what they are on average", not wrong, hint


def _noise_hint(batches: tuple, found: tuple, part: int, name: str) -> str:
    (small_sq, big_sq), (small, big) = probes.NORMS[batches], batches
    truth, got = probes.TRUTHS[batches], found[part]
    known = [
        (truth[1 - part], "The two are the other way round: |G|² comes first."),
        ((big_sq, small_sq)[part], "That is a measured norm itself, which has noise in it: solve for both."),
        (-truth[part], "The sign is the wrong way round."),
        (truth[part] * (big - small), "Divide by the difference of the batches."),
        (small_sq - big_sq, "Divide by 1/small_batch - 1/big_batch."),
        ((small_sq - big_sq) * small, "That takes big_sq for |G|²: the noise of the big batch is in it too."),
        ((small_sq - big_sq) * (1 / small - 1 / big), "Divide by 1/small_batch - 1/big_batch, not multiply."),
        ((small_sq - big_sq) / (big - small), "The unknown is multiplied by 1/batch, not by the batch."),
        ((big * small_sq - small * big_sq) / (big - small), "Each norm goes with its own batch."),
        (truth[1] / truth[0], "That is the noise scale: the two parts are asked for, to be averaged first."),
    ]
    hint = next((text for value, text in known if _near(got, value)), "Solve the two equations again.")
    return (
        f"for norms {small_sq:g} (batch {small}) and {big_sq:g} (batch {big}) {name} is {truth[part]:g}, "
        f"not {got:.4g}. {hint}"
    )


def _judge_compress(facts: list[dict]):
    found = facts[0]
    first = found["first"]["returned"]
    hint = (
        "it returned nothing: `return values, places, residual`."
        if first is None
        else f"it returned {shown(first)}: return the values, their places and the new residual."
    )
    yield "it returns three arrays", all(_is_triple(case["returned"]) for case in found.values()), hint
    for name, case in found.items():
        gradient, residual, k = probes.GRADIENTS[name]
        values, places, kept = case["returned"]
        told = f"of gradient {_listed(gradient)} and residual {_listed(residual)}"
        again = "" if name == "first" else ", with an old residual too"
        fits = values.shape == places.shape == (k,) and kept.shape == gradient.shape
        hint = f"for k = {k}, values have shape {values.shape}, places {places.shape}, residual {kept.shape}."
        yield f"k values, k places and a residual of the gradient's shape{again}", fits, hint
        total = gradient + residual
        right = np.argsort(-np.abs(total))[:k]
        hint = f"{told} it chose {sorted(map(int, places))}. {_choice_hint(gradient, residual, places, k)}"
        yield f"it chooses the largest{again}", sorted(places) == sorted(right), hint
        hint = f"{told} it sends {_listed(values)} from {_listed(places)}. "
        hint += _value_hint(gradient, values, places)
        yield f"it sends what is there{again}", close(values, total[places.astype(int)]), hint
        sent = np.zeros_like(total)
        sent[places.astype(int)] = values
        hint = f"{told} it keeps {_listed(kept)}. {_residual_hint(gradient, residual, sent, kept)}"
        yield f"sent + new residual = gradient + old residual{again}", close(kept + sent, total), hint
    hint = "make new arrays: `total = gradient + residual`, not `gradient += residual`."
    yield "the arguments are left alone", all(case["arguments kept"] for case in found.values()), hint


def _choice_hint(gradient: np.ndarray, residual: np.ndarray, places: np.ndarray, k: int) -> str:
    total, chosen = gradient + residual, sorted(places)

    def is_choice(order: np.ndarray) -> bool:
        return chosen == sorted(np.argsort(order)[:k])

    if is_choice(-total):
        return "It looks at signed values: large negative ones count as much."
    if is_choice(np.abs(total)):
        return "Those are the smallest."
    if is_choice(-np.abs(gradient)):
        return "It looks at the gradient alone: what was kept has to get its turn."
    return "Choose by the magnitude of gradient + residual."


def _value_hint(gradient: np.ndarray, values: np.ndarray, places: np.ndarray) -> str:
    if close(values, gradient[places.astype(int)]):
        return "Those are of the gradient alone: what was kept is due now."
    return "Send the values of gradient + residual, with their signs."


def _residual_hint(gradient: np.ndarray, residual: np.ndarray, sent: np.ndarray, kept: np.ndarray) -> str:
    total = gradient + residual
    if not kept.any():
        return "What was not sent is dropped: keep it."
    if close(kept, total):
        return "What was sent is kept as well, and would be sent twice: set it to 0."
    if close(kept, gradient * (sent == 0)) or close(kept, gradient - sent):
        return "What was kept before is gone, unless it was sent now."
    if close(kept, sent):
        return "That is what was sent: keep the rest."
    return "Keep gradient + residual, with 0 at what was sent."


def _is_pair(value) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(map(is_number, value))


def _is_triple(value) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(isinstance(part, np.ndarray) for part in value)


def _near(value: float, right: float) -> bool:
    return abs(value - right) <= 1e-6 * max(abs(right), 1)


def _listed(values: np.ndarray) -> str:
    return "[" + ", ".join(f"{value:g}" for value in values) + "]"
