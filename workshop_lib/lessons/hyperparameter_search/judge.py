"""The exercises of 14_hyperparameter_search: drawing a setting, halving without waiting, and what to report."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from workshop_lib.judge import own_or_solution, shown
from workshop_lib.judge.play import Edit, played
from workshop_lib.lessons.hyperparameter_search import schedulers
from workshop_lib.lessons.hyperparameter_search.judge_halving import Asha

__all__ = ["Asha", "draw", "winner", "written"]

NOTEBOOK = "14_hyperparameter_search"
written = partial(own_or_solution, notebook=NOTEBOOK)
DRAWS = 600
LOW, HIGH = schedulers.LRS
SLACK = 0.08  # tolerance for a decade's share of the draws: four standard deviations with DRAWS draws


def play_draw(draw: Callable, comm) -> Iterator[tuple]:
    random = np.random.default_rng(1)
    settings = [draw(random) for _ in range(DRAWS)]
    lrs = np.array([setting["lr"] for setting in settings], dtype=float)
    distinct = len(set(lrs))
    observed = f"{DRAWS} draws gave {distinct} different learning rates."
    yield "every draw is a new one", min(distinct, DRAWS // 2), observed
    observed = (
        f"the learning rates go from {lrs.min():.2g} to {lrs.max():.2g}, and should lie within {LOW:g} to {HIGH:g}."
    )
    yield f"learning rates lie within {LOW:g} to {HIGH:g}", _outside(lrs), observed
    decades = [float(np.mean((lrs > LOW * 10**k) & (lrs <= LOW * 10 ** (k + 1)))) for k in range(3)]
    shares = ", ".join(f"{share:.0%}" for share in decades)
    observed = f"the shares of 0.001 to 0.01, 0.01 to 0.1 and 0.1 to 1 are {shares}."
    yield "each power of ten gets a third of the draws", _uneven(decades), observed
    for name, allowed in (("momentum", schedulers.MOMENTA), ("batch", schedulers.BATCHES)):
        values = sorted({float(setting[name]) for setting in settings})
        advice = f"draw one of {allowed}, each as often."
        yield (
            f"{name} is one of {allowed}, and each of them comes up",
            values,
            f"{name} was drawn as {values[:6]}:",
            advice,
        )
    again = np.random.default_rng(1)
    repeats = [draw(again)["lr"] for _ in range(5)] == lrs[:5].tolist()
    yield "an equal generator draws the same again", repeats, "it draws other learning rates."


def _outside(lrs: np.ndarray) -> str:
    """Where learning rates are that should not be; empty if there are none."""
    if lrs.min() < LOW * 0.999:
        return "below"
    return "above" if lrs.max() > HIGH * 1.001 else ""


def _uneven(decades: list[float]) -> str:
    """How the shares of the powers of ten differ from a third; empty if they do not."""
    if all(abs(share - 1 / 3) < SLACK for share in decades):
        return ""
    if decades[2] > 0.85:
        return "large"
    return "lowest missing" if decades[0] < 0.05 else "uneven"


LR = "10 ** random.uniform(-3, 0)"
draw = played(
    "draw",
    NOTEBOOK,
    play_draw,
    [
        Edit(
            "nearly all of them are large: draw the exponent uniformly, and raise 10 to it.",
            (LR, "random.uniform(0.001, 1)"),
        ),
        Edit("draw any exponent, not only whole ones: that would be a grid.", (LR, "10.0 ** random.integers(-3, 1)")),
        Edit(
            "a generator made inside the function draws the same every time: use `random`, which was given.",
            (LR, "10 ** np.random.default_rng(1).uniform(-3, 0)"),
        ),
        Edit("the exponents belong to 10, not to e: `10 ** x`.", (LR, "np.exp(random.uniform(-3, 0))")),
        Edit(
            "nobody could repeat your search: draw everything from `random`, which was given.",
            (LR, "10 ** np.random.default_rng().uniform(-3, 0)"),
        ),
    ],
    communicates=False,
)


TABLES = [  # one tuple per trial: its number, training loss, held-out accuracy and test accuracy
    [(4, 0.21, 0.951, 0.957), (7, 0.08, 0.962, 0.955), (9, 0.02, 0.944, 0.946), (12, 0.11, 0.958, 0.961)],
    [(3, 0.30, 0.921, 0.913), (5, 0.12, 0.933, 0.941), (8, 0.15, 0.948, 0.937), (11, 0.10, 0.940, 0.939)],
]
COLUMNS = ("trial", "train_loss", "held_out", "test")


def play_winner(winner: Callable, comm) -> Iterator[tuple]:
    chosen = [winner([dict(zip(COLUMNS, row, strict=True)) for row in table]) for table in TABLES]
    trials = [trial for trial, _ in chosen]
    yield "it chooses by the held-out images", trials, f"it chose trial {shown(trials[0])}."
    reported = [accuracy for _, accuracy in chosen]
    observed = f"it reports {shown(reported[0])} for trial {trials[0]}."
    yield "it reports that trial's accuracy on the test images", reported, observed


HELD_OUT = 'row["held_out"]'
REPORTED = 'best["test"]'
winner = played(
    "winner",
    NOTEBOOK,
    play_winner,
    [
        Edit("that's choosing by the test images, which then no longer test anything.", (HELD_OUT, 'row["test"]')),
        Edit(
            "a low training loss may be overfitting: choose by the held-out images.", (HELD_OUT, '-row["train_loss"]')
        ),
        Edit("that's the worst one: take the highest accuracy.", (HELD_OUT, f"-{HELD_OUT}")),
        Edit(
            "the held-out accuracy has chosen this trial, so it's too good to be reported: report the test accuracy.",
            (REPORTED, 'best["held_out"]'),
        ),
        Edit(
            "that's the best test accuracy of any trial: report the one of the trial that you chose.",
            (REPORTED, 'max(row["test"] for row in rows)'),
        ),
    ],
    returns="trial, accuracy",
    communicates=False,
)
