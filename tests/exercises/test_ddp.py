"""The checks of 05_ddp accept right answers and say of wrong ones what is wrong."""

import ddp_accumulate
import ddp_average_hook
import ddp_shard_of
import pytest
from answers import solution, stub

from workshop_lib.notebook.exercises import ddp as check

NOTEBOOK = "05_ddp"
NAMES = ["accumulate", "average_hook", "shard_of"]
RIGHT = ddp_accumulate.RIGHT | ddp_average_hook.RIGHT | ddp_shard_of.RIGHT
WRONG = ddp_accumulate.WRONG | ddp_average_hook.WRONG | ddp_shard_of.WRONG
NEVER_ENDS = ddp_accumulate.NEVER_ENDS | ddp_average_hook.NEVER_ENDS


@pytest.mark.parametrize("name", NAMES)
def test_the_solution_passes(name):
    verdict = getattr(check, name)(solution(NOTEBOOK, name))
    assert verdict.passed, verdict


@pytest.mark.parametrize("name", NAMES)
def test_the_stub_is_not_solved_yet(name):
    verdict = getattr(check, name)(stub(NOTEBOOK, name))
    assert verdict.passed is None
    assert "not solved yet" in repr(verdict)


def judge(answer):
    return getattr(check, answer.__name__)(answer)


@pytest.mark.parametrize("way", RIGHT)
def test_another_right_way_passes(way):
    verdict = judge(RIGHT[way]())
    assert verdict.passed, verdict


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_answer_is_rejected_with_its_hint(mistake):
    answer, hint = WRONG[mistake]
    verdict = judge(answer())
    assert verdict.passed is False, verdict
    assert hint.lower() in verdict.hint.lower(), verdict


@pytest.mark.parametrize("mistake", NEVER_ENDS)
def test_an_answer_that_never_ends_is_stopped_and_the_hint_says_why(mistake, team):
    answer, hint = NEVER_ENDS[mistake]
    verdict = judge(answer())
    assert verdict.passed is False, verdict
    assert "is at" in verdict.failed, "it says on which line the ranks wait"
    assert hint.lower() in verdict.hint.lower(), verdict
    assert team.healthy, "fresh ranks are there for the next cell"


def test_it_is_the_learners_function_that_runs_on_every_rank(team):
    team.push(seen=[])
    spy = "import __ranks__; __ranks__.seen.append((dist.get_rank(), len(micro_batches)))"
    check.accumulate(ddp_accumulate.accumulate(spy))
    assert team.pull("seen") == [[(rank, 4), (rank, 1)] for rank in (0, 1)]


def test_the_ranks_keep_their_process_group(team):
    group = "import __ranks__; __ranks__.group = id(dist.group.WORLD)"
    check.shard_of(ddp_shard_of.shard_of(group, "return []"))
    first = team.pull("group")
    check.average_hook(ddp_average_hook.hook(group, ddp_average_hook.START, ddp_average_hook.THEN))
    assert team.pull("group") == first
