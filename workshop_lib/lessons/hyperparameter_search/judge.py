"""The exercises of 14_hyperparameter_search: drawing a setting, halving without waiting, and what to report."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from workshop_lib.judge import Exercise, Mistake, Property, close, is_number, shown
from workshop_lib.lessons.hyperparameter_search import search
from workshop_lib.lessons.hyperparameter_search.judge_halving import Asha

__all__ = ["Asha", "draw", "winner"]

DRAWS = 600
MOMENTA = search.MOMENTA
BATCHES = search.BATCHES
LOW, HIGH = search.LRS
SLACK = 0.08  # tolerance for a decade's share of the draws: four standard deviations with DRAWS draws


@dataclass(frozen=True)
class Draws:
    """The settings that one generator gave.

    settings: DRAWS of them, or those before the first value that is not a setting. wrong: that value as text, or None.
    repeats: whether a generator with the same seed draws the same learning rates again.
    """

    settings: list
    wrong: Any
    repeats: bool


def observe_draw(comm, function: Callable) -> Draws:
    random = np.random.default_rng(1)
    settings: list = []
    for _ in range(DRAWS):
        setting = function(random)
        if not _is_setting(setting):
            return Draws(settings, shown(setting), False)
        settings.append({key: float(value) for key, value in setting.items()})
    again = np.random.default_rng(1)
    repeats = all(function(again)["lr"] == setting["lr"] for setting in settings[:5])
    return Draws(settings, None, repeats)


def _is_setting(value) -> bool:
    return isinstance(value, dict) and set(value) == {"lr", "momentum", "batch"} and all(map(is_number, value.values()))


def draw_properties(observations: list) -> Iterator[Property]:
    seen: Draws = observations[0]
    hint = f"it returned {seen.wrong}: return a dictionary with numbers for 'lr', 'momentum' and 'batch'."
    yield Property("it returns lr, momentum and batch", seen.wrong is None, hint)
    lrs = np.array([setting["lr"] for setting in seen.settings])
    distinct = len(set(lrs))
    observed = f"{DRAWS} draws gave {distinct} different learning rates."
    yield Property("every draw is a new one", distinct > DRAWS / 2, evidence=distinct, observed=observed)
    inside = bool(np.all((lrs >= LOW * 0.999) & (lrs <= HIGH * 1.001)))
    observed = (
        f"the learning rates go from {lrs.min():.2g} to {lrs.max():.2g}, and should lie within {LOW:g} to {HIGH:g}."
    )
    yield Property(f"learning rates lie within {LOW:g} to {HIGH:g}", inside, evidence=_outside(lrs), observed=observed)
    decades = [float(np.mean((lrs > LOW * 10**k) & (lrs <= LOW * 10 ** (k + 1)))) for k in range(3)]
    even = all(abs(share - 1 / 3) < SLACK for share in decades)
    observed = (
        "the shares of 0.001 to 0.01, 0.01 to 0.1 and 0.1 to 1 are " + ", ".join(f"{s:.0%}" for s in decades) + "."
    )
    evidence = "large" if decades[2] > 0.85 else "lowest missing" if decades[0] < 0.05 else "uneven"
    yield Property("each power of ten gets a third of the draws", even, evidence=evidence, observed=observed)
    for name, allowed in (("momentum", MOMENTA), ("batch", BATCHES)):
        values = {setting[name] for setting in seen.settings}
        hint = f"{name} was drawn as {sorted(values)[:6]}: draw one of {allowed}, each as often."
        yield Property(
            f"{name} is one of {allowed}, and each of them comes up", values == set(map(float, allowed)), hint
        )
    yield Property("an equal generator draws the same again", seen.repeats, evidence=seen.repeats)


def _outside(lrs: np.ndarray) -> str:
    return "below" if lrs.min() < LOW * 0.999 else "above"


def _draw(hint: str, lr: Callable) -> Mistake:
    """Make a wrong `draw`, given how it draws the learning rate."""

    def draw(random: np.random.Generator) -> dict:
        rest = {"momentum": float(random.choice(MOMENTA)), "batch": int(random.choice(BATCHES))}
        return {"lr": lr(random)} | rest

    return Mistake(draw, hint)


_WRONG_DRAWS = [
    _draw(
        "nearly all of them are large: draw the exponent uniformly, and raise 10 to it.",
        lambda random: random.uniform(LOW, HIGH),
    ),
    _draw(
        "draw any exponent, not only whole ones: that would be a grid.", lambda random: 10.0 ** random.integers(-3, 1)
    ),
    _draw(
        "a generator made inside the function draws the same every time: use `random`, which was given.",
        lambda random: 10 ** np.random.default_rng(1).uniform(-3, 0),
    ),
    _draw("the exponents belong to 10, not to e: `10 ** x`.", lambda random: math.exp(random.uniform(-3, 0))),
    _draw(
        "10 to a positive exponent is above 1: the exponents go from -3 to 0.",
        lambda random: 10 ** random.uniform(0, 3),
    ),
    _draw("the exponents start too low: 0.001 is 10 to the -3.", lambda random: 10 ** random.uniform(-4, 0)),
    _draw(
        "nobody could repeat your search: draw everything from `random`, which was given.",
        lambda random: 10 ** np.random.default_rng().uniform(-3, 0),
    ),
]
draw = Exercise("draw", observe_draw, draw_properties, _WRONG_DRAWS, communicates=False)


TABLES = [  # one tuple per trial: its number, training loss, held-out accuracy and test accuracy
    [(4, 0.21, 0.951, 0.957), (7, 0.08, 0.962, 0.955), (9, 0.02, 0.944, 0.946), (12, 0.11, 0.958, 0.961)],
    [(3, 0.30, 0.921, 0.913), (5, 0.12, 0.933, 0.941), (8, 0.15, 0.948, 0.937), (11, 0.10, 0.940, 0.939)],
]
COLUMNS = ("trial", "train_loss", "held_out", "test")


def rows(table: list[tuple]) -> list[dict]:
    return [dict(zip(COLUMNS, row, strict=True)) for row in table]


def observe_winner(comm, function: Callable) -> list:
    return [function(rows(table)) for table in TABLES]


def winner_properties(observations: list) -> Iterator[Property]:
    returned = observations[0]
    pairs = [value for value in returned if isinstance(value, list | tuple) and len(value) == 2]
    hint = f"it returned {shown(returned[0])}: `return trial, accuracy`."
    yield Property("it returns a trial's number and an accuracy", len(pairs) == len(TABLES), hint)
    right = [max(rows(table), key=lambda row: row["held_out"]) for table in TABLES]
    observed = f"it chose trial {shown(pairs[0][0])}."
    chosen = [pair[0] for pair in pairs]
    fits = chosen == [row["trial"] for row in right]
    yield Property("it chooses by the held-out images", fits, evidence=chosen, observed=observed)
    reported = [pair[1] for pair in pairs]
    observed = f"it reports {shown(reported[0])} for trial {chosen[0]}."
    fits = all(close(value, row["test"]) for value, row in zip(reported, right, strict=True))
    yield Property("it reports that trial's accuracy on the test images", fits, evidence=reported, observed=observed)


def _winner(hint: str, chosen_by: Callable, reported: Callable = lambda row, rows: row["test"]) -> Mistake:
    def winner(rows: list[dict]) -> tuple:
        row = max(rows, key=chosen_by)
        return row["trial"], reported(row, rows)

    return Mistake(winner, hint)


_WRONG_WINNERS = [
    _winner("that's choosing by the test images, which then no longer test anything.", lambda row: row["test"]),
    _winner("a low training loss may be overfitting: choose by the held-out images.", lambda row: -row["train_loss"]),
    _winner("that's the worst one: take the highest accuracy.", lambda row: -row["held_out"]),
    _winner("that's simply the last trial.", lambda row: row["trial"]),
    _winner(
        "the held-out accuracy has chosen this trial, so it's too good to be reported: report the test accuracy.",
        lambda row: row["held_out"],
        lambda row, rows: row["held_out"],
    ),
    _winner(
        "that's the best test accuracy of any trial: report the one of the trial that you chose.",
        lambda row: row["held_out"],
        lambda row, rows: max(row["test"] for row in rows),
    ),
]
winner = Exercise("winner", observe_winner, winner_properties, _WRONG_WINNERS, communicates=False)
