"""The fault table: whatever happens to one rank, the learner gets one message, in seconds.

`make test` has each kind of fault once; in `make test-full`, it meets each communication library where the library can
make a difference; the rest of the table is exhaustive. WORKSHOP_FAULT_REPEATS runs each row N times in a row (1 by
default).
"""

import os
import re
import signal
import threading
import time

import pytest
from our_ranks import our_ranks, press_stop_after

from workshop_lib import ranks

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
from workshop_lib.training import rendezvous, world
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

AT_0 = "rank 0 was at In[1]"  # where it waits for the rank that was lost

# name: (cell, what the message must say)
PROMPT = {
    "raises": ("if rank == 1:\n    raise ValueError('boom')\nallreduce()", ["rank 1 raised ValueError", "boom"]),
    "is asked to end": (
        "if rank == 1:\n    os.kill(os.getpid(), signal.SIGTERM)\nallreduce()",
        ["rank 1 on", "was killed by SIGTERM", AT_0],
    ),
    "calls sys.exit": ("if rank == 1:\n    sys.exit(3)\nallreduce()", ["rank 1 raised SystemExit", "3"]),
    "is killed": (
        "if rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\nallreduce()",
        ["rank 1 on", "was killed by SIGKILL", AT_0],
    ),
    "exits with 0": ("if rank == 1:\n    os._exit(0)\nallreduce()", ["rank 1 on", "exit code 0", AT_0]),
    "exits with 7": ("if rank == 1:\n    os._exit(7)\nallreduce()", ["rank 1 on", "exit code 7", AT_0]),
}
AT_TIMEOUT = {
    "loops": ("if rank == 1:\n    while True:\n        pass\nallreduce()", "In[3], line"),
    "sleeps": ("if rank == 1:\n    time.sleep(3600)\nallreduce()", "time.sleep(3600)"),
}
MISMATCHED = {
    ("mpi", "bcast against reduce"): """\
if rank == 1:
    MPI.COMM_WORLD.Bcast(data)
else:
    MPI.COMM_WORLD.Reduce(MPI.IN_PLACE, data)
MPI.COMM_WORLD.Barrier()""",
    ("mpi", "different sizes"): "MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, data[: 100_000 * (1 + rank)])",
    ("gloo", "bcast against reduce"): """\
if rank == 1:
    dist.broadcast(data, 0)
else:
    dist.reduce(data, 0)
dist.barrier()""",
    ("gloo", "different sizes"): "dist.all_reduce(data[: 100_000 * (1 + rank)])\ndist.barrier()",
}


pytestmark = pytest.mark.usefixtures("no_ranks_afterwards")


def row(library, *values, marks=()):
    return pytest.param(library, *values, id=" ".join((library, *values)), marks=marks)


def elsewhere(library, *values):
    """A row whose kind `make test` has with a different library: left to `make test-full`."""
    return row(library, *values, marks=pytest.mark.full)


def repetition(library, *values):
    """A row whose kind another row proves already: left to `make test-all`."""
    return row(library, *values, marks=pytest.mark.exhaustive)


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


# A rank that is gone is noticed by what started it, whatever it communicated with; one that raised leaves
# the others inside the library, as do ranks that never come.
ROWS = {"mpi": {"raises": row, "is asked to end": row, "exits with 0": row}}
ROWS["gloo"] = {"raises": elsewhere, "exits with 7": row}
PROMPT_ROWS = [rows.get(fault, repetition)(library, fault) for library, rows in ROWS.items() for fault in PROMPT]
PROMPT_ROWS += [elsewhere("torch over MPI", "raises"), repetition("torch over MPI", "is killed")]
TIMEOUT_ROWS = [row("mpi", "loops"), row("gloo", "sleeps"), repetition("gloo", "loops"), repetition("mpi", "sleeps")]
TIMEOUT_ROWS += [repetition("torch over MPI", "loops")]
MISMATCHED_MARKS = {("mpi", "bcast against reduce"): (), ("gloo", "different sizes"): pytest.mark.full}
MISMATCHED_ROWS = [
    pytest.param(case, id=" ".join(case), marks=MISMATCHED_MARKS.get(case, pytest.mark.exhaustive))
    for case in MISMATCHED
]


@pytest.mark.parametrize("repeat", range(REPEATS))
@pytest.mark.parametrize(("library", "fault"), PROMPT_ROWS)
def test_a_lost_rank_is_reported_at_once(team, fault, repeat):
    cell, said = PROMPT[fault]
    message, took_s = fails(team, cell, timeout=30)
    print(f"{team.communication}, one rank {fault}: {took_s:.2f} s\n{message}")
    assert took_s < REPORT_WITHIN_S
    if team.communication == "gloo":  # it tells rank 0, which may raise before it's taken along
        message = message.replace("rank 0 raised RuntimeError at", "rank 0 was at")
    for text in said:
        assert text in message
    if "raised" in message:
        assert "rank 0 was still at In[1]" in message
        assert "all" in message.lower().split("rank 0 was still at")[1]
    recovers(team)


