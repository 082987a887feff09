"""Figures of communication, predictions and feeding: what is drawn, and that it says what it is."""

import numpy as np
import pandas as pd
import pytest
from drawn import legend, words

from workshop_lib.lessons.feeding_the_ranks import figures as costs
from workshop_lib.lessons.forecasting import figures as forecasting_figures
from workshop_lib.lessons.forecasting.benchmark import row
from workshop_lib.lessons.mpi_basics import figures as mpi_basics_figures
from workshop_lib.notebook.figures import RecordFigure

MB = 1_000_000
SECONDS = [4e-6, 1e-6, 2e-6, 3e-6, 8e-6]  # median 3 µs


def rows(ranks=2, ways=("MPI", "gloo", "ring")):
    return [row(way, ranks, n, [n * s for s in SECONDS]) for way in ways for n in (4, 1024, 2**20)]


def spread(bars, along=1) -> tuple[float, float]:
    """The ends of the first error bar."""
    low, high = bars.lines[2][0].get_segments()[0][:, along]
    return low, high


def test_bandwidths_are_bytes_over_the_median():
    found = row("ring", 4, 3_000_000, SECONDS)
    assert (found["median_s"], found["min_s"], found["max_s"]) == (3e-6, 1e-6, 8e-6)
    assert found["algorithm_bytes_per_s"] == pytest.approx(1e12)
    assert found["bus_bytes_per_s"] == pytest.approx(1.5e12), "2 (4 - 1)/4 times the algorithm bandwidth"


def test_the_sizes_under_an_allreduce_stand_apart():
    figure = forecasting_figures.allreduce_times([row("ring", 2, 4**k, SECONDS) for k in range(1, 14)], cores=2)
    figure.draw_without_rendering()
    for axes in figure.axes:
        low, high = axes.get_xlim()
        shown = [label for label in axes.get_xticklabels() if low <= label.get_position()[0] <= high]
        boxes = [label.get_window_extent() for label in shown]
        assert len(boxes) >= 4
        assert all(after.x0 - before.x1 > 10 for before, after in zip(boxes, boxes[1:], strict=False))


def test_a_message_is_drawn_with_its_spread_beside_the_model():
    nbytes = [8, 1000, 1_000_000]
    figure = mpi_basics_figures.message_times(
        nbytes, np.array([[2e-6, 3e-6, 1e-3], [1e-6] * 3, [4e-6] * 2 + [2e-3]]), 2e-6, 1e-9
    )
    [axes] = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("message (bytes)", "time (µs)")
    assert spread(axes.containers[0]) == pytest.approx((1, 4))
    model = next(line for line in axes.lines if line.get_linestyle() == "--")
    assert list(model.get_ydata()) == pytest.approx([2.008, 3, 1002])
    assert {"measured", "α + β · bytes"} <= set(legend(figure))


def test_allreduces_have_units_spread_and_a_look_of_their_own():
    figure = forecasting_figures.allreduce_times([row("ping-pong", 2, 4, SECONDS), *rows()], cores=2)
    time, bandwidth = figure.axes
    assert (time.get_xlabel(), time.get_ylabel()) == ("message (bytes)", "time (µs)")
    assert bandwidth.get_ylabel() == "bus bandwidth (GB/s)"
    assert {axes.get_xscale() for axes in figure.axes} == {axes.get_yscale() for axes in figure.axes} == {"log"}
    assert legend(figure) == ["MPI", "gloo", "ring"]
    assert len({bars.lines[0].get_marker() for bars in time.containers}) == 3
    assert len({bars.lines[0].get_color() for bars in time.containers}) == 3
    assert "median of 5 rounds" in words(figure)
    points = time.containers[0].lines[0].get_xydata()
    assert points[:, 1] == pytest.approx([3 * n for n in (4, 1024, 2**20)])
    assert points[:, 0] == pytest.approx([4, 1024, 2**20], rel=0.1), "beside the others, near its size"
    assert spread(time.containers[0]) == pytest.approx((4 * 1, 4 * 8)), "from the fastest to the slowest round"
    assert bandwidth.containers[0].lines[0].get_ydata() == pytest.approx([1 / 3e3] * 3)
    assert spread(bandwidth.containers[0]) == pytest.approx((1 / 8e3, 1 / 1e3))


@pytest.mark.parametrize(("cores", "hollow"), [(2, True), (4, False)])
def test_more_ranks_than_cores_are_marked(cores, hollow):
    figure = forecasting_figures.allreduce_times(rows(ranks=4), cores=cores)
    for axes in figure.axes:
        for bars in axes.containers:
            assert (bars.lines[0].get_markerfacecolor() == "white") == hollow
    assert any(entry.startswith("hollow") for entry in legend(figure)) == hollow
    assert figure.texts[0].get_text() == f"An allreduce on 4{'*' * hollow} ranks"


def test_several_numbers_of_ranks_in_one_figure_are_refused():
    with pytest.raises(ValueError, match="rows are of 2 and 4 ranks"):
        forecasting_figures.allreduce_times(rows(2) + rows(4))
    with pytest.raises(ValueError, match="nothing to draw"):
        forecasting_figures.allreduce_times([row("ping-pong", 2, 4, SECONDS)])


def test_sizes_are_written_as_powers_of_two():
    assert [forecasting_figures._size(n, None) for n in (4, 1024, 2**18, 2**26)] == ["4", "1 Ki", "256 Ki", "64 Mi"]


