"""All checks run the learner's function on the ranks, and nothing it does ends the notebook."""

import importlib
import os
import sys
import time

import cloudpickle
import numpy as np
import pytest
from exercises.answers import written
from jupyter_client.manager import start_new_kernel

from workshop_lib import ranks
from workshop_lib.notebook.checks import judged, shown
from workshop_lib.paths import ROOT
from workshop_lib.probes.compare import close

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the ranks do not have the tests' modules


def probe(comm, function):
    return function(comm)


def judge(facts):
    yield "every rank returns its number", facts == list(range(len(facts))), "return comm.rank."


def learner(body):
    return written("import os, time", "answer(comm)", body)


def test_it_is_the_learners_function_that_runs_on_every_rank(tmp_path):
    def answer(comm):
        (tmp_path / str(comm.rank)).write_text(str(os.getpid()))
        return comm.rank

    assert judged(answer, probe, judge).passed
    pids = {int((tmp_path / str(rank)).read_text()) for rank in range(2)}
    assert pids == {about["pid"] for about in ranks.current().about()}
    assert os.getpid() not in pids


def test_the_first_property_that_fails_gives_its_hint():
    verdict = judged(learner("return 0"), probe, judge)
    assert verdict.passed is False
    assert "✗ every rank returns its number" in repr(verdict)
    assert "Hint: return comm.rank." in repr(verdict)


def test_a_stub_is_not_solved_yet():
    verdict = judged(learner("raise NotImplementedError('your code here')"), probe, judge)
    assert verdict.passed is None
    assert "not solved yet" in repr(verdict)
    assert ranks.current().healthy


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return comm.rnak", ["AttributeError", "in answer", "rnak"]),
        ("return [lambda: 0]", ["every rank returns its number"]),
        ("os._exit(3)", ["exit code 3", "Fresh ranks were started"]),
        ("comm.Barrier() if comm.rank else time.sleep(99)", ["not finished after 2 s", "time.sleep(99)"]),
    ],
)
def test_no_answer_ends_the_notebook(body, words):
    verdict = judged(learner(body), probe, judge, timeout=2, stuck="who waits?")
    assert verdict.passed is False
    for word in words:
        assert word in repr(verdict)
    assert ("who waits?" in repr(verdict)) == ("not finished" in repr(verdict))
    assert judged(learner("return comm.rank"), probe, judge).passed


def test_the_clock_starts_when_the_ranks_have_imported_the_probe(team, tmp_path, monkeypatch):
    (tmp_path / "slow_probe.py").write_text(
        "import time\ntime.sleep(2)\ndef probe(comm, function):\n    return function(comm)\n"
    )
    folder = str(tmp_path)
    monkeypatch.syspath_prepend(folder)
    team.run(lambda: sys.path.append(folder), show=False)
    slow = importlib.import_module("slow_probe")
    verdict = judged(learner("return comm.rank"), slow.probe, judge, timeout=1)
    assert verdict.passed, verdict


def test_the_clock_starts_when_the_ranks_say_that_they_are_ready(team):
    verdict = judged(learner("return comm.rank"), probe, judge, timeout=1, ready=lambda: time.sleep(2))
    assert verdict.passed, verdict


def test_ranks_that_do_not_get_ready_are_no_mistake_of_the_learner(monkeypatch):
    verdict = judged(learner("return comm.rank"), probe, judge, ready=lambda: 1 / 0)
    assert "ZeroDivisionError" in verdict.failed
    monkeypatch.setattr("workshop_lib.notebook.checks.READY_LIMIT_S", 2)
    verdict = judged(learner("return comm.rank"), probe, judge, ready=lambda: time.sleep(99), stuck="who waits?")
    assert "not finished after 2 s" in verdict.failed
    assert not verdict.hint
    assert ranks.current().healthy


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        ("a" * 99, "'" + "a" * 56 + "…"),
        (np.arange(6.0), "[0. 1. 2. 3.] …"),
        (np.ones((2, 2)), "[1. 1. 1. 1.]"),
    ],
)
def test_what_was_returned_is_shown_short(value, text):
    assert shown(value) == text


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
def test_close_means_the_same_shape_and_the_same_values_but_for_rounding(got, right, same):
    assert close(got, right) is same


def test_what_cannot_be_compared_is_said():
    verdict = judged(learner("return None"), lambda comm, f: f(comm), lambda facts: iter([facts[0] + 1]))
    assert verdict.passed is False
    assert "cannot be compared: TypeError" in repr(verdict)


def test_a_result_in_place_of_a_function_is_refused():
    assert "a function was expected, not 3" in repr(judged(3, probe, judge))


def test_the_number_of_ranks_is_checked():
    verdict = judged(learner("return comm.rank"), probe, judge, on=4)
    assert "needs 4 ranks, not 2" in repr(verdict)
    assert "ranks.start(4)" in repr(verdict)


def test_without_ranks_it_says_how_to_start_them():
    started = time.monotonic()
    ranks.stop()
    try:
        verdict = judged(learner("return comm.rank"), probe, judge)
    finally:
        ranks.start(2)
    assert "Start some with" in repr(verdict)
    assert time.monotonic() - started < 30


def test_html_is_escaped():
    html = judged(learner("return '<b>'"), probe, judge)._repr_html_()
    assert "&lt;" in html or "<b>answer: not yet</b>" in html
    assert "workshop-check" in html


IN_KERNEL = """
from workshop_lib import notebook
from workshop_lib.exercises import mpi_basics, start_here
from mpi4py import MPI
assert not MPI.Is_initialized()
"""


def test_the_kernel_itself_starts_no_mpi():
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(ROOT))
    try:
        reply = client.execute(IN_KERNEL, reply=True, timeout=60)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert reply["content"]["status"] == "ok", reply["content"]
