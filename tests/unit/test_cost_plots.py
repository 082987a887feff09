"""Figures of communication and of predictions: what is drawn, and that it says what it is."""

import numpy as np
import pandas as pd
import pytest

from workshop_lib.comm.benchmark import row
from workshop_lib.notebook import cost_plots, figures

SECONDS = [4e-6, 1e-6, 2e-6, 3e-6, 8e-6]  # median 3 µs


def rows(ranks=2, ways=("MPI", "gloo", "ring")):
    return [row(way, ranks, n, [n * s for s in SECONDS]) for way in ways for n in (4, 1024, 2**20)]


def legend(figure) -> list[str]:
    return [entry.get_text() for entry in figure.legends[0].get_texts() if entry.get_text().strip()]


def test_bandwidths_are_bytes_over_the_median():
    found = row("ring", 4, 3_000_000, SECONDS)
    assert (found["median_s"], found["min_s"], found["max_s"]) == (3e-6, 1e-6, 8e-6)
    assert found["algorithm_bytes_per_s"] == pytest.approx(1e12)
    assert found["bus_bytes_per_s"] == pytest.approx(1.5e12), "2 (4 - 1)/4 times the algorithm bandwidth"


def test_allreduces_have_units_spread_and_a_look_of_their_own():
    figure = cost_plots.allreduce_times([row("ping-pong", 2, 4, SECONDS), *rows()], cores=2)
    time, bandwidth = figure.axes
    assert (time.get_xlabel(), time.get_ylabel()) == ("message (bytes)", "time (µs)")
    assert bandwidth.get_ylabel() == "bus bandwidth (GB/s)"
    assert {axes.get_xscale() for axes in figure.axes} == {axes.get_yscale() for axes in figure.axes} == {"log"}
    assert legend(figure) == ["MPI", "gloo", "ring"]
    assert len({bars.lines[0].get_marker() for bars in time.containers}) == 3
    assert len({bars.lines[0].get_color() for bars in time.containers}) == 3
    assert "median of 5 rounds" in " ".join(text.get_text() for text in figure.texts)
    points = time.containers[0].lines[0].get_xydata()
    assert points[:, 1] == pytest.approx([3 * n for n in (4, 1024, 2**20)])
    assert points[:, 0] == pytest.approx([4, 1024, 2**20], rel=0.1), "beside the others, near its size"
    low, high = time.containers[0].lines[2][0].get_segments()[0][:, 1]
    assert (low, high) == pytest.approx((4 * 1, 4 * 8)), "bars from the fastest to the slowest round"
    assert bandwidth.containers[0].lines[0].get_ydata() == pytest.approx([1 / 3e3] * 3)
    low, high = bandwidth.containers[0].lines[2][0].get_segments()[0][:, 1]
    assert (low, high) == pytest.approx((1 / 8e3, 1 / 1e3))


@pytest.mark.parametrize(("cores", "hollow"), [(2, True), (4, False)])
def test_more_ranks_than_cores_are_marked(cores, hollow):
    figure = cost_plots.allreduce_times(rows(ranks=4), cores=cores)
    for axes in figure.axes:
        for bars in axes.containers:
            assert (bars.lines[0].get_markerfacecolor() == "white") == hollow
    assert any(entry.startswith("hollow") for entry in legend(figure)) == hollow
    assert figure.texts[0].get_text() == f"An allreduce on 4{'*' * hollow} ranks"


def test_several_numbers_of_ranks_in_one_figure_are_refused():
    with pytest.raises(ValueError, match="rows are of 2 and 4 ranks"):
        cost_plots.allreduce_times(rows(2) + rows(4))
    with pytest.raises(ValueError, match="nothing to draw"):
        cost_plots.allreduce_times([row("ping-pong", 2, 4, SECONDS)])


@pytest.mark.parametrize(("nbytes", "text"), [(4, "4"), (1024, "1 Ki"), (2**18, "256 Ki"), (2**26, "64 Mi")])
def test_sizes_are_written_as_powers_of_two(nbytes, text):
    assert cost_plots._size(nbytes, None) == text


def test_predicted_stands_beside_measured_with_its_spread():
    table = pd.DataFrame(
        {
            "ranks": [2, 2], "repeats": [5, 5], "predicted_s": [1e-3, 4e-3], "measured_s": [1.1e-3, 3e-3],
            "measured_min_s": [0.9e-3, 2e-3], "measured_max_s": [2e-3, 5e-3],
        }
    )  # fmt: skip
    hollow = cost_plots.predicted_beside_measured(table, table[1:], cores=1).axes[0].containers
    assert all(bars.lines[0].get_markerfacecolor() == "white" for bars in hollow)
    figure = cost_plots.predicted_beside_measured(table, table[1:], cores=2)
    axes = figure.axes[0]
    assert "predicted" in axes.get_xlabel() and "(ms)" in axes.get_xlabel()
    assert "measured" in axes.get_ylabel() and "(ms)" in axes.get_ylabel()
    used, held_out = axes.containers
    assert used.lines[0].get_xydata() == pytest.approx(np.array([[1, 1.1], [4, 3]]))
    assert held_out.lines[0].get_xydata() == pytest.approx(np.array([[4, 3]]))
    assert held_out.lines[2][0].get_segments()[0][:, 1] == pytest.approx([2, 5])
    assert legend(figure) == ["used in the fit", "held out", "the same; shaded: within 10%"]
    assert "medians of 5 rounds" in figure.texts[1].get_text()
    assert figures.RecordFigure._repr_png_(figure).startswith(b"\x89PNG")
