"""The exercise of 06 on a stage that looks ahead, with a network of a single layer."""

from judge.answers import variant

from workshop_lib.lessons.zero_and_fsdp import judge_overlap as check


def test_a_single_layer_never_starts_another():
    never_ahead = variant(check.NOTEBOOK, "Lookahead", (check.IF_MORE, "if False:"))
    found = list(check.passes(never_ahead, 1))
    assert found == [([0], [("start", 0), ("wait", 0), ("compute", 0)])] * check.PASSES
