"""Ranks that wait for each other are told so long before the time-out, and ranks that move are left alone."""

import os
import sys
import time

import cloudpickle
import pytest
from test_failures import COMPUTING, RECEIVING, Call

from workshop_lib import ranks
from workshop_lib.ranks import RankError, activity, failures, standstill
from workshop_lib.ranks.activity import Activity

SETUP = """\
import time
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
rank = comm.rank
data = np.ones(100)
"""
GLOO = """\
import torch, torch.distributed as dist
from workshop_lib.training import rendezvous
from workshop_lib.machine import world
here = world.detect()
rendezvous.join_process_group(here, world.choose_device("cpu", here))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
def loss():
    return model(torch.ones(1, 2)).sum()
"""
LONG_BEFORE_THE_TIME_OUT_S = 12


@pytest.fixture
def team(no_ranks_afterwards):
    team = ranks.start(2)
    if not team.healthy:
        team.restart()
    team.run_cell(SETUP, "In[1]")
    return team


def deadlock(team, call, *arguments) -> str:
    began = time.monotonic()
    with pytest.raises(RankError) as caught:
        call(*arguments, timeout=40)
    assert time.monotonic() - began < LONG_BEFORE_THE_TIME_OUT_S
    assert not team.healthy
    return str(caught.value)


FULL = pytest.mark.full
MISMATCHES = [
    pytest.param("rank or comm.recv(source=1)", "nothing has moved for 3 s (rank 1 had ended already):", marks=FULL),
    ("comm.recv(source=1 - rank)", "Every rank waits to receive a message, and none of them sends one."),
    pytest.param("comm.Ssend(data, 1 - rank)", "Every rank waits until its message is received, and none", marks=FULL),
    (
        "comm.Bcast(data, root=0) if rank else comm.Barrier()",
        "The collectives don't match: rank 0 calls Barrier, rank 1 calls Bcast. All ranks have to call the same one",
    ),
    pytest.param(
        "comm.Bcast(data, root=1 - rank)",
        "All of them call Bcast, but with different roots: rank 0 has root 1, rank 1 has root 0.",
        marks=FULL,
    ),
]


@pytest.mark.parametrize(("cell", "why"), MISMATCHES)
def test_ranks_that_wait_for_each_other_are_told_so_early_and_why(team, cell, why):
    message = deadlock(team, team.run_cell, cell, "In[2]")
    assert message.startswith("deadlock: every rank waits for another one, and nothing has moved for ")
    assert "In[2], line 1, in <module>" in message and why in message
    assert "`team.restart()` brings fresh ones. Their memory is empty: run In[1] again." in message


def receives_first():
    from mpi4py import MPI

    MPI.COMM_WORLD.recv(source=1 - MPI.COMM_WORLD.rank)


@pytest.mark.full
def test_the_same_is_said_of_a_function_whose_source_no_rank_has(team):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    assert "waits to receive" in deadlock(team, team.run, receives_first)


@pytest.mark.full
def test_the_same_is_said_of_pytorchs_collectives(team):
    """Also of those that DDP begins inside a backward pass."""
    team.run_cell(GLOO, timeout=60)
    cell = "if rank:\n    loss().backward()\nelse:\n    dist.recv(torch.ones(1), src=1)"
    message = deadlock(team, team.run_cell, cell, "In[2]")
    assert message.startswith("deadlock") and "rank 1: at In[2], line 2" in message
    assert "rank 0: at In[2], line 4" in message


SLOW = {
    "one computes": "if rank == 0:\n    end = time.time() + {s}\n    while time.time() < end: pass\ncomm.Barrier()",
    "one sleeps": "if rank == 1:\n    time.sleep({s})\ncomm.Bcast(data)",
    "a loop of collectives": "end = time.time() + {s}\nwhile comm.allreduce(time.time() < end, MPI.LAND): pass",
    "polled receives": "request = comm.irecv(source=1 - rank)\nend = time.time() + {s}\n"
    "while time.time() < end and not request.Test(): pass\ncomm.send(1, 1 - rank)\nrequest.wait()",
    "a hook sleeps in a backward pass": f"{GLOO}model.register_comm_hook(None, lambda _, bucket: dist.all_reduce(\n"
    "    bucket.buffer(), async_op=True).get_future().then(lambda sums: time.sleep({s}) or sums.value()[0]))\n"
    "loss().backward()",
}


@pytest.mark.full
@pytest.mark.parametrize("slow", SLOW)
def test_ranks_that_only_take_long_are_left_alone(team, slow):
    team.run_cell(SLOW[slow].format(s=failures.DEADLOCK_S + 2), timeout=30)
    assert team.run(max, 1, 2) == [2, 2]


LOST_WHEN_LOOKED_AT = """\
import os, signal
if rank:
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(3))
    time.sleep(20)
comm.Barrier()
"""


