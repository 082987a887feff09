"""The fault table: whatever happens to one rank, the learner gets one message, in seconds.

`make test` has each kind of fault once; in `make test-full`, it meets each communication library where the library can
make a difference. WORKSHOP_FAULT_REPEATS runs each row N times in a row (1 by default).
"""

import os
import re
import signal
import threading
import time

import pytest
from our_ranks import our_ranks, stop_pressed_after

from workshop_lib import ranks
from workshop_lib.notebook.training_text import TrainingText
from workshop_lib.training.options import TrainOptions

REPEATS = int(os.environ.get("WORKSHOP_FAULT_REPEATS", 1))
REPORT_WITHIN_S = 3.0
RESTART_WITHIN_S = 8.0
TIMEOUT_S = 1.0

SETUP = {
    "mpi": """\
from mpi4py import MPI
import numpy as np
import os, signal, sys, time
rank = MPI.COMM_WORLD.rank
data = np.ones(1_000_000, dtype=np.float32)
def allreduce():
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, data)
""",
    "gloo": """\
import os, signal, sys, time
import torch, torch.distributed as dist
from workshop_lib.training import rendezvous
from workshop_lib.machine import world
here = world.detect()
rendezvous.join_process_group(here, world.choose_device("cpu", here))
rank = dist.get_rank()
data = torch.ones(1_000_000)
def allreduce():
    dist.all_reduce(data)
""",
}
JOIN = "group = rendezvous.join_over_mpi(here, torch.device('cpu'))\n"
OVER_MPI = SETUP["gloo"].replace("rank = ", JOIN + "rank = ").replace("all_reduce(data", "all_reduce(data, group=group")
SETUP["torch over MPI"] = OVER_MPI
WORKS = "allreduce()\nassert data[0] == 2, data[0]\ndata[:] = 1"

AT_0 = "rank 0: at In[1]"  # where it waits for the rank that was lost

LOST = "if rank == 1:\n    {}\nallreduce()"
# What rank 1 does, and what the message must say.
PROMPT = {
    "raises": ("raise ValueError('boom')", ["rank 1 raised ValueError", "boom"]),
    "is asked to end": ("os.kill(os.getpid(), signal.SIGTERM)", ["rank 1 on", "was killed by SIGTERM", AT_0]),
    "exits with 0": ("os._exit(0)", ["rank 1 on", "exit code 0", AT_0]),
    "exits with 7": ("os._exit(7)", ["rank 1 on", "exit code 7", AT_0]),
}
AT_TIMEOUT = {"loops": ("while True: pass", "In[3], line"), "sleeps": ("time.sleep(3600)", "time.sleep(3600)")}
MISMATCHED = {
    ("mpi", "bcast against reduce"): """\
if rank == 1:
    MPI.COMM_WORLD.Bcast(data)
else:
    MPI.COMM_WORLD.Reduce(MPI.IN_PLACE, data)
MPI.COMM_WORLD.Barrier()""",
    ("gloo", "different sizes"): "dist.all_reduce(data[: 100_000 * (1 + rank)])\ndist.barrier()",
}


pytestmark = pytest.mark.usefixtures("no_ranks_afterwards")


def row(*values, mark=()):
    return pytest.param(*values, id=" ".join(values), marks=mark)


FULL = pytest.mark.full
# What starts a rank notices that it's gone, whatever it communicated with. A rank that raises, or that never comes,
# leaves the others inside the library.
PROMPT_ROWS = [
    row("mpi", "raises"),
    row("mpi", "is asked to end"),
    row("mpi", "exits with 0"),
    row("gloo", "exits with 7"),
]
PROMPT_ROWS += [row(library, "raises", mark=FULL) for library in ("gloo", "torch over MPI")]
TIMEOUT_ROWS = [row("mpi", "loops"), row("gloo", "sleeps")]
MISMATCHED_ROWS = [row("mpi", "bcast against reduce"), row("gloo", "different sizes", mark=FULL)]


@pytest.fixture
def team(library):
    """Healthy ranks on which allreduce() works, in the library named by the test's row."""
    team = ranks.start(2)
    team.communication = library
    prepare(team)
    return team


