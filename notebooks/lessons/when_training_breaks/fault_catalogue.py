"""Faults and their symptoms: the catalogue of 13_when_training_breaks, and the runs that its readers diagnose.

Each fault happens in a small training run of its own, on three plain processes over gloo (fault_catalogue_ranks.py),
without the workshop's library around them. We look at each process from the outside: how it ended and when, its last
words, its losses, and a digest of its weights.
"""

import contextlib
import io
import json
import re
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from workshop_lib.exercises.judge import Verdict
from workshop_lib.ranks.faults.rank_errors import RankError
from workshop_lib.ranks.launch import scripts

from lessons.ddp import clinic
from lessons.when_training_breaks import fault_catalogue_ranks

HEALTHY = "is healthy"
LONGEST_WORDS = 50  # characters that a pandas table shows
# What a run with each fault would show: the hint for a learner who diagnoses this fault where it didn't happen.
SIGNS = {
    "is slow": "all numbers would be those of the healthy run, but its steps would take longer",
    "hangs": "the other ranks would give up at the time-out, and rank 1 would still be there",
    "runs out of data": "rank 1 would end first, with exit code 0, and the others would lose their connection to it",
    "computes a NaN": "every rank's loss would be nan from one step on, since the mean of anything and NaN is NaN",
    "flips a bit of its gradient": "all ranks would have the same weights, but not those of the healthy run",
    "flips a bit of its weights": "no rank would end early, but the weights of rank 1 would have a different digest",
}
RUNS = {
    "A": "flips a bit of its weights",
    "B": "runs out of data",
    "C": "is slow",
    "D": "computes a NaN",
    "E": "flips a bit of its gradient",
    "F": "hangs",
}


@dataclass
class Rank:
    """What one rank left behind. after_s: seconds from the fault to its end, or None if the rank had to be killed."""

    end: str
    after_s: float | None
    words: str
    losses: list[float]
    steps_s: list[float]
    digest: str  # of its weights


def meet(*faults: str, timeout_s: float = 120.0) -> dict[str, list[Rank]]:
    """Run three ranks with each fault, and return what each rank left behind, by fault.

    A fault takes some seconds, and several run at the same time. Raises RankError if the faults take longer than
    `timeout_s` seconds together.
    """
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            scripts.run(sys.executable, "-m", fault_catalogue_ranks.__name__, *faults, timeout_s=timeout_s)
    except RankError as error:
        raise RankError(f"{output.getvalue()[-2000:]}\n{error}") from None
    rows = [json.loads(line) for line in output.getvalue().splitlines() if line.startswith('{"fault"')]
    return {row["fault"]: [Rank(**each) for each in row["ranks"]] for row in rows}


def table(met: Mapping[str, list[Rank]]) -> pd.DataFrame:
    """One row per fault: how each rank ended, when and with what words, and whether all ranks have the same weights."""
    rows = []
    for fault, ranks in met.items():
        sick = ranks[fault_catalogue_ranks.SICK]
        others = [each for each in ranks if each is not sick]
        first = min(others, key=lambda each: each.after_s if each.after_s is not None else float("inf"))
        rows.append(
            {
                "rank 1 …": fault,
                "rank 1 ends with": sick.end,
                "the others end with": " and ".join(sorted({each.end for each in others})),
                "after s": "" if first.after_s is None else f"{first.after_s:.2f}",
                "rank 1 says": shortened(sick.words),
                "another rank says": shortened(first.words),
                "same weights": "yes" if len({each.digest for each in ranks}) == 1 else "no",
            }
        )
    return pd.DataFrame(rows).set_index("rank 1 …")


def shortened(words: str) -> str:
    """The first sentence of an error, without locations in PyTorch's source, and short enough for a table."""
    text = re.sub(r"^RuntimeError: |\[(/|enforce|[\w/.-]+:\d+)[^\]]*\] *", "", words)
    text = re.sub(r"\[?(127\.0\.0\.1|::1)\]?:\d+", "HOST:PORT", text)
    text = re.split(r"\. (?=[A-Z])", re.sub(r"(Error: |^)(err == 0)?\. ?", r"\1", text.strip()))[0]
    return text if len(text) <= LONGEST_WORDS else text[: LONGEST_WORDS - 1] + "…"


def admit() -> dict[str, list[Rank]]:
    """Train once without a fault and once with each fault of RUNS, for the learner to diagnose."""
    met = meet(HEALTHY, *RUNS.values())
    return {"healthy": met[HEALTHY], **{name: met[fault] for name, fault in RUNS.items()}}


def rows(runs: Mapping[str, list[Rank]]) -> pd.DataFrame:
    """One row per run and rank: how it ended, its steps, losses and digest, and its last words."""
    found = []
    for name, of_ranks in runs.items():
        for rank, each in enumerate(of_ranks):
            row = {"run": name, "rank": rank, "ends with": each.end, "steps": len(each.losses)}
            row["ms a step"] = f"{1000 * statistics.median(each.steps_s[-5:]):.0f}" if each.steps_s else ""
            row["last three losses"] = "  ".join(f"{loss:.4f}" for loss in each.losses[-3:])
            found.append(row | {"weights": each.digest, "last words": shortened(each.words)})
    return pd.DataFrame(found).set_index(["run", "rank"])


def diagnoses(answers: dict[str, str]) -> Verdict:
    """The verdict on the learner's diagnoses, given by the names of the runs."""
    return clinic.diagnoses(answers, RUNS, SIGNS)
