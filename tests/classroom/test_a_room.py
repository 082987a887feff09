"""Eight learners at once on one machine, two ranks each: what one of them breaks, nobody else notices.

Seven run the solutions of notebook 02, each with a kernel, as from JupyterLabs of their own. The eighth loses a rank at
random, over and over, and starts fresh ones. The seven get what one of them gets alone.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import psutil
import pytest
from our_ranks import TEST_RUN
from training.ladder import write_packed_mnist

from workshop_lib.course.exercises import solutions_of
from workshop_lib.maintain import generate
from workshop_lib.paths import ROOT
from workshop_lib.ranks import processes

pytestmark = pytest.mark.full

SEAT = "WORKSHOP_TEST_SEAT"  # in the environment of all that a learner starts
STEM, WORKERS = "02_synchronous_sgd", 7
LIMIT_S = 1200.0
RUN = """\
import sys
from pathlib import Path
from workshop_lib.maintain import execute
outcome = execute.run_notebook(Path(sys.argv[1]), Path(sys.argv[2]), 600)
print(outcome)
sys.exit(bool(outcome.error))
"""
SOAK = [ROOT / "tests" / "benchmarks" / "soak.py", "--faults", "10000", "--libraries", "mpi"]
RESULT = re.compile(r"\b[0-9a-f]{12}\b|^\w+: (?:correct|not yet|not solved yet)", re.MULTILINE)
FAULT = re.compile(r"^\d+/10000 .*", re.MULTILINE)


@dataclass
class Learner:
    """A learner's process, and what came of it."""

    mark: str
    process: subprocess.Popen
    log: Path
    began_s: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    @property
    def said(self) -> str:
        return self.log.read_text()


def wait(learners: list[Learner]) -> None:
    """Until all have ended, each with its time."""
    end_s = time.monotonic() + LIMIT_S
    while (open_ones := [each for each in learners if not each.seconds]) and time.monotonic() < end_s:
        for learner in open_ones:
            if learner.process.poll() is not None:
                learner.seconds = time.monotonic() - learner.began_s
        time.sleep(0.1)


def start(words: list, log: Path, mnist: Path) -> Learner:
    mark = uuid.uuid4().hex
    here = {name: value for name, value in os.environ.items() if name != TEST_RUN}  # the room looks after itself
    here |= {"WORKSHOP_PROFILE": "quick", "WORKSHOP_MNIST": str(mnist), "PYTHONPATH": str(ROOT), SEAT: mark}
    with open(log, "wb") as file:
        command = [sys.executable, *map(str, words)]
        process = subprocess.Popen(command, env=here, stdout=file, stderr=file, start_new_session=True)
    return Learner(mark, process, log)


def work(folder: Path, name: str, mnist: Path) -> Learner:
    """A learner who runs the notebook."""
    path = solutions_of(generate.NOTEBOOKS / f"{STEM}.ipynb")
    return start(["-c", RUN, path, folder / f"{name}.ipynb"], folder / f"{name}.log", mnist)


def results(notebook: Path) -> list[list[str]]:
    """What must be the same for everyone: the digests and verdicts of each cell, whichever rank printed first."""
    cells = []
    for cell in nbformat.read(notebook, as_version=4).cells:
        shown = [each.get("text") or each.get("data", {}).get("text/plain", "") for each in cell.get("outputs", ())]
        cells.append(sorted(RESULT.findall("\n".join(shown))))
    return [each for each in cells if each]


def alive(room: list[Learner]) -> list[psutil.Process]:
    """What these learners started and still runs."""
    found, marks = [], {learner.mark for learner in room}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(SEAT) in marks and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.fixture
def room():
    """The learners, who all leave at the end."""
    learners: list[Learner] = []
    yield learners
    processes.kill(alive(learners))


@pytest.fixture
def mnist(tmp_path):
    folder = tmp_path / "mnist"
    write_packed_mnist(folder)
    return folder


@pytest.mark.exhaustive
@pytest.mark.alone
@pytest.mark.timeout(2 * LIMIT_S)
def test_eight_learners_at_once(tmp_path, mnist, room):
    alone = work(tmp_path, "alone", mnist)
    room.append(alone)
    wait([alone])
    assert alone.process.poll() == 0, alone.said
    wanted = results(tmp_path / "alone.ipynb")
    assert sum(verdict.endswith("correct") for each in wanted for verdict in each) == 5 and len(wanted) > 5

    room.append(breaker := start(SOAK, tmp_path / "breaker.log", mnist))
    room.extend(workers := [work(tmp_path, f"seat-{seat}", mnist) for seat in range(1, WORKERS + 1)])
    wait(workers)
    breaker.process.send_signal(signal.SIGINT)
    wait([breaker])
    faults = FAULT.findall(breaker.said)
    seconds = ", ".join(f"{worker.seconds:.0f}" for worker in workers)
    print(f"alone {alone.seconds:.0f} s; seven at once {seconds} s, beside {len(faults)} lost ranks")
    end_s = time.monotonic() + 10
    while (left := alive(room)) and time.monotonic() < end_s:
        time.sleep(0.2)
    assert not left
    assert all(worker.process.poll() == 0 for worker in workers), "\n".join(worker.said for worker in workers)
    for worker in workers:
        assert results(worker.log.with_suffix(".ipynb")) == wanted, worker.log.stem
    assert len(faults) >= 3 and "NO MESSAGE" not in breaker.said and "processes left: 0" in breaker.said, breaker.said
