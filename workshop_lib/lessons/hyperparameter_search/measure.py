"""Measure how best to spend ranks on a search, on one large job or on many small ones, and how much the seed matters.

    python -m workshop_lib.lessons.hyperparameter_search.measure --out build/search.jsonl

14_hyperparameter_search plots the records of this command that assets/results/search.jsonl keeps. The methods take
turns, seed by seed, so that a slow minute of the machine affects them all equally.
"""

import argparse
import itertools
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from workshop_lib import ranks
from workshop_lib.course.solutions import Solution
from workshop_lib.errors import WorkshopError
from workshop_lib.lessons.hyperparameter_search import live, schedulers
from workshop_lib.lessons.hyperparameter_search.search import Scheduler, search
from workshop_lib.results import records
from workshop_lib.training import SCHEMA

# BUDGET: images over all trials of a search.
RANKS = 2
KIND = "search"
BUDGET = 200_000
GUESS = {"lr": 0.01, "momentum": 0.9, "batch": 64}  # a common first guess; n ranks use n times lr and batch
LIMIT_S = 600.0  # time limit per job, long enough for a busy machine
SEEDS_OF = (  # good settings, which repeated seeds should tell apart
    {"lr": 0.01, "momentum": 0.9, "batch": 32},
    {"lr": 0.03, "momentum": 0.9, "batch": 128},
    {"lr": 0.1, "momentum": 0.0, "batch": 32},
)
REPEATS = 10  # seeds of each of these settings
SEEN = schedulers.RUNGS[1]  # images that each repeated training sees
LARGE = "one large job"
TOGETHER = "large jobs in turn"
SMALL = "small jobs side by side"


def scheduler(way: str, n: int, seed: int) -> tuple[Scheduler, bool]:
    """Return a method's scheduler, and whether its jobs run on all n ranks together.

    Jobs on all ranks have an n times larger global batch. GUESS then has an n times larger learning rate, too (the
    linear rule).
    """
    if way == LARGE:
        setting = GUESS | {"lr": GUESS["lr"] * n, "batch": GUESS["batch"] * n, "seed": seed}
        return schedulers.OneJob(setting, schedulers.RUNGS[1]), True
    random = np.random.default_rng(seed)
    draw_setting = Solution("14_hyperparameter_search", "draw").load()
    share = n if way == TOGETHER else 1

    def draw() -> dict[str, float]:
        setting = draw_setting(random) | {"seed": seed}
        return setting | {"batch": share * setting["batch"]}

    return schedulers.Asha(draw, schedulers.RUNGS), way == TOGETHER


def measure(team, budget: int, seeds: list[int]) -> Iterator[dict]:
    """Yield a record per seed and method: its jobs, the winner on the held-out images, and test accuracies."""
    for seed in seeds:
        for way in (LARGE, TOGETHER, SMALL):
            with tempfile.TemporaryDirectory() as folder:
                chosen, together = scheduler(way, team.n, seed)
                state = search(team, chosen, Path(folder), budget, together, timeout_s=LIMIT_S)
                best = state.winner()
                tested = live.test_accuracies(team, state)
            jobs = [
                {key: done.result[key] for key in ("trial", "setting", "images", "held_out", "diverged", "seconds")}
                | {"ranks": done.ranks, "start_s": done.start_s, "end_s": done.end_s}
                for done in state.done
            ]
            what = {"way": way, "seed": seed, "ranks": team.n, "budget": budget}
            yield record(what, jobs=jobs, winner=best["trial"], held_out=best["held_out"], tests=tested)


def of_seeds(team, settings, seeds: int) -> Iterator[dict]:
    """Yield a record per setting: its held-out accuracies with seeds 1 to `seeds`."""
    for setting in settings:
        listed = schedulers.Listed([setting | {"seed": seed} for seed in range(1, seeds + 1)], SEEN)
        with tempfile.TemporaryDirectory() as folder:
            state = search(team, listed, Path(folder), timeout_s=LIMIT_S)
        in_order = sorted((done.result for done in state.done), key=lambda result: result["trial"])
        what = {"way": "seeds", "setting": setting, "ranks": team.n, "images": SEEN}
        yield record(what, held_out=[result["held_out"] for result in in_order])


def record(what: dict, **found) -> dict:
    return {"schema": SCHEMA, "kind": KIND, "what": what, **found}


def main(arguments: list[str] | None = None) -> int:
    """Run the command shown at the top of this file; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m workshop_lib.lessons.hyperparameter_search.measure")
    parser.add_argument("--out", required=True, help="record file (JSON lines) to append to")
    chosen = parser.parse_args(arguments)
    try:
        team = ranks.start(RANKS)
        for each in itertools.chain(measure(team, BUDGET, [1, 2, 3]), of_seeds(team, SEEDS_OF, REPEATS)):
            records.write(chosen.out, each)
            print(each["what"], each["held_out"], flush=True)
    except WorkshopError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        ranks.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
