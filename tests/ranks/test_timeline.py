"""What the dashboard is told by real ranks: curves that add up, and a planted delay where it was planted."""

import statistics
import sys
import time

import cloudpickle
import pytest

from workshop_lib import ranks
from workshop_lib.ranks.progress import TextView
from workshop_lib.ranks.timeline import KINDS, WAITING, timeline
from workshop_lib.training.options import TrainOptions

pytestmark = pytest.mark.full

cloudpickle.register_pickle_by_value(sys.modules[__name__])
STEPS = 40  # in an epoch
DELAY_S = 0.02  # long beside what a busy machine adds to a step


class Delay:
    """Holds one rank up after each step, as a slower machine would."""

    def __init__(self, late_rank):
        self.late_rank = late_rank

    def on_start(self, info):
        self.delay_s = DELAY_S if info["rank"] == self.late_rank else 0.0

    def on_step(self, event):
        if self.delay_s:
            time.sleep(self.delay_s)


def train_with_delay(options, late_rank):
    from workshop_lib.ranks.engine import Publisher
    from workshop_lib.training.trainer import train

    return train(options, callbacks=[Delay(late_rank), Publisher()])


class Kept(TextView):
    """The text view; keeps every step's trace that came, by rank and step."""

    last: "Kept"

    def __init__(self, n, **about):
        super().__init__(n, **about)
        Kept.last, self.traces = self, [{} for _ in range(n)]

    def update(self, data, elapsed_s, running):
        super().update(data, elapsed_s, running)
        for kept, published in zip(self.traces, data, strict=True):
            kept.update({step[0]: step for step in published.get("trace", ())})


def train(n, late_rank=None, **options):
    """Train two epochs on n ranks; returns the record and what the view kept."""
    team = ranks.start(n)
    team.view = Kept
    options = TrainOptions(epochs=2, train_samples=STEPS * 64 * n, **options)
    record = team.run(train_with_delay, options, late_rank)[0]
    del team.view
    return record, Kept.last


@pytest.fixture(scope="module", autouse=True)
def _stop():
    yield
    ranks.stop()


def waits_ms(view):
    """The median wait in a step, by rank."""
    steps = sorted(set.intersection(*map(set, view.traces)))
    assert len(steps) > STEPS / 2, "most steps' traces have come"
    waits = []
    for step in steps:
        pieces = timeline([[kept[step]] for kept in view.traces]).pieces
        waits.append([sum(p.end_s - p.start_s for p in row if p.kind == WAITING) for row in pieces])
    return [1000 * statistics.median(of_rank) for of_rank in zip(*waits, strict=True)]


@pytest.mark.alone
def test_the_others_wait_for_a_planted_slow_rank():
    _, view = train(2, late_rank=1)
    punctual, late = waits_ms(view)
    delay_ms = 1000 * DELAY_S
    assert 0.6 * delay_ms < punctual < 2.4 * delay_ms, "rank 0 waits about as long as rank 1 is late"
    assert late < 0.4 * delay_ms


@pytest.mark.alone
@pytest.mark.parametrize("n", [2, pytest.param(8, marks=pytest.mark.exhaustive)])
def test_the_curve_adds_up_to_the_record(n):
    record, view = train(n)
    # The second epoch's end may come too late: messages and results take different ways.
    first = [point.of_ranks()[-1] for point in view.progress.curve if point.done <= STEPS]
    loss, correct, samples = map(sum, zip(*first, strict=True))
    assert samples == STEPS * 64 * n
    assert loss / samples == pytest.approx(record["epochs"][0]["train_loss"])
    assert correct / samples == pytest.approx(record["epochs"][0]["train_accuracy"])
    recent = timeline(view.progress.trace)
    assert recent.collectives_known and len(recent.steps) > STEPS / 2
    for shares in recent.shares():
        assert list(shares) == list(KINDS)
        assert sum(shares.values()) == pytest.approx(1.0)


def test_ddp_does_not_pretend_to_know_its_communication():
    record, view = train(2, backend="ddp")
    assert record["epochs"][0]["communication_s"] is None, "averaging is no step of its own"
    assert view.progress.curve
    assert not timeline(view.progress.trace).collectives_known
    assert view.progress.shares() == []
