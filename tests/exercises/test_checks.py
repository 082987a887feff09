"""A check runs the learner's function on the ranks, says what it is like, and never ends the notebook."""

import importlib
import os
import subprocess
import sys
import time

import cloudpickle
import numpy as np
import pytest
from exercises.answers import written
from IPython.core.interactiveshell import InteractiveShell

from workshop_lib import ranks
from workshop_lib.exercises.did_not_end import ENDLESS_HINT, learners_lines
from workshop_lib.exercises.judge import Exercise, Property, alike, close
from workshop_lib.exercises.play import Played
from workshop_lib.notebook.magics import EXPLAINED, explain_error
from workshop_lib.paths import ROOT

from lessons.mpi_basics import judge as mpi_basics
from lessons.start_here import judge as start_here

pytestmark = pytest.mark.usefixtures("healthy")

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the ranks do not have the tests' modules


def observe(comm, function):
    return function(comm)


def properties(observations):
    numbers = all(isinstance(number, int) for number in observations)
    yield Property("every rank returns a number", numbers, "return a number.")
    observed = f"the ranks returned {observations}."
    yield Property("it is the rank's number", observations == list(range(len(observations))), observed=observed)


number = Exercise("number", observe, properties, timeout_s=2, stuck="who waits?", unknown="count the ranks.")


def learner(body):
    return written("import os, time", "answer(comm)", body)


RIGHT = "return comm.rank"


def test_it_is_the_learners_function_that_runs_on_every_rank_and_its_prints_are_seen(tmp_path, team, capsys):
    def answer(comm):
        (tmp_path / str(comm.rank)).write_text(str(os.getpid()))
        print("called on", comm.rank)
        return comm.rank

    assert number(answer).passed
    pids = {int((tmp_path / str(rank)).read_text()) for rank in range(2)}
    assert pids == {about["pid"] for about in team.about()}
    assert os.getpid() not in pids
    assert {"[0] called on 0", "[1] called on 1"} <= set(capsys.readouterr().out.splitlines())


def test_the_first_property_that_fails_gives_its_hint_or_what_was_observed_and_the_exercises_advice():
    verdict = number(learner("return None"))
    assert verdict.passed is False
    assert "✗ every rank returns a number" in repr(verdict) and "Hint: return a number." in repr(verdict)
    verdict = number(learner("return 7"))
    assert verdict.passed is False and verdict.held == ["every rank returns a number"]
    assert verdict.hint == "the ranks returned [7, 7]. Count the ranks."


def test_what_a_call_leaves_unreceived_does_not_reach_the_next(team):
    assert number(learner("if comm.rank: comm.send('late', 0)\n    return 7")).hint.endswith("Count the ranks.")
    assert number(learner("return comm.sendrecv(comm.rank, 1 - comm.rank)")).hint.startswith(
        "the ranks returned [1, 0]"
    )
    assert team.healthy


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return comm.rnak", ["AttributeError", "in answer", "rnak"]),
        ("return [lambda: 0]", ["every rank returns a number"]),
        ("os._exit(3)", ["exit code 3", "Fresh ranks were started"]),
        ("comm.Barrier() if comm.rank else time.sleep(99)", ["not finished after 2 s", "time.sleep(99)"]),
    ],
)
def test_no_answer_ends_the_notebook(body, words):
    verdict = number(learner(body))
    assert verdict.passed is False
    for word in words:
        assert word in repr(verdict)
    assert ("who waits?" in repr(verdict)) == ("not finished" in repr(verdict))
    assert "workshop_lib/exercises" not in repr(verdict), "only the learner's own lines"
    if "Fresh ranks were started" in repr(verdict):
        assert "restart()" not in repr(verdict) and "cannot be used" not in repr(verdict), "that's done already"
    if "who waits?" in repr(verdict):
        assert repr(verdict).index("who waits?") < repr(verdict).index("not finished after 2 s"), "the hint comes first"
    assert number(learner(RIGHT)).passed


def test_a_loop_without_an_end_gets_its_own_hint_where_no_rank_waits_for_another():
    assert number(learner("while True: pass")).hint == ENDLESS_HINT


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise NotImplementedError('no such operation for Byte')", "no such operation for Byte"),
        ("return only_there", "a %%ranks cell made `only_there`"),
        ("return input()", "A rank has no keyboard"),
    ],
)
def test_an_error_that_learners_often_meet_is_explained_and_keeps_the_ranks(team, body, words):
    team.push(only_there=1)
    verdict = number(learner(body))
    assert verdict.passed is False
    assert words in repr(verdict)
    assert "in answer" in verdict.details
    assert team.healthy


def test_a_message_has_no_line_of_the_workshop_itself(team):
    verdict = start_here.whoami(written("", "whoami(comm)", "if comm.rank: comm.Barrier()", "return comm.rank, 2"))
    assert "rank 0: had finished your function" in verdict.details
    assert "workshop_lib" not in repr(verdict)
    verdict = start_here.whoami(written("", "whoami()", "pass"))
    assert "whoami() takes 0 positional arguments but 1 was given" in verdict.details
    assert "workshop_lib" not in repr(verdict)


