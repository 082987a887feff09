"""What is said of ranks whose call does not end well, and whether they can go on: each from made-up ranks."""

import json
import time
from types import SimpleNamespace

import pytest

from workshop_lib.ranks import RankError
from workshop_lib.ranks.call import call
from workshop_lib.ranks.call.call import Call as RealCall
from workshop_lib.ranks.call.messages import Loss
from workshop_lib.ranks.faults import failures, rank_errors, standstill
from workshop_lib.ranks.faults.activity import Activity
from workshop_lib.ranks.faults.losses import after_a_loss
from workshop_lib.ranks.launch import folders

ERROR = {"what": "raised ValueError", "text": "ValueError: boom", "frames": []}
STOPPED = {"rank": 1, "host": "node7", "pid": 4242, "signal": 19}


def frame(code, file="In[3]", line=4, name="<module>"):
    return {"file": file, "line": line, "name": name, "code": code}


COMPUTING = [frame("for _ in range(n):")]
RECEIVING = [frame("comm.recv(source=1)")]
BACKWARD = [frame("Variable._execution_engine.run_backward(", "/v/site-packages/torch/autograd/graph.py")]


class Team:
    n = 2
    remedy = "`team.restart()` brings fresh ones."
    attached_only = False
    holder_host = ""
    trouble = None
    empty_memory = "Their memory is empty: run In[1] again."

    def give_up(self, trouble):
        self.trouble = trouble

    def restart(self):
        self.trouble = "restarted"


class Call:
    """A call whose ranks are at these places, and come to an end after so many looks at them."""

    def __init__(self, stacks, outcomes=(), looks=99, cpu_s=(), check=None, stopped=None):
        self.team, self.at, self.outcomes = Team(), stacks, dict(outcomes)
        self.ranks = list(stacks)
        self.looks, self.used, self.check = looks, iter(cpu_s), check
        self.is_stopped = stopped or {}
        self.places, self.measured = {}, iter(())
        self.signals = []

    @property
    def running(self):
        return [rank for rank in self.at if rank not in self.outcomes]

    def wait(self, limit_s):
        time.sleep(0.01)
        return not self.running

    def stacks(self):
        self.looks -= 1
        if self.looks == 0:
            self.outcomes |= {rank: {"value": True} for rank in self.running}
        return {rank: self.at[rank] for rank in self.running}

    def whereabouts(self):
        return {rank: next(self.places[rank]) for rank in self.running if rank in self.places}

    def activity(self):
        return next(self.measured, Activity(None, next(self.used, {}), {}))

    def published(self):
        return [{} for _ in self.ranks]

    def asleep(self, rank):
        return True

    def stopped(self):
        return self.is_stopped

    def signal(self, number):
        self.signals.append(number)

    def follow_up(self, *_):
        return self.check


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    brief = ("GRACE_S", "LOOK_AGAIN_S", "STILL_S", "STILL_UNNOTICED_S", "CHECK_LOOK_EVERY_S")
    for name in brief:
        monkeypatch.setattr(failures, name, 0.01)
    monkeypatch.setattr(standstill, "IDLE_AFTER_S", 0.01)
    monkeypatch.setattr(failures, "CHECK_LIMIT_S", 0.5)


def looked(call, looks):
    """Look at the others of a rank that failed this often; the message, if they were given up."""
    others = failures.AfterAFailure(call)
    try:
        for _ in range(looks):
            time.sleep(0.02)
            others.look()
    except RankError as error:
        return str(error)
    return None


def failed_with(at_0, **more):
    return Call({0: at_0, 1: []}, {1: {"error": ERROR}}, **more)


@pytest.mark.parametrize(
    ("at_0", "cpu_s", "given_up"),
    [
        (RECEIVING, [], True),
        (BACKWARD, [{0: 5.0}, {0: 5.0}], True),
        (BACKWARD, [{0: 5.0}, {0: 5.7}], False),
        (BACKWARD, [], False),  # on another host nobody knows whether it computes
        (COMPUTING, [{0: 5.0}, {0: 5.0}], False),
    ],
)
def test_only_ranks_that_wait_for_the_failed_one_are_given_up(at_0, cpu_s, given_up):
    call = failed_with(at_0, cpu_s=cpu_s)
    message = looked(call, 2)
    assert (message is not None) == given_up == (call.team.trouble is not None)
    if given_up:
        assert message.startswith("rank 1 raised ValueError:\n    ValueError: boom\nMeanwhile:\n  rank 0: still at ")
        assert "team.restart()" in message


def test_a_rank_that_goes_on_for_long_is_interrupted_and_not_blamed(monkeypatch):
    monkeypatch.setattr(failures, "STILL_LIMIT_S", 0.03)
    call = failed_with(COMPUTING)
    call.wait = lambda _: call.outcomes.update({0: {"error": ERROR | {"what": "raised KeyboardInterrupt"}}}) or True
    assert looked(call, 3) is None and len(call.signals) == 1
    text = failures.errors_text(call)
    assert text.startswith("rank 1 raised ValueError") and "rank 0 was still running 0 s later and was interr" in text