def prepare(team):
    team.run_cell(SETUP[team.communication], "In[1]")
    team.run_cell(WORKS, "In[2]")


def fails(team, cell, timeout=TIMEOUT_S):
    """Run a cell that must fail; returns the message and the seconds until it came."""
    started = time.monotonic()
    with pytest.raises(ranks.RankError) as caught:
        team.run_cell(cell, "In[3]", timeout=timeout)
    return str(caught.value), time.monotonic() - started


def recovers(team):
    """One call brings fresh ranks, the next cell works, and nothing of the old ones is left."""
    with pytest.raises(ranks.RankError, match="restart"):
        team.run_cell("1 + 1", "In[4]")
    assert not our_ranks()
    started = time.monotonic()
    team.restart()
    took_s = time.monotonic() - started
    assert took_s < RESTART_WITHIN_S, f"restart took {took_s:.1f} s"
    works_again(team)


def works_again(team):
    """Fresh processes work, whatever the old ones communicated with: MPI is there without importing PyTorch.

    The next row with gloo proves that for gloo.
    """
    team.communication = "mpi"
    prepare(team)


@pytest.mark.parametrize("repeat", range(REPEATS))
@pytest.mark.parametrize(("library", "fault"), PROMPT_ROWS)
def test_a_lost_rank_is_reported_at_once(team, fault, repeat):
    does, said = PROMPT[fault]
    message, took_s = fails(team, LOST.format(does), timeout=30)
    print(f"{team.communication}, one rank {fault}: {took_s:.2f} s\n{message}")
    assert took_s < REPORT_WITHIN_S
    if team.communication == "gloo":  # it tells rank 0, which may raise before it's taken along
        message = message.replace("rank 0 raised RuntimeError at", "rank 0: at")
    for text in said:
        assert text in message
    if "raised" in message:
        assert "rank 0: still at In[1]" in message
        assert "all" in message.lower().split("rank 0: still at")[1]
    recovers(team)


@pytest.mark.parametrize("repeat", range(REPEATS))
@pytest.mark.parametrize(("library", "fault"), TIMEOUT_ROWS)
def test_a_rank_that_never_comes_is_located_at_the_timeout(team, fault, repeat):
    does, line = AT_TIMEOUT[fault]
    message, took_s = fails(team, LOST.format(does))
    print(f"{team.communication}, one rank {fault}: {took_s:.2f} s\n{message}")
    assert took_s < TIMEOUT_S + REPORT_WITHIN_S
    at_0, at_1 = message.split("rank 0: at ")[1].split("rank 1: at ")
    assert "In[1]" in at_0
    assert "In[3]" in at_1
    assert line in at_1
    recovers(team)


@pytest.mark.parametrize("repeat", range(REPEATS))
@pytest.mark.parametrize(("library", "mistake"), MISMATCHED_ROWS)
def test_mismatched_collectives_are_located(team, library, mistake, repeat):
    message, took_s = fails(team, MISMATCHED[library, mistake])
    print(f"{library}, {mistake}: {took_s:.2f} s\n{message}")
    assert took_s < TIMEOUT_S + REPORT_WITHIN_S
    assert "In[3], line" in message
    if not team.healthy:
        recovers(team)
    else:
        assert "still in step" in message
        team.restart()
        works_again(team)


@pytest.mark.parametrize("repeat", range(REPEATS))
@pytest.mark.parametrize("library", ["mpi"])
def test_an_interrupt_ends_python_code_and_keeps_the_ranks(team, repeat):
    pids = [about["pid"] for about in team.about()]
    with stop_pressed_after(0.5):
        message, took_s = fails(team, "kept = 5\ntime.sleep(60)", timeout=30)
    assert took_s < 0.5 + REPORT_WITHIN_S
    assert "ready for the next cell" in message
    assert [about["pid"] for about in team.about()] == pids
    team.run_cell("assert kept == 5", "In[4]")
    team.run_cell(WORKS, "In[5]")