def test_a_function_that_a_check_hands_in_is_called_by_its_name():
    text = "TypeError: play_loop.<locals>.average() missing 2 required positional arguments"
    assert learners_lines(text) == "TypeError: average() missing 2 required positional arguments"


def test_a_name_that_only_the_ranks_have_is_explained_in_the_notebook_too(team, capsys):
    shell = InteractiveShell()
    shell.set_custom_exc(EXPLAINED, explain_error)
    team.push(only_there=1)
    shell.run_cell("only_there")
    assert "a %%ranks cell made `only_there`" in capsys.readouterr().out
    shell.run_cell("nowhere")
    assert "%%ranks" not in capsys.readouterr().out


@pytest.mark.full
def test_a_deadlock_gets_the_same_hint_as_a_time_out_and_much_sooner(team):
    exercise = Exercise("meets", observe, properties, timeout_s=30, stuck="who waits?")
    began = time.monotonic()
    verdict = exercise(learner("comm.recv(source=1 - comm.rank)"))
    assert time.monotonic() - began < 20
    assert verdict.hint == "who waits?" and verdict.details.startswith("deadlock: every rank waits for another one")


def test_the_clock_starts_when_the_ranks_have_imported_what_they_need_and_are_ready(team, tmp_path, monkeypatch):
    (tmp_path / "slow_import.py").write_text(
        "import time\ntime.sleep(1)\ndef observe(comm, function):\n    return function(comm)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    slow = importlib.import_module("slow_import")
    exercise = Exercise("slow", slow.observe, properties, ready=lambda: time.sleep(1), timeout_s=0.9)
    verdict = exercise(learner(RIGHT))
    assert verdict.passed, verdict


def test_ranks_that_do_not_get_ready_are_no_mistake_of_the_learner(monkeypatch):
    verdict = Exercise("broken", observe, properties, ready=lambda: 1 / 0)(learner(RIGHT))
    assert "ZeroDivisionError" in verdict.details
    monkeypatch.setattr("workshop_lib.exercises.judge.READY_LIMIT_S", 2)
    verdict = Exercise("late", observe, properties, ready=lambda: time.sleep(99), stuck="who waits?")(learner(RIGHT))
    assert "not finished after 2 s" in verdict.details
    assert not verdict.hint
    assert ranks.current().healthy


@pytest.mark.parametrize(
    ("got", "right", "same"),
    [
        (1 + 1e-12, 1.0, True),
        (1 + 1e-6, 1.0, False),
        ([1.0, 2.0], np.array([1.0, 2.0]), True),
        ([[1.0, 2.0]], np.array([1.0, 2.0]), False),
        (np.full(2, np.nan), np.ones(2), False),
        (np.empty(0), np.empty(0), True),
        (None, 1.0, False),
        ("one", 1.0, False),
    ],
)
def test_close_means_the_same_shape_and_the_same_values_up_to_rounding(got, right, same):
    assert close(got, right) is same


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ({"x": (1, None)}, {"x": (1 + 1e-9, None)}, True),
        ({"x": 1}, {"y": 1}, False),
        ([np.ones(3), "a"], [np.ones(3), "a"], True),
        ([np.ones(3)], [np.ones(3), np.ones(3)], False),
        (True, 1, False),
        (None, 0, False),
        (Played([], [np.ones(2), 2.0]), Played([], [np.ones(2), 2.0]), True),
        (Played([], [np.ones(2), 2.0]), Played([], [np.ones(2), 2.1]), False),
    ],
)
def test_evidence_is_alike_when_all_of_its_parts_are(a, b, same):
    assert alike(a, b) is same


def test_what_cannot_be_compared_is_said():
    verdict = Exercise("sum", observe, lambda observations: iter([observations[0] + 1]))(learner("return None"))
    assert verdict.passed is False
    assert "cannot be compared: TypeError" in repr(verdict)


def test_a_result_in_place_of_a_function_is_refused():
    assert "a function was expected, not 3" in repr(number(3))


def test_the_number_of_ranks_is_checked():
    verdict = mpi_basics.exchange(learner(RIGHT))
    assert verdict.passed is False
    assert "needs 4 ranks, not 2" in repr(verdict)
    assert "ranks.start(4)" in repr(verdict)


def test_without_ranks_it_says_how_to_start_them(team):
    started = time.monotonic()
    ranks.stop()
    try:
        verdict = number(learner(RIGHT))
    finally:
        team.restart()
    assert repr(verdict) == "number: not solved yet. Start ranks with `ranks.start(2)`, then run both cells."
    assert time.monotonic() - started < 30


def test_html_is_escaped():
    html = number(learner("return '<b>'"))._repr_html_()
    assert "<b>number: not yet</b>" in html
    assert "&lt;" in number(learner("return comm['<b>']"))._repr_html_()
    assert "workshop-check" in html


IN_NOTEBOOK = """
from workshop_lib import notebook
from lessons.mpi_basics import judge
from lessons.synchronous_sgd import judge
from mpi4py import MPI
print("MPI is initialized:", MPI.Is_initialized())
"""


def test_the_notebooks_own_process_starts_no_mpi():
    words = [sys.executable, "-m", "IPython", "-c", IN_NOTEBOOK]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "MPI is initialized: False" in ended.stdout, ended.stderr