IN_CHECK = [frame("comm.bcast(token)", "workshop_lib/ranks/call/engine.py", name="in_step")]


@pytest.mark.parametrize(
    ("check", "in_step", "said"),
    [
        (Call({0: [], 1: []}, {0: {"value": True}, 1: {"value": True}}), True, "still in step and ready"),
        (Call({0: COMPUTING, 1: IN_CHECK}, looks=5), True, "still in step and ready"),
        (Call({0: IN_CHECK, 1: IN_CHECK}), False, "Some ranks had sent messages that others never received"),
        (Call({0: IN_CHECK, 1: []}, {1: {"value": False}}), False, "never received"),
        (Call({0: COMPUTING, 1: IN_CHECK}), None, "still busy 30 s later, so whether they match is unknown"),
    ],
    ids=["yes", "yes, late", "stuck", "no", "no answer"],
)
def test_a_time_out_of_the_check_is_no_mismatch(check, in_step, said):
    call = failed_with([], check=check)
    with pytest.raises(RankError, match=said):
        failures.raise_failed(call)
    assert (call.team.trouble is None) == bool(in_step)


def test_a_time_out_says_that_a_rank_is_stopped_and_how_to_go_on():
    with pytest.raises(RankError, match=r"  rank 1: stopped by SIGSTOP. `kill -CONT 4242` on node7 lets it go on\n"):
        failures.raise_timeout(Call({0: RECEIVING, 1: []}, stopped={1: STOPPED}), 60)


@pytest.mark.parametrize(
    ("code", "waits"),
    [
        ("comm.Allreduce(MPI.IN_PLACE, data)", True),
        ("MPI.Request.Waitall(requests)", True),
        ("node = comm.Split_type(MPI.COMM_TYPE_SHARED)", True),
        ("functools.reduce(add, rows)", True),  # cannot be told from comm.reduce, and rarely takes long
        ("total = allreduced + 1", False),
    ],
)
def test_calls_that_wait_for_other_ranks_are_known_by_name(code, waits):
    assert rank_errors.is_communicating([frame(code)]) == waits


def test_of_several_stacks_the_last_one_counts():
    dump = 'Thread 0x00aa (most recent call first):\n  File "z.py", line 1 in other\n' + (
        'Current thread 0x00bb (most recent call first):\n  File "{}.py", line 7 in f\n  File "c.py", line 2 in g\n'
    )
    frames = rank_errors.parse_stack(dump.format("old") + dump.format("new"), 0xBB)
    assert [(each["file"], each["line"]) for each in frames] == [("new.py", 7), ("c.py", 2)]


KILLED = {"rank": 1, "host": "node7", "pid": 4242, "returncode": -9, "asked": False, "time": 1.0}


@pytest.mark.parametrize(
    "loss",
    [
        Loss([], {}, {}, "node9"),
        # The holder's host was cleaned up at once, and a rank on another host had time to say how it ended.
        Loss([KILLED], {1: COMPUTING}, {}, "node9", {"node9": [0]}),
    ],
)
def test_a_canceled_job_is_not_taken_for_a_lost_host(loss):
    message = str(after_a_loss(Team(), loss, {}))
    assert message.startswith("the ranks are gone: the process that held them on node9, or its job, has ended")


NODES = ["node7", "node7", "node8", "node8"]


@pytest.mark.parametrize(
    ("recorded", "registered", "lost"),
    [
        ([0, 1], [0, 1, 2, 3], {"node8": [2, 3]}),
        ([1, 3], [], {}),  # a rank of each host said how it ended
        ([], [0, 1], {"node8": [2, 3]}),  # the network is cut: nobody has ended, but half of them answer no more
        ([], [0, 1, 3], {}),
    ],
)
def test_a_host_is_lost_if_none_of_its_ranks_says_how_it_ended(tmp_path, monkeypatch, recorded, registered, lost):
    monkeypatch.setattr(call, "RECORD_LIMIT_S", 0.0)
    monkeypatch.setattr(call, "OTHERS_LIMIT_S", 0.0)
    monkeypatch.setattr(call, "HOSTS_LIMIT_S", 0.05)
    for kind in folders.NOTES:
        (tmp_path / kind).mkdir()
    for rank, host in enumerate(NODES):
        (tmp_path / "rank" / f"{rank}.json").write_text(json.dumps({"rank": rank, "host": host}))
    for rank in recorded:
        record = KILLED | {"rank": rank, "host": NODES[rank]}
        (tmp_path / "exit" / f"{rank}.json").write_text(json.dumps(record))
    team = Team()
    team.n, team.folder, team.client = 4, tmp_path, SimpleNamespace(ids=registered)
    assert RealCall(team).loss().lost_hosts == lost