@pytest.mark.parametrize("repeat", range(REPEATS))
@pytest.mark.parametrize(("library", "fault"), TIMEOUT_ROWS)
def test_a_rank_that_never_comes_is_located_at_the_timeout(team, fault, repeat):
    cell, line = AT_TIMEOUT[fault]
    message, took_s = fails(team, cell)
    print(f"{team.communication}, one rank {fault}: {took_s:.2f} s\n{message}")
    assert took_s < TIMEOUT_S + REPORT_WITHIN_S
    at_0, at_1 = message.split("rank 0 was at ")[1].split("rank 1 was at ")
    assert "In[1]" in at_0
    assert "In[3]" in at_1
    assert line in at_1
    recovers(team)


@pytest.mark.parametrize("repeat", range(REPEATS))
@pytest.mark.parametrize("case", MISMATCHED_ROWS)
def test_mismatched_collectives_are_located(case, repeat):
    team = ranks.start(2)
    if getattr(team, "communication", None) != case[0]:
        team.communication = case[0]
        prepare(team)
    message, took_s = fails(team, MISMATCHED[case])
    print(f"{case}: {took_s:.2f} s\n{message}")
    assert took_s < TIMEOUT_S + REPORT_WITHIN_S
    assert "In[3], line" in message
    if not team.healthy:
        recovers(team)
    else:
        assert "still in step" in message
        team.restart()
        works_again(team)


@pytest.mark.parametrize("repeat", range(REPEATS))
@pytest.mark.parametrize("library", ["mpi", repetition("gloo")])
def test_an_interrupt_ends_python_code_and_keeps_the_ranks(team, repeat):
    pids = [about["pid"] for about in team.about()]
    press_stop_after(0.5)
    message, took_s = fails(team, "kept = 5\ntime.sleep(60)", timeout=30)
    assert took_s < 0.5 + REPORT_WITHIN_S
    assert "ready for the next cell" in message
    assert [about["pid"] for about in team.about()] == pids
    team.run_cell("assert kept == 5", "In[4]")
    team.run_cell(WORKS, "In[5]")


@pytest.mark.parametrize("repeat", range(REPEATS))
@pytest.mark.parametrize("library", ["mpi", elsewhere("gloo"), repetition("torch over MPI")])
def test_an_interrupt_inside_a_collective_brings_fresh_ranks(team, repeat):
    pids = [about["pid"] for about in team.about()]
    press_stop_after(0.5)
    message, took_s = fails(team, "if rank == 0:\n    allreduce()\ntime.sleep(60)", timeout=30)
    print(f"{team.communication}: {took_s:.2f} s\n{message}")
    assert took_s < 0.5 + REPORT_WITHIN_S + RESTART_WITHIN_S
    assert "interrupted" in message
    # The wait of torch over MPI can be interrupted, and leaves a collective half done.
    assert ("others never received" if team.communication == "torch over MPI" else "rank 0 was at In[1]") in message
    assert re.search(r"Their memory is empty: run (.*, )?In\[1\], .*In\[2\] again\.", message)
    assert not set(pids) & {about["pid"] for about in team.about()}
    works_again(team)


def test_a_stopped_rank_is_told_at_once_and_can_go_on(capsys):
    team = ranks.start(2)
    cell = "import os, signal\nfrom mpi4py import MPI\nMPI.COMM_WORLD.rank and os.kill(os.getpid(), signal.SIGSTOP)"
    pid = team.about()[1]["pid"]
    threading.Timer(1.0, os.kill, (pid, signal.SIGCONT)).start()
    team.run_cell(cell + "\nMPI.COMM_WORLD.Barrier()", timeout=20)
    told = f"rank 1 is stopped by SIGSTOP (process {pid} on "
    assert capsys.readouterr().out.count(told) == 1
    assert team.run(max, 1, 2) == [2, 2]


def test_a_rank_that_is_busy_when_another_fails_is_let_finish():
    team = ranks.start(2)
    cell = "from mpi4py import MPI\nimport time\nMPI.COMM_WORLD.rank or 1 / 0\ntime.sleep(2)"
    message, took_s = fails(team, cell, timeout=20)
    assert took_s > 2
    assert "still in step and ready" in message and "rank 1" not in message


def test_ranks_that_failed_alike_go_on():
    team = ranks.start(2)
    message, _ = fails(team, "1 / 0")
    assert message.startswith("ranks 0, 1 raised ZeroDivisionError")
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