@pytest.mark.full
def test_the_last_words_of_ranks_outlive_a_look_during_which_one_is_lost(team):
    with pytest.raises(RankError) as caught:
        team.run_cell(LOST_WHEN_LOOKED_AT, "In[2]", timeout=20)
    assert "ended with exit code 3" in str(caught.value) and "rank 0: at In[2], line 5" in str(caught.value)


def waiting(name, **more):
    return {"name": name, "size": None, "ranks": [0, 1], "root": None, "spins": True, "only_on_ranks": True} | more


@pytest.mark.parametrize(
    ("at_0", "at_1", "said"),
    [
        (waiting("Recv"), waiting("probe"), "none of them sends one"),
        (waiting("send"), waiting("recv"), ""),
        (
            waiting("Allreduce", size="10 float64"),
            waiting("Allreduce", size="20 float64"),
            "All of them call Allreduce, but with different sizes: rank 0 has 10 float64, rank 1 has 20 float64.",
        ),
        (waiting("Gather", size="10 float64"), waiting("Gather", size="20 float64"), ""),
        (waiting("Barrier"), waiting("Barrier", ranks=[1]), "rank 0 has one of ranks 0, 1, rank 1 has one of rank 1"),
        (waiting("allreduce"), waiting("Allreduce"), "rank 0 calls allreduce, rank 1 calls Allreduce"),
        (waiting("Barrier"), waiting("Barrier"), ""),
    ],
)
def test_why_ranks_cannot_go_on(at_0, at_1, said):
    sentence = standstill.explanation({0: at_0, 1: at_1})
    assert said in sentence and bool(said) == bool(sentence)


STILL = Activity(7, {0: 1.0, 1: 1.0}, {0: 5, 1: 5})
SPUN = Activity(7, {0: 2.0, 1: 2.0}, {0: 9, 1: 9})


def watched(monkeypatch, stacks, measured, waits=None):
    """A call that was looked at twice: its watcher, and the text of the error if the ranks were given up."""
    monkeypatch.setattr(failures, "DEADLOCK_S", 0.01)
    monkeypatch.setattr(failures, "NOTICE_S", 0.01)
    monkeypatch.setattr(failures, "TOGETHER_EVERY_S", 0.0)
    monkeypatch.setattr(failures, "STILL_EVERY_S", 0.0)
    call = Call(stacks)
    call.measured = (each for measurement in measured for each in (measurement, measurement))
    answers = [{"place": 1, "waiting": waits or waiting("Recv")}] * 9
    call.places = {rank: iter(answers) for rank in stacks}
    together = failures.Together(call)
    lines = []
    try:
        for _ in range(2):
            time.sleep(0.02)
            lines += together.look()
    except RankError as error:
        return lines, str(error)
    return lines, ""


RECEIVE = dict.fromkeys((0, 1), RECEIVING)


def test_a_standstill_ends_the_call(monkeypatch):
    lines, error = watched(monkeypatch, RECEIVE, [STILL, SPUN])
    assert error.startswith("deadlock") and lines == []


@pytest.mark.parametrize(
    ("stacks", "measured", "waits"),
    [
        (RECEIVE | {1: COMPUTING}, [STILL, SPUN], None),
        (RECEIVE, [STILL, SPUN._replace(segments=8)], None),  # a message was sent
        (RECEIVE, [STILL, SPUN._replace(faults={0: 5, 1: 5000})], None),  # an object is being unpickled
    ],
)
def test_ranks_that_move_are_neither_ended_nor_noted(monkeypatch, stacks, measured, waits):
    assert watched(monkeypatch, stacks, measured, waits) == ([], "")


@pytest.mark.parametrize(
    ("measured", "waits"),
    [
        ([None, None], None),  # on another host
        ([STILL, STILL], None),  # no core was free, so no rank could see its message
        ([STILL, SPUN], waiting("all_reduce", only_on_ranks=False)),  # a GPU may still compute
        ([STILL, SPUN], waiting("all_reduce", spins=False)),  # it uses a core, so it does more than wait
    ],
)
def test_what_may_be_a_long_operation_is_noted_once_and_goes_on(monkeypatch, measured, waits):
    lines, error = watched(monkeypatch, RECEIVE, measured, waits)
    assert error == ""
    assert lines[0].startswith("All ranks have waited for each other for") and "In[3], line 4" in lines[1]
    assert "They may be in one long operation" in lines[-1]


def test_processes_tell_what_they_do(tmp_path):
    assert activity.measure(tmp_path, {0: os.getpid()}) is None, "no segments"
    (tmp_path / "sm_segment.0").write_bytes(b"a")
    before = activity.measure(tmp_path, {0: os.getpid()})
    kept = bytes(10**7)
    assert len(kept) and not activity.asleep(os.getpid())
    later = activity.measure(tmp_path, {0: os.getpid()})
    assert not activity.moved(before, later._replace(faults=before.faults), 1.0)
    (tmp_path / "sm_segment.0").write_bytes(b"b")
    assert activity.moved(before, activity.measure(tmp_path, {0: os.getpid()}), 1.0)
    assert activity.moved(before, before._replace(faults={0: before.faults[0] + 1000}), 1.0)
