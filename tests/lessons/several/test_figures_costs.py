"""Figures of communication, predictions and feeding: what is drawn, and that it says what it is."""

import numpy as np
import pandas as pd
import pytest
from drawn import bars, check_layout, curve, hollow, legend, lines, texts, words

from workshop_lib.lessons.feeding_the_ranks import figures as costs
from workshop_lib.lessons.forecasting import figures as forecasting_figures
from workshop_lib.lessons.forecasting.benchmark import row
from workshop_lib.lessons.mpi_basics import figures as mpi_basics_figures
from workshop_lib.notebook.prediction import predict

MB = 1_000_000
SECONDS = [4e-6, 1e-6, 2e-6, 3e-6, 8e-6]  # median 3 µs


def rows(ranks=2, ways=("MPI", "gloo", "ring")):
    return [row(way, ranks, n, [n * s for s in SECONDS]) for way in ways for n in (4, 1024, 2**20)]


def test_bandwidths_are_bytes_over_the_median():
    found = row("ring", 4, 3_000_000, SECONDS)
    assert (found["median_s"], found["min_s"], found["max_s"]) == (3e-6, 1e-6, 8e-6)
    assert found["algorithm_bytes_per_s"] == pytest.approx(1e12)
    assert found["bus_bytes_per_s"] == pytest.approx(1.5e12), "2 (4 - 1)/4 times the algorithm bandwidth"


def test_a_message_is_drawn_beside_the_model():
    figure = mpi_basics_figures.message_times({8: 2e-6, 1000: 3e-6, 1_000_000: 1e-3}, 2e-6, 1e-9)
    [axes] = figure.axes
    assert lines(axes)["measured"][:, 1] == pytest.approx([2, 3, 1000])
    assert lines(axes)["α + β · bytes"][:, 1] == pytest.approx([2.008, 3, 1002])
    check_layout(figure)


def test_allreduces_are_drawn_with_their_spread_as_time_and_as_bandwidth():
    figure = forecasting_figures.allreduce_times([row("ping-pong", 2, 4, SECONDS), *rows()], cores=2)
    assert legend(figure) == ["MPI", "gloo", "ring"]
    assert "An allreduce on 2 ranks median of 5 rounds" in words(figure)
    time, bandwidth = figure.axes
    sizes, microseconds = curve(time)
    assert sizes == pytest.approx([4, 1024, 2**20], rel=0.1), "beside the others, near its size"
    assert microseconds == pytest.approx([3 * n for n in (4, 1024, 2**20)])
    assert bars(time)[0] == pytest.approx([4 * 1, 4 * 8]), "from the fastest to the slowest round"
    assert curve(bandwidth)[1] == pytest.approx([1 / 3e3] * 3)
    assert bars(bandwidth)[0] == pytest.approx([1 / 8e3, 1 / 1e3])
    check_layout(forecasting_figures.allreduce_times([row("ring", 2, 4**k, SECONDS) for k in range(1, 14)], cores=2))


@pytest.mark.parametrize(("cores", "too_many"), [(2, True), (4, False)])
def test_more_ranks_than_cores_are_marked(cores, too_many):
    figure = forecasting_figures.allreduce_times(rows(ranks=4), cores=cores)
    assert all(hollow(axes) == too_many for axes in figure.axes)
    assert ("An allreduce on 4* ranks" in words(figure)) == too_many


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
    assert hollow(forecasting_figures.predicted_beside_measured(table, table[1:], cores=1).axes[0])
    figure = forecasting_figures.predicted_beside_measured(table, table[1:], cores=2)
    [axes] = figure.axes
    assert not hollow(axes)
    assert np.transpose(curve(axes, 0)) == pytest.approx(np.array([[1, 1.1], [4, 3]]))
    assert np.transpose(curve(axes, 1)) == pytest.approx(np.array([[4, 3]])) and bars(axes, 1)[0] == pytest.approx(
        [2, 5]
    )
    assert "medians of 5 rounds" in words(figure)
    check_layout(figure)


def feeding_rows(counts=True):
    everyone, own = [40 * MB] * 2, [21 * MB, 19 * MB]
    measured = [
        ("everyone reads all", True, [0.4, 0.2, 0.9], everyone, 41 * MB),
        ("everyone reads all", False, [0.04, 0.02, 0.03], everyone, 0),
        ("own part", True, [0.2, 0.1, 0.3], own, 40 * MB),
        ("own part", False, [0.01, 0.03, 0.02], own, 0),
    ]
    always = {"ranks": 2, "file_bytes": 40 * MB}
    return [
        always
        | {"way": way, "cold": cold, "seconds": seconds, "asked_bytes": asked if counts else None}
        | {"storage_bytes": [stored] * len(seconds) if counts else None}
        for way, cold, seconds, asked, stored in measured
    ]


def test_time_has_its_spread_and_bytes_their_count():
    figure = costs.feeding_ways(feeding_rows(), cores=2)
    time, size = figure.axes
    assert [curve(time, number)[0][0] for number in range(4)] == pytest.approx([400, 200, 30, 20])
    assert bars(time, across=True)[0] == pytest.approx([200, 900]), "from the fastest to the slowest round"
    assert sorted(bar.get_width() for bar in size.patches) == pytest.approx([21, 40, 40, 40, 41, 80])
    assert "a file of 40 MB; median of 3 rounds" in words(figure)
    assert hollow(costs.feeding_ways(feeding_rows(), cores=1).axes[0]) and not hollow(time)
    check_layout(figure)


def test_without_the_systems_counts_no_bytes_are_drawn_and_of_nothing_nothing():
    size = costs.feeding_ways(feeding_rows(counts=False), cores=2).axes[1]
    assert not size.patches
    with pytest.raises(ValueError, match="nothing to draw"):
        costs.feeding_ways([])


def test_a_guess_of_bytes_from_the_storage_is_compared_or_a_line_says_why_not(capsys):
    guess = predict("How many MB?", low=0, high=100, unit="MB")
    figure = costs.compare_storage(guess, feeding_rows(), "everyone reads all")
    assert "41 MB" in texts(figure.axes[0])
    assert costs.compare_storage(guess, feeding_rows(counts=False), "own part") is None
    in_memory = [row | {"storage_bytes": [0, 0, 0]} for row in feeding_rows()]
    assert costs.compare_storage(guess, in_memory, "own part") is None
    assert capsys.readouterr().out.splitlines() == [
        "This system doesn't count what comes from the storage.",
        "Nothing came from the storage: this file system lives in memory, or doesn't forget when asked.",
    ]


def test_a_training_is_drawn_by_its_median_run():
    runs = {"in turn": np.array([[0, 1, 1], [0, 3, 2], [0, 2, 1.5]]), "ahead": np.array([[1, 0, 1], [1, 0, 1.2]])}
    figure = costs.feeding_shares(runs, "An epoch")
    [axes] = figure.axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([0, 2, 1.5, 1, 0, 1])
    assert texts(axes) == ["3.50 s", "2.00 s"]
    assert bars(axes, 3, across=True)[0] == pytest.approx([2, 5]), "after the three parts of the first bar"
    check_layout(figure)
