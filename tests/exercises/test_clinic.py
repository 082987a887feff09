"""The clinics of 05 and 13: a wrong diagnosis is told what it would show, and each run of 05 shows its illness."""

import pytest
from exercises.answers import solution

from workshop_lib import ranks
from workshop_lib.exercises import clinic, zoo
from workshop_lib.exercises import ddp as check

RANKS = 4


@pytest.fixture(scope="module")
def team():
    """Only the tests that need four ranks start them."""


@pytest.fixture(autouse=True)
def healthy():
    """There may be no ranks."""


@pytest.mark.parametrize("of", [clinic, zoo])
def test_a_wrong_diagnosis_is_told_what_it_would_show(of):
    assert of.diagnoses(of.RUNS).passed is True
    assert of.diagnoses(of.RUNS | {"C": ...}).passed is None
    for said, sign in of.SIGNS.items():
        run = next(run for run, illness in of.RUNS.items() if illness != said)
        verdict = of.diagnoses(of.RUNS | {run: said})
        assert verdict.passed is False
        assert verdict.failed == f"run {run}: {said}"
        assert sign in verdict.hint
        assert len(verdict.held) == len(of.RUNS) - 1, "the others are right"


def test_an_unknown_diagnosis_is_answered_with_the_known_ones():
    assert "averaged twice" in clinic.diagnoses(clinic.RUNS | {"A": "a cold"}).hint


@pytest.fixture(scope="module")
def four():
    return ranks.start(RANKS)


@pytest.fixture(scope="module")
def patients(four):
    return clinic.admit(four)


@pytest.mark.exhaustive
class TestOnFourRanks:
    def test_losses_digests_and_steps_tell_three_of_them(self, patients):
        runs = patients.runs
        digests = {name: [run.digest for run in of_ranks] for name, of_ranks in runs.items()}
        assert [len(set(of_ranks)) for of_ranks in digests.values()] == [1, 1, 2, 1, 1, 1]
        assert digests["B"][-1] not in digests["B"][:-1]
        steps = {name: len(of_ranks[0].losses) for name, of_ranks in runs.items()}
        assert steps == {"healthy": 8, "A": 8, "B": 8, "C": 32, "D": 8, "E": 16}
        losses = {name: [run.losses for run in of_ranks] for name, of_ranks in runs.items()}
        assert losses["C"][0] == losses["C"][1] == losses["C"][2] == losses["C"][3]
        assert losses["E"][0] == losses["E"][2] != losses["E"][1] == losses["E"][3]

    def test_the_timeline_tells_the_others(self, patients):
        kinds = [piece.kind for piece in patients.timelines["run A"].pieces[0]]
        assert kinds.count("communicating") == 2 * clinic.DRAWN_STEPS
        waiting = [shares["waiting"] for shares in patients.timelines["run D"].shares()]
        assert waiting[1] == min(waiting)

    @pytest.mark.parametrize("name", ["my_ddp", "my_buckets"])
    def test_ddp_written_by_hand_equals_one_process(self, name, four):
        verdict = getattr(check, name)(solution("05_ddp", name))
        assert verdict.passed is True, verdict
