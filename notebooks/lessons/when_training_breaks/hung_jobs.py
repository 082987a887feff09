"""The two hung jobs of 13_when_training_breaks: start them and end them."""

import contextlib
import os
import shutil
import sys
import time
from pathlib import Path

from workshop_lib.ranks.faults.rank_errors import RankError
from workshop_lib.ranks.launch import processes, scripts

from lessons.when_training_breaks import hung_ranks

TIMEOUT_S = 2.0
START_LIMIT_S = 60.0
CULPRITS = {"tonight": (6, "read_batch"), "this morning": (11, "average_gradient")}


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
