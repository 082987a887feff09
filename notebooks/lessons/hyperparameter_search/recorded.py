"""What assets/results/search.jsonl recorded for 14_hyperparameter_search: searches, and settings with many seeds."""

import statistics
from collections.abc import Iterable

import pandas as pd

from workshop_lib.notebook.results import records
from workshop_lib.paths import ROOT


def read() -> list[dict]:
    """Return the records. Two ranks trained one seed after the other, with the ways to search in turn."""
    return records.read(ROOT / "assets" / "results" / "search.jsonl")


def outcomes(runs: Iterable[dict]) -> pd.DataFrame:
    """Return a row per way to search, with medians over its seeds.

    trials: how many were begun; held out: the best held-out accuracy of any of them; test: the test accuracy of the
    trial that the held-out images chose.
    """
    rows = []
    for run in runs:
        if "jobs" in run:
            trials = {job["trial"] for job in run["jobs"]}
            best = max(job["held_out"] for job in run["jobs"])
            test = run["tests"][str(run["winner"])]
            rows.append({"way": run["what"]["way"], "trials": len(trials), "held out": best, "test": test})
    return pd.DataFrame(rows).groupby("way", sort=False).median()


def accuracies(records: Iterable[dict]) -> dict[str, list[float]]:
    """Return the held-out accuracies of each recorded setting that was trained with several seeds, by its name.

    The setting with the highest mean comes first.
    """
    repeated = {}
    for run in records:
        if run["what"]["way"] == "seeds":
            name = "lr {lr:g}, momentum {momentum:g}, batch {batch}".format(**run["what"]["setting"])
            repeated[name] = run["held_out"]
    in_order = sorted(repeated, key=lambda name: statistics.fmean(repeated[name]), reverse=True)
    return {name: repeated[name] for name in in_order}
