from types import SimpleNamespace

import pytest
from drawn import printed
from record_fixtures import run, sweep

from workshop_lib.notebook.results import sweep as sweeping
from workshop_lib.notebook.results.curves import strong_scaling, summary, throughput, to_frame, weak_scaling
from workshop_lib.notebook.results.records import RecordError


def weak(ranks, speed, a_rank=1000, **changes):
    """A run with so many samples a rank, and start-up in its first epoch."""
    record = run("mpi", ranks, (speed / 2, speed), samples=a_rank * ranks, **changes)
    record["what"]["train_samples"] = a_rank * ranks
    return record


def test_a_row_holds_steady_throughput_without_the_first_epoch():
    frame = to_frame([run("mpi", 2, speeds=(5_000, 10_000, 20_000)), {"kind": "bench"}])
    assert len(frame) == 1
    row = frame.iloc[0]
    assert row["first_epoch_s"] == 12
    assert row["samples_per_s"] == pytest.approx(120_000 / 9)
    assert row["test_accuracy"] == 0.9911
    assert not row["first_epoch_only"]


def test_a_run_of_one_epoch_is_marked_and_a_missing_field_named():
    row = to_frame([run("ddp", speeds=(5_000,))]).iloc[0]
    assert row["first_epoch_only"]
    assert row["samples_per_s"] == row["first_epoch_samples_per_s"] == 5_000
    record = run()
    del record["what"]["world_size"]
    with pytest.raises(RecordError, match="training record 2 lacks the field 'world_size'"):
        to_frame([run(), record])


def test_speedup_and_efficiency_are_against_the_median_of_one_rank():
    speeds = {1: (900, 1000, 1300), 2: (1500, 1800, 1900)}
    runs = [run("mpi", n, (1, speed)) for n in speeds for speed in speeds[n]]
    points = strong_scaling(to_frame(runs)).set_index("world_size")
    assert points.loc[2, "samples_per_s"] == pytest.approx(1800)
    assert points.loc[2, ["speedup_min", "speedup", "speedup_max"]].tolist() == pytest.approx([1.5, 1.8, 1.9])
    assert points.loc[2, "efficiency"] == pytest.approx(0.9)
    assert points.loc[1, ["efficiency_min", "efficiency", "efficiency_max"]].tolist() == pytest.approx([0.9, 1.0, 1.3])
    assert points.loc[2, "repeats"] == 3


def test_each_backend_has_its_own_baseline():
    runs = [run("mpi", 1, (1, 1000)), run("ddp", 1, (1, 500)), run("ddp", 2, (1, 800))]
    points = strong_scaling(to_frame(runs)).set_index(["backend", "world_size"])
    assert points.loc[("ddp", 2), "speedup"] == pytest.approx(1.6)
    with pytest.raises(RecordError, match="no 1-rank run of ddp .* with 1 among its ranks"):
        strong_scaling(to_frame([run("mpi"), run("ddp", 2)]))


def test_a_curve_of_one_global_batch_can_be_asked_for():
    runs = [run("mpi", 1, (1, 1000), batch=128), run("mpi", 2, (1, 1600), batch=64)]
    points = strong_scaling(to_frame(runs), same="global_batch").set_index("world_size")
    assert points.loc[2, "speedup"] == pytest.approx(1.6)
    with pytest.raises(RecordError, match="no 1-rank run of mpi with batch_size 64"):
        strong_scaling(to_frame(runs))


UNLIKE = {
    "where": {"cpu_model": "Another CPU", "device": "cuda"},
    "what": {
        "threads_per_rank": 2,
        "data_dir": "/data/fashion",
        "optimizer": "adam",
        "lr": 0.4,
        "lr_scaling": "linear",
    },
}


@pytest.mark.parametrize(("part", "name"), [(part, name) for part in UNLIKE for name in UNLIKE[part]])
def test_two_machines_or_settings_are_not_mixed(part, name):
    other = run("mpi", 2)
    other[part][name] = UNLIKE[part][name]
    with pytest.raises(RecordError, match=f"mix runs with {name} = .*{UNLIKE[part][name]}"):
        throughput(to_frame([run(), other]))


def test_bound_runs_name_other_cores_on_each_number_of_ranks_and_are_alike():
    runs = [run(), run("mpi", 2)]
    for record, binding in zip(runs, ("cores 0", "cores 0 | 1"), strict=True):
        record["what"]["binding"] = binding
    throughput(to_frame(runs))
    with pytest.raises(RecordError, match="mix runs with bind = core and none"):
        throughput(to_frame([*runs, run("mpi", 2)]))
    with pytest.raises(RecordError, match="mix runs with train_samples = 1000.0 and not given"):
        throughput(to_frame([run(), weak(1, 100)]))


def test_stopped_and_empty_runs_do_not_count():
    runs = [run("mpi", 1, (1, 1000)), run("mpi", 1, (1, 1), stopped=True), run("mpi", 1, ())]
    points = throughput(to_frame(runs))
    assert points["repeats"].tolist() == [1]
    assert points["samples_per_s"].tolist() == [pytest.approx(1000)]
    with pytest.raises(RecordError, match="no finished training run"):
        throughput(to_frame(runs[1:]))


