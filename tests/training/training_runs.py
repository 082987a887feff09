"""The training runs that many tests look at: each runs once in a test session, with one start for each number of ranks.

A module of tests says what it needs in `training_runs(folder)`: {number of ranks: [run, …]}, in the order in which they
must run (see train_runs.py for what a run is). A run with "exhaustive": True waits for `make test-all`, and one on more
than two ranks for `make test-full`. Two modules that want the same run name it alike, and it runs once.
"""

from pathlib import Path
from typing import NamedTuple

from training.ladder import write_small_mnist
from training.launching import run_training

# A run may go on from the checkpoint of one on another number of ranks: those begin on two.
ORDER = (2, 4, 8, 1)
LIMIT_S = 500


class Trained(NamedTuple):
    """What came of the training runs: by name, the outcome on each rank; checkpoints lie in the folder."""

    folder: Path
    outcomes: dict[str, list[dict]]


def train_all(modules, folder: Path, chosen: set[str]) -> Trained:
    """Run what these test modules ask for, in the tiers of the chosen tests (see tests/tiers.py)."""
    write_small_mnist(folder)
    wanted: dict[int, dict[str, dict]] = {ranks: {} for ranks in ORDER}
    for module in modules:
        for ranks, runs in module.training_runs(folder).items():
            for run in runs:
                if run.pop("exhaustive", False) and "exhaustive" not in chosen:
                    continue
                if ranks > 2 and chosen == {"core"}:
                    continue
                same = wanted[ranks].setdefault(run["name"], run)
                assert same == run, f"two runs are named {run['name']}"
    outcomes: dict[str, list[dict]] = {}
    for ranks, runs in wanted.items():
        if runs:
            outcomes |= run_training(folder / str(ranks), list(runs.values()), ranks, LIMIT_S)
    return Trained(folder, outcomes)
