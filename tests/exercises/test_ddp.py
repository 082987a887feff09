"""The checks of 05_ddp accept right answers and say of wrong ones what is wrong."""

import ddp_accumulate
import ddp_average_hook
import ddp_shard_of
from exercises.verdicts import Verdicts

from workshop_lib.exercises import ddp as check


class TestVerdicts(Verdicts):
    check, notebook = check, "05_ddp"
    names = ("accumulate", "average_hook", "shard_of")
    right = ddp_accumulate.RIGHT | ddp_average_hook.RIGHT | ddp_shard_of.RIGHT
    wrong = ddp_accumulate.WRONG | ddp_average_hook.WRONG | ddp_shard_of.WRONG
    never_ends = ddp_accumulate.NEVER_ENDS | ddp_average_hook.NEVER_ENDS


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
