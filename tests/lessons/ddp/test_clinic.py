"""The clinic of 05: each run shows what its illness is known by."""

import pytest
from exercises.answers import solution

from lessons.ddp import clinic
from lessons.ddp import judge as check

RANKS = 4
pytestmark = [pytest.mark.exhaustive, pytest.mark.usefixtures("healthy")]


@pytest.fixture(scope="module")
def patients(team):
    return clinic.admit(team)


def test_losses_digests_and_steps_tell_three_of_them(patients):
    runs = patients.runs
    digests = {name: [run.digest for run in of_ranks] for name, of_ranks in runs.items()}
    assert [len(set(of_ranks)) for of_ranks in digests.values()] == [1, 1, 2, 1, 1, 1]
    assert digests["B"][-1] not in digests["B"][:-1]
    steps = {name: len(of_ranks[0].losses) for name, of_ranks in runs.items()}
    assert steps == {"healthy": 8, "A": 8, "B": 8, "C": 32, "D": 8, "E": 16}
    losses = {name: [run.losses for run in of_ranks] for name, of_ranks in runs.items()}
    assert losses["C"][0] == losses["C"][1] == losses["C"][2] == losses["C"][3]
    assert losses["E"][0] == losses["E"][2] != losses["E"][1] == losses["E"][3]


def test_the_timeline_tells_the_others(patients):
    kinds = [piece.kind for piece in patients.timelines["run A"].pieces[0]]
    assert kinds.count("communicating") == 2 * clinic.DRAWN_STEPS
    waiting = [shares["waiting"] for shares in patients.timelines["run D"].shares()]
    assert waiting[1] == min(waiting)


def test_ddp_written_by_hand_passes_on_four_ranks_too():
    verdict = check.my_ddp(solution("05_ddp", "my_ddp"))
    assert verdict.passed is True, verdict
