"""Whatever ends a call in the notebook, ranks that may still run it are not called ready."""

import os
import signal
import time

import pytest
from our_ranks import our_ranks, stop_pressed_after

from workshop_lib import ranks
from workshop_lib.ranks.call import engine
from workshop_lib.ranks.call.view import TextView
from workshop_lib.ranks.faults import failures

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("no_ranks_afterwards")]


@pytest.fixture
def team():
    return ranks.start(2)


def is_given_up(team):
    """The ranks are stopped and say so, and one call brings fresh ones."""
    assert not team.healthy
    assert not our_ranks()
    with pytest.raises(ranks.RankError, match="a call on them was cut off.*restart"):
        team.run(max, 1, 2)
    assert team.restart().run(max, 1, 2) == [2, 2]


def test_a_second_press_of_the_stop_button(team, monkeypatch):
    first_press = failures.raise_interrupted

    def pressed_again(*args, **kwargs):
        with stop_pressed_after(0.1):  # while the first press waits for a rank inside a collective
            first_press(*args, **kwargs)

    monkeypatch.setattr(failures, "raise_interrupted", pressed_again)
    cell = "from mpi4py import MPI\nimport time\nif MPI.COMM_WORLD.rank == 0:\n    MPI.COMM_WORLD.Barrier()\n"
    with pytest.raises(KeyboardInterrupt), stop_pressed_after(0.5):
        team.run_cell(cell + "time.sleep(60)")
    monkeypatch.undo()
    is_given_up(team)


def test_a_rank_that_the_controller_misses_first_is_named(team, monkeypatch):
    pid = team.about()[1]["pid"]

    def missed(*_, **__):
        os.kill(pid, signal.SIGKILL)
        raise IndexError("No such engine: 1")

    monkeypatch.setattr(team.client, "send_apply_request", missed)
    with pytest.raises(ranks.RankError, match="rank 1 .* was killed by SIGKILL"):
        team.run(max, 1, 2)
    monkeypatch.undo()
    assert team.restart().run(max, 1, 2) == [2, 2]


def test_an_interrupt_while_the_call_is_sent(team, monkeypatch):
    send = team.client.send_apply_request
    sent = []

    def pressed(*args, **kwargs):
        if sent:
            raise KeyboardInterrupt
        sent.append(send(*args, **kwargs))
        return sent[0]

    monkeypatch.setattr(team.client, "send_apply_request", pressed)
    with pytest.raises(KeyboardInterrupt):
        team.run(time.sleep, 60)
    is_given_up(team)


class Broken(TextView):
    def update(self, *_):
        raise RuntimeError("no screen")


def test_a_display_that_fails_is_told_once_and_the_run_goes_on(team, monkeypatch, capsys):
    monkeypatch.setattr(team, "view", Broken)
    with pytest.warns(UserWarning, match="RuntimeError: no screen.*the run goes on") as told:
        team.run_cell("import time\nprint('begun')\ntime.sleep(0.5)\n'ended'")
    assert len(told) == 1
    shown = capsys.readouterr().out
    assert "[0] begun" in shown
    assert "[1] 'ended'" in shown
    assert team.healthy


def test_what_a_cell_defines_can_be_pulled(team):
    team.run_cell(
        "from mpi4py import MPI\n"
        "class Model:\n"
        "    def __init__(self, rank):\n        self.rank = rank\n"
        "    def twice(self):\n        return factor * self.rank\n"
        "factor = 2\nmodel = Model(MPI.COMM_WORLD.rank)"
    )
    assert [model.twice() for model in team.pull("model")] == [0, 2]


def test_a_result_that_the_notebook_cannot_load_is_said_and_the_ranks_stay(team):
    cell = (
        "import sys, types\n"
        "class Thing:\n    pass\n"
        "Thing.__module__ = 'only_there'\n"
        "sys.modules['only_there'] = types.ModuleType('only_there')\n"
        "sys.modules['only_there'].Thing = Thing\n"
        "thing = Thing()"
    )
    team.run_cell(cell)
    with pytest.raises(ranks.RankError) as caught:
        team.pull("thing")
    assert "ranks 0, 1 gave a result that cannot be used in the notebook" in str(caught.value)
    assert "No module named 'only_there'" in str(caught.value)
    assert "ready for the next cell" in str(caught.value)
    assert team.run(max, 1, 2) == [2, 2]


def test_a_call_that_fails_outside_the_learners_function_is_one_message(team, monkeypatch):
    def broken(*_):
        return 1 / 0

    broken.__module__ = "__main__"  # the ranks do not have the tests' modules
    monkeypatch.setattr(engine, "call", broken)
    with pytest.raises(ranks.RankError, match=r"ranks 0, 1 raised ZeroDivisionError:\n.*division by zero"):
        team.run(max, 1, 2)
    monkeypatch.undo()
    assert team.restart().run(max, 1, 2) == [2, 2]
