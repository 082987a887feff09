"""Every test is in one tier, `make` runs each tier, and `make test` keeps a test of everything that it promises."""

import re
from collections import Counter

import pytest
import tiers
from training.ladder import HOROVOD, REPLICATED, SHARDED

from workshop_lib.notebook.results.records import all_names
from workshop_lib.paths import ROOT

# What `make test` promises: names of tests, as pytest's -v lists them, of which each must be there.
UNIT = ["data", "models", "loop", "options", "optimizers", "checkpoint", "failures", "records"]
UNIT += ["cli", "doctor", "setup"]
FAULTS = [
    "lost_rank_is_reported_at_once.*raises",
    "lost_rank_is_reported_at_once.*is asked to end",
    "lost_rank_is_reported_at_once.*exits with 0",
    "never_comes_is_located.*loops",
    "never_comes_is_located.*sleeps",
    "mismatched_collectives",
    "interrupt_ends_python_code",
    "interrupt_inside_a_collective",
    "stopped_rank_is_told",
    "busy_when_another_fails",
    "failed_alike_go_on",
    "message_left_behind",
]
LADDER = {name: f"ragged-{name}-2" for name in REPLICATED} | {name: f"{name}-adam-2" for name in SHARDED}
LADDER |= {name: f"{name}-2" for name in HOROVOD}
PROMISES = {
    "the unit tests": [rf"test_{name}\.py::" for name in UNIT],
    "types, lint and format": [rf"test_nothing_is_found_by.{name}" for name in ("types", "lint", "format")],
    "each backend and ZeRO stage": [rf"test_same_weights.*as_one_process.*\b{LADDER[name]}\b" for name in all_names()],
    "each kind of fault": FAULTS,
    "resume": [rf"resumed_run_equals_the_uninterrupted.{name}-stop" for name in ("mpi", "ddp")],
    "notebooks of the core path": [rf"fresh_kernel.*quick--{lesson}_" for lesson in ("00", "02")],
    "one browser session": ["from_stub_to_solution_with_a_hint"],
}


@pytest.mark.parametrize("promise", PROMISES)
def test_make_test_keeps_its_promise(promise, all_tests):
    core = [item.nodeid for item in all_tests if tiers.tier_of(item) == "core"]
    missing = [pattern for pattern in PROMISES[promise] if not any(re.search(pattern, name) for name in core)]
    assert not missing, f"no test of the tier core is named like {missing}"


def test_every_exercise_of_the_core_path_is_in_make_test(all_tests):
    tried = [item for item in all_tests if item.originalname.startswith("test_the_solution_passes")]
    lessons = Counter(lesson for item in tried for lesson in tiers.lessons_of(item) if tiers.tier_of(item) == "core")
    assert set(lessons) == set(tiers.CORE_LESSONS)


def test_each_tier_is_run_and_test_all_runs_everything():
    makefile = (ROOT / "Makefile").read_text()
    recipes = dict(re.findall(r"^(test\S*): setup .*\n\t@(.+)", makefile, re.MULTILINE))
    assert "--tier core" in recipes["test"]
    assert recipes["test-full"].endswith("--tier full")
    assert recipes["test-all"] == "$(BIN)/python -m pytest $(IN_LANES)"
    commands = (ROOT / ".ci" / "run").read_text().splitlines()
    assert commands[-2:] == ["make test", "make test-full"]


def test_every_test_has_a_tier_and_what_is_about_a_lesson_can_be_run_alone(all_tests):
    counts = Counter(tiers.tier_of(item) for item in all_tests)
    assert set(counts) == set(tiers.TIERS)
    of_lessons = Counter(lesson for item in all_tests for lesson in tiers.lessons_of(item))
    assert set(of_lessons) == set(tiers.LESSONS)
