"""The exercises of 14_hyperparameter_search: drawing a setting, halving without waiting, and what to report."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from workshop_lib.exercises.judge import is_number, own_or_solution, shown
from workshop_lib.exercises.play import Edit, played

from lessons.hyperparameter_search import schedulers

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
    within = bool(lrs.min() >= LOW * 0.999 and lrs.max() <= HIGH * 1.001)
    yield f"learning rates lie within {LOW:g} to {HIGH:g}", within, observed
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
    advice = "draw everything from `random`, which was given."
    yield "an equal generator draws the same again", repeats, "it draws other learning rates:", advice


def _uneven(decades: list[float]) -> str:
    """How the shares of the powers of ten differ from a third; empty if they do not."""
    if all(abs(share - 1 / 3) < SLACK for share in decades):
        return ""
    return "large" if decades[2] > 0.85 else "uneven"


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
    ],
    communicates=False,
)


@dataclass(frozen=True)
class SimulatedSearch:
    """A search to simulate: its rungs, eta, number of ranks, how many jobs finish, and a seed."""

    rungs: tuple[int, ...]
    eta: int
    ranks: int
    jobs: int
    seed: int


PLANS = [SimulatedSearch((10, 30, 90), 3, 4, 80, 1), SimulatedSearch((8, 16, 32, 64), 2, 3, 90, 2)]
FORM = "a rank that asks gets a trial, a setting and images, so none ever waits"
KEEPS = "each trial has a setting drawn for it, and keeps it"
CLIMBS = "a trial begins with the first rung, and goes on to the next, each once"
BEST = "only the best 1/eta of a rung go on"
SOON = "and they go on as soon as they are among the best"
ADVICE = {  # what must hold, the most basic first, and what to do if no known mistake explains a failure
    FORM: "`return trial, setting, images`, and begin a new trial when nobody can go on, instead of waiting.",
    KEEPS: "call `self.draw()` once for each new trial, and give out the same setting when the trial goes on.",
    CLIMBS: "a new trial starts with `rungs[0]` images. Then remember whom you've sent on.",
    BEST: (
        "take the best 1/eta of *all* that finished this rung, those you've sent on included, and round down: the best "
        "of a single trial says nothing yet."
    ),
    SOON: "before you begin a new trial, look at every rung but the last, full or not: of 3, the best one goes on.",
}


def accuracy(trial: int, rung: int, seed: int) -> float:
    """Return a made-up accuracy. It rises from rung to rung, but the leader of one rung need not lead the next."""
    quality = np.random.default_rng([seed, trial]).uniform()
    luck = np.random.default_rng([seed, trial, rung]).uniform()
    return 0.4 + 0.15 * rung + 0.1 * quality + 0.04 * luck


def problem(scheduler_class: Callable, plan: SimulatedSearch) -> tuple[str, str]:
    """Simulate a search in which ranks finish their jobs in random order, up to the first job that is wrong.

    Returns what doesn't hold, a key of ADVICE, and a sentence; two empty texts if every job is right.
    """
    random = np.random.default_rng(plan.seed)
    drawn: list[dict] = []

    def draw() -> dict:
        drawn.append({"lr": 0.001 * (1 + len(drawn))})
        return dict(drawn[-1])

    scheduler = scheduler_class(draw, list(plan.rungs), plan.eta)
    scores: list[dict] = [{} for _ in plan.rungs]
    settings: dict[int, dict] = {}
    sent_on: set[tuple[int, int]] = set()
    running: list[tuple[int, int]] = []
    for _ in range(plan.jobs):
        while len(running) < plan.ranks:
            job = scheduler.ask()
            if not isinstance(job, tuple | list) or len(job) != 3 or not is_number(job[0]):
                return FORM, f"`ask` returned {shown(job)}."
            trial, setting, images = job
            done = sum(trial in of_rung for of_rung in scores)
            leaders = {
                (other, rung)
                for rung, of_rung in enumerate(scores[:-1])
                for other in schedulers.best(of_rung, len(of_rung) // plan.eta)
            }
            if setting != settings.get(trial, drawn[-1] if drawn else None):
                return KEEPS, f"trial {trial} was given out with a setting that isn't its own."
            again = any(trial == other for other, _ in running) or done == len(plan.rungs)
            if again or images != plan.rungs[done]:
                return CLIMBS, f"trial {trial} had finished {done} rungs, and was given out with {images} images."
            if trial in settings:
                if (trial, done - 1) not in leaders:
                    of_rung = scores[done - 1]
                    place = 1 + schedulers.best(of_rung, len(of_rung)).index(trial)
                    return BEST, f"trial {trial} went on as number {place} of {len(of_rung)} in its rung."
                sent_on.add((trial, done - 1))
            elif leaders - sent_on:
                leader, rung = min(leaders - sent_on)
                return SOON, f"trial {leader} was among the best of {len(scores[rung])}, but a new trial began."
            elif len(drawn) != len(settings) + 1:
                return KEEPS, f"{len(settings) + 1} trials have begun, and {len(drawn)} settings were drawn."
            settings[trial] = setting
            running.append((trial, done))
        trial, rung = running.pop(int(random.integers(len(running))))
        scores[rung][trial] = accuracy(trial, rung, plan.seed)
        scheduler.tell(trial, plan.rungs[rung], scores[rung][trial])
    return "", ""


def play_asha(asha: Callable, comm) -> Iterator[tuple]:
    problems = [(plan, *problem(asha, plan)) for plan in PLANS]
    for text, advice in ADVICE.items():
        for plan, failed, sentence in problems:
            wrong = sentence if failed == text else ""
            yield text, wrong, f"with rungs {list(plan.rungs)} and eta = {plan.eta}, {wrong}", advice


Asha = played(
    "Asha",
    NOTEBOOK,
    play_asha,
    [
        Edit("those are the worst: sort the accuracies from the highest down.", (", reverse=True", "")),
        Edit(
            "remember whom you've sent on, or the best trial goes again and again.",
            ("self.sent_on[rung].add(trial)", "pass"),
        ),
        Edit(
            "`images` counts from the trial's first image on, not from the end of its last rung: `rungs[rung + 1]`.",
            ("self.rungs[rung + 1]", "self.rungs[rung + 1] - self.rungs[rung]"),
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
winner = played(
    "winner",
    NOTEBOOK,
    play_winner,
    [
        Edit("that's choosing by the test images, which then no longer test anything.", (HELD_OUT, 'row["test"]')),
        Edit(
            "a low training loss may be overfitting: choose by the held-out images.", (HELD_OUT, '-row["train_loss"]')
        ),
        Edit(
            "the held-out accuracy has chosen this trial, so it's too good to be reported: report the test accuracy.",
            ('best["test"]', 'best["held_out"]'),
        ),
    ],
    returns="trial, accuracy",
    communicates=False,
)