@pytest.mark.parametrize("repeat", range(REPEATS))
@pytest.mark.parametrize("library", ["mpi", row("gloo", mark=FULL), row("torch over MPI", mark=pytest.mark.exhaustive)])
def test_an_interrupt_inside_a_collective_brings_fresh_ranks(team, repeat):
    pids = [about["pid"] for about in team.about()]
    with stop_pressed_after(0.5):
        message, took_s = fails(team, "if rank == 0:\n    allreduce()\ntime.sleep(60)", timeout=30)
    print(f"{team.communication}: {took_s:.2f} s\n{message}")
    assert took_s < 0.5 + REPORT_WITHIN_S + RESTART_WITHIN_S
    assert "interrupted" in message
    # The wait of torch over MPI can be interrupted, and leaves a collective half done.
    assert ("others never received" if team.communication == "torch over MPI" else "rank 0: at In[1]") in message
    assert re.search(r"Their memory is empty: run (.*, )?In\[1\], .*In\[2\] again\.", message)
    assert not set(pids) & {about["pid"] for about in team.about()}
    works_again(team)


class PressedInTraining(TrainingText):
    """The notebook's own stop button, pressed as soon as the ranks have trained a few steps."""

    def update(self, data, elapsed_s, running):
        super().update(data, elapsed_s, running)
        if self.progress.done > 2 and not self.interrupted:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.full
def test_an_interrupted_training_leaves_its_ranks_ready_and_names_the_button_that_keeps_the_record():
    team = ranks.start(2)
    pids = [about["pid"] for about in team.about()]
    with pytest.raises(ranks.RankError) as caught:
        team.train(TrainOptions(epochs=50), show=PressedInTraining(2, trains=True))
    assert str(caught.value).startswith("interrupted. The ranks stopped what they did and are ready for the next cell.")
    assert "*Stop*, the button beside its progress, ends it too, and keeps its result." in str(caught.value)
    assert [about["pid"] for about in team.about()] == pids


def test_a_stopped_rank_is_told_at_once_and_can_go_on(capsys):
    team = ranks.start(2)
    cell = "import os, signal\nfrom mpi4py import MPI\nMPI.COMM_WORLD.rank and os.kill(os.getpid(), signal.SIGSTOP)"
    pid = team.about()[1]["pid"]
    threading.Timer(1.0, os.kill, (pid, signal.SIGCONT)).start()
    team.run_cell(cell + "\nMPI.COMM_WORLD.Barrier()", timeout=20)
    said = capsys.readouterr().out
    assert said.count(f"rank 1: stopped by SIGSTOP. `kill -CONT {pid}` on ") == 1
    assert team.run(max, 1, 2) == [2, 2]


def test_a_rank_that_is_busy_when_another_fails_is_let_finish(capsys):
    team = ranks.start(2)
    cell = "from mpi4py import MPI\nimport time\nMPI.COMM_WORLD.rank or 1 / 0\ntime.sleep(2)"
    message, took_s = fails(team, cell, timeout=20)
    assert took_s > 2
    assert "still in step and ready" in message and "rank 1" not in message
    shown = capsys.readouterr().out
    assert "ZeroDivisionError: division by zero\nWaiting up to 10 s for rank 1 to end as well.\n" in shown, "at once"


def test_ranks_that_failed_alike_go_on():
    team = ranks.start(2)
    message, _ = fails(team, "import sys\nsys.exit(3)")
    assert message.startswith("ranks 0, 1 raised SystemExit:\n    In[3], line 2")
    assert "ready for the next cell" in message
    assert team.run(max, 1, 2) == [2, 2]


def test_a_message_left_behind_is_noticed():
    """A bcast that one rank never joined returns on the other; the next one would take its data."""
    team = ranks.start(2)
    cell = "from mpi4py import MPI\nif MPI.COMM_WORLD.rank == 1:\n    1 / 0\nMPI.COMM_WORLD.bcast('hi')"
    message, _ = fails(team, cell)
    assert "never received" in message
    assert not team.healthy
    team.restart()
    assert team.run(max, 1, 2) == [2, 2]
