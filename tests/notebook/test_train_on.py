"""Training on real ranks: the curves and times that a view is given add up, and the record says how it ended."""

from types import SimpleNamespace

import pytest

from workshop_lib import ranks
from workshop_lib.notebook.train_on import train_on
from workshop_lib.notebook.training_text import TrainingText
from workshop_lib.training.options import TrainOptions
from workshop_lib.training.timeline import KINDS, timeline

STEPS = 40  # in an epoch


class Kept(TrainingText):
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


@pytest.mark.full
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


@pytest.mark.full
def test_ddp_does_not_pretend_to_know_its_communication():
    record, view = train(backend="ddp")
    assert record["epochs"][0]["communication_s"] is None, "averaging is no step of its own"
    assert view.progress.curve
    assert not timeline(view.progress.trace).collectives_known
    assert view.progress.shares() == []


def test_a_training_that_was_stopped_before_its_first_test_says_so():
    def trained(epochs):
        team = SimpleNamespace(run=lambda *_, **__: [{"what": {}, "epochs": epochs, "stopped": True}])
        return train_on(team, None, show=False)["epochs"]

    stopped = trained([])
    with pytest.raises(IndexError, match="stopped before the first test") as error:
        stopped[-1]["test_accuracy"]
    assert len(error.value._render_traceback_()) == 1, "one line in place of a traceback"
    assert stopped == stopped[1:] == []
    assert trained([{"epoch": 1}])[-1] == {"epoch": 1}