def test_the_summary_says_what_was_measured_in_80_columns():
    runs = sweep()
    runs[0]["ladder"] = {"largest_relative_difference": 3.1e-7}
    runs[-1]["ranks_identical"] = False
    for record in runs:
        if record["what"]["backend"] == "mpi" and record["what"]["world_size"] == 2:
            record["memory"] = dict.fromkeys(
                ("parameters_bytes", "gradients_bytes", "optimizer_bytes"), [100_000, 200_000]
            )
    lines = printed(summary(runs)).splitlines()
    mpi_2 = next(line.split() for line in lines if line.startswith("mpi") and " 2 " in line)
    assert mpi_2 == ["mpi", "2", "15,276", "(6", "%)", "95", "%", "99.09", "%", "12.5", "yes", "600", "–"]
    ddp_4 = next(line for line in lines if line.startswith("ddp") and " 4* " in line)
    assert "6.2 (2/3)" in ddp_4 and " NO " in ddp_4
    assert any("3.1e-07" in line for line in lines)
    assert any("* more ranks than cores" in line for line in lines)


def test_the_summary_doubts_a_speedup_that_other_programs_must_have_made():
    runs = [run("mpi", 1, speeds=(9000, 1000)), run("mpi", 2, speeds=(9000, 9000))]
    doubt = "2 ranks with mpi seem 9.00 times as fast as one. That's almost certainly wrong"
    assert doubt in " ".join(printed(summary(runs)).split())
    for record in runs:
        record["what"]["machine"] = "polaris"
    assert "certainly" not in printed(summary(runs)), "emulated time is the same whatever else runs"


def test_the_summary_does_without_a_baseline_and_marks_runs_of_one_epoch():
    lines = printed(summary([run("mpi", 2, speeds=(9000,))])).splitlines()
    (row,) = [line.split() for line in lines if line.startswith("mpi")]
    assert row[2:4] == ["9,000†", "–"]


def test_weak_scaling_compares_the_time_of_an_epoch_with_samples_that_grow():
    runs = [weak(n, speed) for n, speeds in {1: (90, 100, 110), 2: (150, 160, 200)}.items() for speed in speeds]
    stopped = weak(4, 300, a_rank=77) | {"stopped": True}
    points = weak_scaling(to_frame([stopped, *runs])).set_index("world_size")
    assert points["epoch_s"].tolist() == pytest.approx([1000 / 100, 2000 / 160])
    assert points.loc[2, ["epoch_s_min", "epoch_s_max"]].tolist() == pytest.approx([10, 2000 / 150])
    assert points["first_epoch_s"].tolist() == pytest.approx([20, 25])
    assert points.loc[2, "efficiency"] == pytest.approx(points.loc[1, "epoch_s"] / points.loc[2, "epoch_s"])
    assert points.loc[2, "speedup"] == pytest.approx(1.6)


def test_strong_and_weak_runs_are_not_mixed():
    with pytest.raises(RecordError, match="mix runs with train_samples = 1000 and 2000"):
        strong_scaling(to_frame([weak(1, 100), weak(2, 200)]))
    with pytest.raises(RecordError, match="mix runs with samples_per_rank = 1000.0 and 500.0"):
        weak_scaling(to_frame([weak(1, 100), weak(2, 200, a_rank=500)]))
    with pytest.raises(RecordError, match="runs with `train_samples`"):
        weak_scaling(to_frame([run("mpi", 1), run("mpi", 2)]))
    with pytest.raises(RecordError, match="no 1-rank run"):
        weak_scaling(to_frame([weak(2, 200)]))


class Team:
    """Stands in for ranks: a run's record says what it was asked for."""

    attached_only = False

    def __init__(self, n):
        self.n = n

    def train(self, options, timeout, show):
        return run(options, self.n)


@pytest.mark.parametrize("restart", [False, True])
def test_a_sweep_goes_round_the_options_in_each_repeat_and_with_restarts_round_the_ranks_too(capsys, restart):
    records = list(sweeping.sweep(Team, [1, 2], ["mpi", "ddp"], repeats=2, restart=restart))
    order = [(record["what"]["world_size"], record["what"]["backend"]) for record in records]
    assert order == [(n, backend) for n in ([1, 2, 1, 2] if restart else [1, 1, 2, 2]) for backend in ("mpi", "ddp")]
    assert "ddp, 2 ranks: 8,200 samples/s" in capsys.readouterr().out.splitlines()[-1]


def test_a_sweep_says_beside_a_result_that_other_programs_had_the_cores(capsys, monkeypatch):
    monkeypatch.setattr(sweeping, "Meter", lambda: SimpleNamespace(warning="others had {} cores".format))
    list(sweeping.sweep(Team, [1, 2], ["mpi"]))
    rows = capsys.readouterr().out.splitlines()
    assert [row.split(":")[0] for row in rows[::2]] == ["mpi, 1 rank", "mpi, 2 ranks"]
    assert rows[1::2] == ["  others had 1 cores", "  others had 2 cores"]


def test_a_run_is_expected_to_take_as_long_as_the_nearest_one_and_longer_if_emulated_ranks_share_cores(monkeypatch):
    monkeypatch.setattr(sweeping, "usable_cores", lambda: 2)
    seconds = {1: [2.0, 4.0], 4: [10.0]}
    of = {n: [sweeping.expected_s(seconds, n, emulated) for emulated in (False, True)] for n in (1, 2, 4, 16)}
    assert of == {1: [3.0, 3.0], 2: [3.0, 3.0], 4: [10.0, 10.0], 16: [10.0, 40.0]}


def test_a_sweep_can_choose_its_options_by_the_number_of_ranks():
    records = sweeping.sweep(Team, [1, 4], lambda n: [f"made for {n}"])
    assert [record["what"]["backend"] for record in records] == ["made for 1", "made for 4"]
    with pytest.raises(ValueError, match="repeats is 0"):
        next(sweeping.sweep(Team, [1], ["mpi"], repeats=0))
