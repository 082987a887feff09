"""The exercises of 11c: right answers pass, and wrong ones get the hint that names the mistake."""

import pytest
from judge.answers import variant
from judge.verdicts import soon

from workshop_lib.lessons.context_parallelism import judge as check

RANKS = 4  # on 2, left and right are the same
pytestmark = pytest.mark.usefixtures("healthy")

BOTH_STARTED = "sending = comm.Isend(block.numpy(), right)\n            receiving = comm.Irecv(arriving.numpy(), left)"
SENT_ALREADY = ("            sending.Wait()\n            receiving.Wait()\n", "")


def test_ranks_that_wait_for_each_other_are_told_what_a_ring_needs(team):
    only_receive = "comm.Recv(arriving.numpy(), left)\n            comm.Send(block.numpy(), right)"
    answer = variant(check.NOTEBOOK, "ring_attention", (BOTH_STARTED, only_receive), SENT_ALREADY)
    verdict = soon(check.ring_attention)(answer)
    assert verdict.passed is False
    assert "sends to its right and receives from its left" in verdict.hint
    assert "comm.Recv(arriving.numpy(), left)" in verdict.details, "it says on which line the ranks wait"
    assert team.healthy, "fresh ranks are there for the next cell"