def test_predicted_stands_beside_measured_with_its_spread():
    columns = ["ranks", "repeats", "predicted_s", "measured_s", "measured_min_s", "measured_max_s"]
    table = pd.DataFrame([[2, 5, 1e-3, 1.1e-3, 0.9e-3, 2e-3], [2, 5, 4e-3, 3e-3, 2e-3, 5e-3]], columns=columns)
    hollow = forecasting_figures.predicted_beside_measured(table, table[1:], cores=1).axes[0].containers
    assert all(bars.lines[0].get_markerfacecolor() == "white" for bars in hollow)
    figure = forecasting_figures.predicted_beside_measured(table, table[1:], cores=2)
    axes = figure.axes[0]
    assert "predicted" in axes.get_xlabel() and "(ms)" in axes.get_xlabel()
    assert "measured" in axes.get_ylabel() and "(ms)" in axes.get_ylabel()
    used, held_out = axes.containers
    assert used.lines[0].get_xydata() == pytest.approx(np.array([[1, 1.1], [4, 3]]))
    assert held_out.lines[0].get_xydata() == pytest.approx(np.array([[4, 3]]))
    assert spread(held_out) == pytest.approx((2, 5))
    assert legend(figure) == ["used in the fit", "held out", "the same; shaded: within 10%"]
    assert "medians of 5 rounds" in figure.texts[1].get_text()
    assert RecordFigure._repr_png_(figure).startswith(b"\x89PNG")


def feeding_rows(counts=True):
    everyone, own = [40 * MB] * 2, [21 * MB, 19 * MB]
    measured = [
        ("everyone reads all", True, [0.4, 0.2, 0.9], everyone, 41 * MB),
        ("everyone reads all", False, [0.04, 0.02, 0.03], everyone, 0),
        ("own part", True, [0.2, 0.1, 0.3], own, 40 * MB),
        ("own part", False, [0.01, 0.03, 0.02], own, 0),
    ]
    always = {"ranks": 2, "file_bytes": 40 * MB, "bytes_sent": [0, 0]}
    return [
        always
        | {"way": way, "cold": cold, "seconds": seconds, "bytes_read": asked, "asked_bytes": asked if counts else None}
        | {"storage_bytes": [stored if counts else None] * len(seconds)}
        for way, cold, seconds, asked, stored in measured
    ]


def test_the_table_has_medians_and_who_reads_what():
    table = costs.feeding_table(feeding_rows())
    assert list(table.index) == ["everyone reads all", "own part"]
    assert list(table.columns[:2]) == ["cold, ms", "warm, ms"]
    line = table.loc["own part"]
    assert (line["cold, ms"], line["warm, ms"]) == (200, 20)
    assert (line["rank 0 reads, MB"], line["other ranks read, MB"]) == (21, "19.0")
    assert line["from the storage, MB"] == "40.0"
    assert costs.feeding_table(feeding_rows(counts=False)).loc["own part", "from the storage, MB"] == "not known"


def test_time_has_its_spread_and_bytes_their_count():
    figure = costs.feeding_ways(feeding_rows(), cores=2)
    time, size = figure.axes
    assert (time.get_xlabel(), size.get_xlabel()) == ("time (ms)", "data (MB)")
    assert [label.get_text() for label in time.get_yticklabels()] == ["everyone reads all", "own part"]
    assert spread(time.containers[0], along=0) == pytest.approx((200, 900)), "from the fastest to the slowest round"
    points = [c for c in time.containers if c.lines[0] and c.lines[0].get_marker() in "os"]
    assert [p.lines[0].get_xdata()[0] for p in points] == pytest.approx([400, 200, 30, 20])
    assert sorted(bar.get_width() for bar in size.patches) == pytest.approx([21, 40, 40, 40, 41, 80])
    assert legend(figure) == ["cold", "warm", "the file, once", *costs.BYTES]
    assert "a file of 40 MB; median of 3 rounds" in words(figure)
    assert figure._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(("cores", "hollow"), [(1, True), (2, False)])
def test_feeding_more_ranks_than_cores_is_marked(cores, hollow):
    figure = costs.feeding_ways(feeding_rows(), cores=cores)
    faces = {c.lines[0].get_markerfacecolor() == "white" for c in figure.axes[0].containers if c.lines[0]}
    assert hollow in faces
    assert ("more ranks than cores" in words(figure)) == hollow


def test_without_the_systems_counts_the_programs_are_drawn_and_of_nothing_nothing():
    size = costs.feeding_ways(feeding_rows(counts=False), cores=2).axes[1]
    assert sorted(bar.get_width() for bar in size.patches) == pytest.approx([21, 40, 40, 80])
    with pytest.raises(ValueError, match="nothing to draw"):
        costs.feeding_ways([])


def test_a_training_is_drawn_by_its_median_run():
    runs = {"in turn": np.array([[0, 1, 1], [0, 3, 2], [0, 2, 1.5]]), "preload": np.array([[1, 0, 1], [1, 0, 1.2]])}
    figure = costs.feeding_shares(runs, "3 runs")
    axes = figure.axes[0]
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == pytest.approx([0, 2, 1.5, 1, 0, 1])
    ends = [spread(bars, along=0) for bars in axes.containers if hasattr(bars, "lines")]
    assert ends == [pytest.approx((2, 5)), pytest.approx((2, 2.2))]
    assert axes.get_xlabel() == "time (s)"
    assert sorted(legend(figure)) == sorted(costs.SPENT)
    assert {text.get_text() for text in axes.texts} == {"3.50 s", "2.00 s"}
