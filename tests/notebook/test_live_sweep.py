"""The dashboard of a sweep: a mark per run, the time left, and a Stop that keeps what was measured."""

import re

import pytest
from drawn import Shown
from record_fixtures import run

from workshop_lib.notebook import live, live_sweep
from workshop_lib.notebook.results import sweep as sweeps
from workshop_lib.ranks import RankError

INFO = {"epochs": 2, "steps_per_epoch": 100, "oversubscribed": False, "clock_origin_s": 0.0}
HALF_WAY = {"info": INFO, "step": {"epoch": 2, "step": 0, "steps_per_epoch": 100, "lr": 0.1, "samples_per_s": 1.0}}


class Team:
    """In place of ranks. It is half-way through a run when somebody looks, and tells `look` about each run."""

    attached_only = False

    def __init__(self, n, look):
        self.n = n
        self.look = look

    def train(self, options, timeout, show):
        show.update([HALF_WAY], 5.0, [0])
        self.look(show)
        show.close()
        return run(options, self.n)


@pytest.fixture
def shown(monkeypatch):
    shown = Shown()
    monkeypatch.setattr(live, "display", shown.display)
    monkeypatch.setattr(live_sweep, "has_widgets", lambda: True)
    return shown


def swept(look, counts=(1, 2)):
    return list(live_sweep.sweep(lambda n: Team(n, look), list(counts), ["mpi", "ddp"], repeats=2))


def test_the_curve_fills_in_and_stays_in_the_notebook(shown):
    bars = []
    states = []
    runs = []
    drawn = set()

    def look(show):
        bars.append(show.meter.value / show.meter.max)
        states.append(show.status.value)
        runs.append(len(show.runs))
        drawn.add(show.curve.value)

    assert len(swept(look)) == 8
    assert bars == pytest.approx([(k + 0.5) / 8 for k in range(8)], abs=0.001)
    assert "run 1 of 8, on 1 rank" in states[0] and "left" not in states[0], "nobody knows yet"
    assert re.search(r"run 8 of 8, on 2 ranks · about 5 s left", states[-1])
    assert runs == list(range(8)) and len(drawn) == 8, "a mark for each run"
    assert "8 of 8 runs · done" in shown[-1] and 'class="workshop-figure" alt="samples/s against ranks.' in shown[-1]


def test_a_sweep_on_emulated_ranks_says_so_from_its_first_run_on(shown, monkeypatch):
    machine = "a100-ethernet"
    states = []

    def train(team, options, timeout, show):
        show.update([HALF_WAY | {"info": INFO | {"machine": machine}}], 5.0, [0])
        states.append(show.status.value)
        record = run(options, team.n)
        record["what"]["machine"] = machine
        return record

    monkeypatch.setattr(Team, "train", train)
    swept(None)
    assert "run 1 of 8, on 1 rank emulated on a100-ethernet" in states[0]
    assert 'alt="samples/s (emulated) against emulated devices.' in shown[-1]
    assert "All times are emulated on a100-ethernet (imagined)." in shown[-1]


@pytest.mark.parametrize(
    ("news", "elapsed_s", "left_s"),
    [
        ({}, 4.0, 36.0),
        ({}, 11.0, None),  # and not "about 1 s left" for another minute
        (HALF_WAY, 20.0, 50.0),  # the pace of the run itself
    ],
)
def test_the_time_left_goes_by_the_pace_of_the_run_once_it_is_known(news, elapsed_s, left_s):
    view = live_sweep.SweepDashboard([1, 16])
    assert view._left_s() is None, "nothing has been measured yet"
    view.later_s = [10.0, 30.0]
    view.elapsed_s = elapsed_s
    view.progress.take([news])
    assert view._left_s() == left_s


def test_stop_keeps_the_runs_that_are_done(shown):
    def look(show):
        if show.number == 3:
            show.button.click()
            assert show.button.description == "Stopping"

    records = swept(look)
    assert [record["what"]["backend"] for record in records] == ["mpi", "ddp"], "without the run that was cut off"
    assert "2 of 8 runs · stopped" in shown[-1]
    assert shown[0].children[0].children[0].description == "Stopped ✓"


def test_ranks_that_do_not_stop_in_time_end_the_sweep_all_the_same(shown):
    def look(show):
        show.button.click()
        raise RankError("the call was interrupted")

    assert swept(look) == []
    with pytest.raises(RankError, match="lost"):
        swept(lambda show: (_ for _ in ()).throw(RankError("rank 1 was lost")))
    assert "ended by an error" in shown[-1]


def test_runs_beside_other_programs_are_pale_and_counted(shown, monkeypatch):
    monkeypatch.setattr(sweeps.Meter, "warning", lambda self, wanted: "others" if wanted == 2 else "")
    swept(lambda show: None)
    assert "Other programs used the cores during 4 of 8 runs." in shown[-1]
    assert "certainly wrong" not in shown[-1]
    monkeypatch.setattr(live_sweep.curves, "samples_per_s", lambda record: 1000.0 * record["what"]["world_size"] ** 2)
    swept(lambda show: None)
    assert "2 ranks with mpi seem 4.00 times as fast as one." in shown[-1] and "certainly wrong" in shown[-1]


def test_perfect_scaling_sets_the_scale_as_soon_as_one_rank_is_measured_and_disturbed_runs_are_pale():
    runs = [live_sweep.SpeedRun("mpi", 1, 1000.0), live_sweep.SpeedRun("mpi", 1, 1000.0, disturbed=True)]
    for seen in (runs[:1], runs):
        axes = live_sweep.speeds(seen, [1, 4]).axes[0]
        assert axes.get_ylim() == pytest.approx((0, 4200)) and axes.get_xlim() == (0, 4.24)
    assert list(axes.collections[0].get_alpha()) == [1.0, 0.3]
    live_sweep.speeds([], [1, 2]).png()
