"""Fault injection: faults where the plan says, restarts, and what is scored. The commands here train nothing."""

import sys

import pytest

from workshop_lib.errors import InputError
from workshop_lib.ranks import RankError

from lessons.runs_that_survive import fault_injection

# Two ranks take 40 steps of 50 ms and keep their count in a file; a rank that ends takes all along.
TRAINING = """\
import os, pathlib, sys, time
rank, count = int(os.environ["RANK"]), pathlib.Path("count")
done = int(count.read_text() or 0) if count.exists() else 0
for step in range(done, 40):
    time.sleep(0.05)
    if rank == 0:
        print(f"step {step + 1}", flush=True)
        pathlib.Path("part").write_text(str(step + 1)); os.replace("part", count)
print(f"rank {rank} has weights abc", flush=True)
"""
LAUNCHER = f"""\
import os, subprocess, sys
ranks = [subprocess.Popen([sys.executable, "-c", {TRAINING!r}], env=os.environ | {{"RANK": str(r)}}) for r in (0, 1)]
while ranks:
    pid, status = os.waitpid(-1, os.WUNTRACED)
    if status:
        for each in ranks: each.kill()
        sys.exit(3)
    ranks = [each for each in ranks if each.pid != pid]
"""


pytestmark = pytest.mark.usefixtures("nothing_left")


def test_a_plan_has_one_fault_in_each_window_and_depends_on_its_seed():
    faults = fault_injection.plan(200, 20, 2, seed=1)
    assert [fault.step // 20 for fault in faults] == list(range(10))
    assert {fault.rank for fault in faults} == {0, 1} and len({fault.kind for fault in faults}) > 1
    assert faults == fault_injection.plan(200, 20, 2, seed=1) != fault_injection.plan(200, 20, 2, seed=2)


@pytest.mark.parametrize(
    ("told", "word"),
    [({"steps": 30}, "twice as long"), ({"every": 1}, "at least 2"), ({"kinds": ["fire"]}, "kill, crash")],
)
def test_what_cannot_be_planned_is_refused(told, word):
    with pytest.raises(InputError, match=word):
        fault_injection.plan(**{"steps": 100, "every": 20, "ranks": 2, "seed": 1, **told})


def test_a_command_that_ends_is_started_again_and_steps_count_once():
    said = []
    score = fault_injection.score([sys.executable, "-c", LAUNCHER], every=15, seed=1, timeout_s=60, show=said.append)
    assert score.free.last == score.faulty.last == 40 and score.free.ranks == 2
    assert len(score.faulty.faults) == 2 and score.faulty.starts == 3 and score.free.starts == 1
    assert score.same_weights and 0 < score.share < 1
    assert len(score.faulty.back_after_s) == 2 and min(score.faulty.back_after_s) > 0
    assert any("ended with 3" in line for line in said)
    assert "with the same weights" in str(score)


def test_other_weights_are_told():
    run = fault_injection.TrainingRun([(0.0, 1), (1.0, 11)], weights={"a"})
    again = fault_injection.TrainingRun([(0.0, 1), (1.0, 6), (1.5, 4), (2.5, 11)], weights={"b"})
    score = fault_injection.FaultScore(run, again)
    assert score.share == pytest.approx(0.4) and not score.same_weights and "OTHER weights" in str(score)
    again.faults = [(1.1, fault_injection.Fault(6, 0, "kill", 0.0))]
    assert again.back_after_s == pytest.approx([1.4]), "step 4 had been taken before"


def test_a_command_that_fails_before_its_first_step_is_not_started_again():
    with pytest.raises(RankError, match="ended with 2 before its first step.*(?s:.*)no_such_script.py"):
        fault_injection.train([sys.executable, "no_such_script.py"], timeout_s=60)


def test_a_command_without_steps_or_without_an_end_is_an_error():
    with pytest.raises(RankError, match="no line such as 'step 1'"):
        fault_injection.train([sys.executable, "-c", "print('hello')"], timeout_s=30)
    with pytest.raises(RankError, match="not finished in time"):
        fault_injection.train([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=0.5)
