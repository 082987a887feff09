"""Ranks that wait for each other are told so long before the time-out, and ranks that move are left alone."""

import os
import time

import psutil
import pytest
from test_failures import RECEIVING, Call

from workshop_lib import ranks
from workshop_lib.ranks import RankError
from workshop_lib.ranks.faults import activity, failures, standstill
from workshop_lib.ranks.faults.activity import Activity

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
    pytest.param("rank or comm.recv(source=1)", "nothing has moved for 3 s (ended already: 1):", marks=FULL),
    ("comm.recv(source=1 - rank)", "Every rank waits to receive a message, and none of them sends one."),
    pytest.param("comm.Ssend(data, 1 - rank)", "Every rank waits until its message is received, and none", marks=FULL),
    (
        "comm.Bcast(data, root=0) if rank else comm.Barrier()",
        "The calls don't match: rank 0 calls Barrier, rank 1 calls Bcast. All ranks have to call the same one",
    ),
]


@pytest.mark.parametrize(("cell", "why"), MISMATCHES)
def test_ranks_that_wait_for_each_other_are_told_so_early_and_why(team, cell, why):
    message = deadlock(team, team.run_cell, cell, "In[2]")
    assert message.startswith("deadlock: every rank waits for another one, and nothing has moved for ")
    assert "In[2], line 1, in <module>" in message and why in message
    assert "`team.restart()` brings fresh ones. Their memory is empty: run In[1] again." in message


@pytest.mark.full
def test_the_same_is_said_of_pytorchs_collectives(team):
    """Also of those that DDP begins inside a backward pass."""
    team.run_cell(GLOO, timeout=60)
    cell = "if rank:\n    loss().backward()\nelse:\n    dist.recv(torch.ones(1), src=1)"
    message = deadlock(team, team.run_cell, cell, "In[2]")
    assert message.startswith("deadlock") and "rank 1: at In[2], line 2" in message
    assert "rank 0: at In[2], line 4" in message


SLOW = {
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
    signal.signal(signal.SIGURG, lambda *_: os._exit(3))
    time.sleep(20)
comm.Barrier()
"""


@pytest.mark.full
def test_the_last_words_of_ranks_outlive_a_look_during_which_one_is_lost(team):
    with pytest.raises(RankError) as caught:
        team.run_cell(LOST_WHEN_LOOKED_AT, "In[2]", timeout=20)
    assert "ended with exit code 3" in str(caught.value) and "rank 0: at In[2], line 5" in str(caught.value)


@pytest.mark.full
def test_a_rank_in_compiled_code_that_keeps_the_interpreter_is_found_too(team):
    with pytest.raises(RankError, match=r"ranks 0, 1: at In\[2\], line 1.*sum\(range"):
        team.run_cell("sum(range(10**11))", "In[2]", timeout=1)


@pytest.mark.parametrize(
    ("calls", "said"),
    [(["Recv", "probe"], "none of them sends one"), (["Gather", "Gather"], ""), (["Sendrecv", "Barrier"], "")],
)
def test_why_ranks_cannot_go_on_is_said_only_if_it_is_obvious(calls, said):
    sentence = standstill.explanation(dict(enumerate(calls)))
    assert said in sentence and bool(said) == bool(sentence)


STILL = Activity(7, {0: 1.0, 1: 1.0}, {0: 5, 1: 5})
SPUN = Activity(7, {0: 2.0, 1: 2.0}, {0: 9, 1: 9})
ELSEWHERE = Activity(None, {}, {})  # on another host


@pytest.mark.parametrize(
    ("measured", "waits"),
    [
        ([ELSEWHERE, ELSEWHERE], {"name": "Recv", "spins": True}),
        ([STILL, STILL], {"name": "Recv", "spins": True}),  # no core was free, so no rank could see its message
        ([STILL, SPUN], None),  # nobody knows what it waits for
        ([STILL, SPUN], {"name": "all_reduce", "spins": False}),  # it uses a core, so it does more than wait
    ],
)
def test_what_may_be_a_long_operation_is_noted_once_and_goes_on(monkeypatch, measured, waits):
    for name in ("DEADLOCK_S", "NOTICE_S", "TOGETHER_EVERY_S"):
        monkeypatch.setattr(failures, name, 0.01)
    call = Call(dict.fromkeys((0, 1), RECEIVING))
    call.measured = (each for measurement in measured for each in (measurement, measurement))
    answers = [{"place": 1, "waiting": waits}] * 9
    call.places = {rank: iter(answers) for rank in (0, 1)}
    together = failures.NoneHasFailed(call)
    lines = []
    for _ in range(2):
        time.sleep(0.02)
        lines += together.look()
    assert lines[0].startswith("All ranks have waited for each other for") and "In[3], line 4" in lines[1]
    assert "They may be in one long operation" in lines[-1]


def test_processes_tell_what_they_do(tmp_path):
    def measured():
        return activity.activity_of(tmp_path, {0: psutil.Process()})

    assert measured().segments is None, "no segments"
    (tmp_path / "sm_segment.0").write_bytes(b"a")
    before = measured()
    kept = bytes(10**7)
    assert len(kept) and not activity.asleep(os.getpid())
    assert not activity.moved(before, measured()._replace(faults=before.faults), 1.0)
    (tmp_path / "sm_segment.0").write_bytes(b"b")
    assert activity.moved(before, measured(), 1.0)
    assert activity.moved(before, before._replace(faults={0: before.faults[0] + 1000}), 1.0)
