"""The two hung jobs of 13_when_training_breaks: start them, end them, and judge who found the rank and its function."""

import contextlib
import os
import shutil
import sys
import time
from pathlib import Path

from workshop_lib.exercises.judge import Verdict
from workshop_lib.ranks.faults.rank_errors import RankError
from workshop_lib.ranks.launch import processes, scripts

from lessons.when_training_breaks import hung_ranks

TIMEOUT_S = 2.0
START_LIMIT_S = 60.0
CULPRITS = {"tonight": (6, "read_batch"), "this morning": (11, "average_gradient")}
RANK_HINTS = {
    "tonight": "fifteen ranks wait in `all_reduce`, so they're fine. Which log ends with another function?",
    "this morning": "the first collective with errors has an error message, which names the rank.",
}
FUNCTION_HINT = "take the innermost function of hung_ranks.py: the first one from the top in the rank's own last lines."


class HungJob:
    """Sixteen ranks that hang, because one of them reads from a disk that doesn't answer. `end` ends them."""

    def __init__(self, folder: Path):
        self.folder = prepared(folder)
        culprit, _ = CULPRITS["tonight"]
        shard = folder / f"shard.{culprit}.1"
        shard.unlink()
        os.mkfifo(shard)  # whoever opens it waits until somebody else writes to it
        self._left = contextlib.ExitStack()
        self._left.enter_context(scripts.started(command(folder, hung_ranks.LIMIT_S), processes.new_set_id()))
        deadline = time.monotonic() + START_LIMIT_S
        last_step = f"step {hung_ranks.STEPS_PER_SHARD - 1},"
        logs = [folder / f"log.{rank}" for rank in range(hung_ranks.RANKS)]
        try:
            while not all(log.exists() and last_step in log.read_text() for log in logs):
                if time.monotonic() > deadline:
                    raise RankError(f"the ranks took no step within {START_LIMIT_S:g} s. Run the cell again.")
                time.sleep(0.1)
        except BaseException:  # an interrupt, too
            self.end()
            raise
        self.pids = [int(log.read_text().split()[4]) for log in logs]

    def end(self) -> None:
        self._left.close()


def run_to_its_time_out(folder: Path) -> Path:
    """Run a job whose ranks don't agree when to save, until its collectives time out. Returns its folder."""
    culprit, _ = CULPRITS["this morning"]
    (prepared(folder) / f"slow_clock.{culprit}").touch()
    scripts.run(*command(folder, TIMEOUT_S))
    return folder


def prepared(folder: Path) -> Path:
    """The folder with nothing but the data of a job in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for rank in range(hung_ranks.RANKS):
        for number in range(hung_ranks.STEPS // hung_ranks.STEPS_PER_SHARD):
            (folder / f"shard.{rank}.{number}").write_bytes(bytes([0, 0, rank, 63]) * 256)  # floats near 0.5
    return folder


def command(folder: Path, timeout_s: float) -> list[str]:
    return [sys.executable, "-m", hung_ranks.__name__, str(folder), str(timeout_s)]


def culprits(answers: dict[str, tuple]) -> Verdict:
    """Judge the rank and the function that the learner found for each job."""
    verdict = Verdict("culprits", to_do="Replace the dots")
    if any(... in answer for answer in answers.values()):
        return verdict
    rules = []
    for job, (rank, function) in CULPRITS.items():
        said_rank, said_function = answers[job]
        rules.append((f"{job}: the rank", "" if said_rank == rank else RANK_HINTS[job]))
        rules.append((f"{job}: its function", "" if said_function == function else FUNCTION_HINT))
    return verdict.follow(rules).recorded()
