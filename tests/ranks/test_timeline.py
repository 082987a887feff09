"""What the dashboard is told by real ranks: curves and times that add up."""

import pytest

from workshop_lib import ranks
from workshop_lib.ranks.progress import TextView
from workshop_lib.ranks.timeline import KINDS, timeline
from workshop_lib.training.options import TrainOptions

pytestmark = pytest.mark.full

STEPS = 40  # in an epoch


class Kept(TextView):
    """The text view; stays to be looked at when the training is over."""

    last: "Kept"

    def __init__(self, n, **about):
        super().__init__(n, **about)
        Kept.last = self


def train(**options):
    """Train two epochs on two ranks; returns the record and the view that showed it."""
    team = ranks.start(2)
    team.view = Kept
    record = team.train(TrainOptions(epochs=2, train_samples=STEPS * 64 * 2, **options))
    del team.view
    return record, Kept.last


@pytest.fixture(scope="module", autouse=True)
def _stop():
    yield
    ranks.stop()


@pytest.mark.alone
def test_the_curve_adds_up_to_the_record():
    record, view = train()
    # The second epoch's end may come too late: messages and results take different ways.
    first = [point.of_ranks()[-1] for point in view.progress.curve if point.done <= STEPS]
    loss, correct, samples = map(sum, zip(*first, strict=True))
    assert samples == STEPS * 64 * 2
    assert loss / samples == pytest.approx(record["epochs"][0]["train_loss"])
    assert correct / samples == pytest.approx(record["epochs"][0]["train_accuracy"])
    recent = timeline(view.progress.trace)
    assert recent.collectives_known and len(recent.steps) > STEPS / 2
    for shares in recent.shares():
        assert list(shares) == list(KINDS)
        assert sum(shares.values()) == pytest.approx(1.0)


def test_ddp_does_not_pretend_to_know_its_communication():
    record, view = train(backend="ddp")
    assert record["epochs"][0]["communication_s"] is None, "averaging is no step of its own"
    assert view.progress.curve
    assert not timeline(view.progress.trace).collectives_known
    assert view.progress.shares() == []
