"""Figures and table of feeding: what is drawn, and that it says what it is."""

import numpy as np
import pytest

from workshop_lib.notebook import feeding_plots

MB = 1_000_000


def row(way, cold, seconds, asked, stored, counts=True):
    return {
        "way": way, "cold": cold, "ranks": 2, "file_bytes": 40 * MB, "seconds": seconds, "bytes_read": asked,
        "asked_bytes": asked if counts else None, "bytes_sent": [0, 0],
        "storage_bytes": [stored if counts else None] * len(seconds),
    }  # fmt: skip


def rows(counts=True):
    return [
        row("everyone reads all", True, [0.4, 0.2, 0.9], [40 * MB] * 2, 41 * MB, counts),
        row("everyone reads all", False, [0.04, 0.02, 0.03], [40 * MB] * 2, 0, counts),
        row("own part", True, [0.2, 0.1, 0.3], [21 * MB, 19 * MB], 40 * MB, counts),
        row("own part", False, [0.01, 0.03, 0.02], [21 * MB, 19 * MB], 0, counts),
    ]


def legend(figure) -> list[str]:
    return [entry.get_text() for entry in figure.legends[0].get_texts() if entry.get_text().strip()]


def words(figure) -> str:
    return " ".join(text.get_text() for text in figure.texts).replace("\n", " ")


def test_the_table_has_medians_and_who_reads_what():
    table = feeding_plots.table(rows())
    assert list(table.index) == ["everyone reads all", "own part"]
    assert list(table.columns[:2]) == ["cold, ms", "warm, ms"]
    line = table.loc["own part"]
    assert (line["cold, ms"], line["warm, ms"]) == (200, 20)
    assert (line["rank 0 reads, MB"], line["other ranks read, MB"]) == (21, "19.0")
    assert line["from the storage, MB"] == "40.0"
    assert feeding_plots.table(rows(counts=False)).loc["own part", "from the storage, MB"] == "not told"


def test_time_has_its_spread_and_bytes_their_count():
    figure = feeding_plots.ways(rows(), cores=2)
    time, size = figure.axes
    assert (time.get_xlabel(), size.get_xlabel()) == ("time (ms)", "data (MB)")
    assert [label.get_text() for label in time.get_yticklabels()] == ["everyone reads all", "own part"]
    low, high = time.containers[0].lines[2][0].get_segments()[0][:, 0]
    assert (low, high) == pytest.approx((200, 900)), "bars from the fastest to the slowest round"
    points = [c for c in time.containers if c.lines[0] and c.lines[0].get_marker() in "os"]
    assert [p.lines[0].get_xdata()[0] for p in points] == pytest.approx([400, 200, 30, 20])
    assert sorted(bar.get_width() for bar in size.patches) == pytest.approx([21, 40, 40, 40, 41, 80])
    assert legend(figure) == ["cold", "warm", "the file, once", *feeding_plots.BYTES]
    assert "a file of 40 MB; median of 3 rounds" in words(figure)
    assert figure._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(("cores", "hollow"), [(1, True), (2, False)])
def test_more_ranks_than_cores_are_marked(cores, hollow):
    figure = feeding_plots.ways(rows(), cores=cores)
    faces = {c.lines[0].get_markerfacecolor() == "white" for c in figure.axes[0].containers if c.lines[0]}
    assert hollow in faces
    assert ("more ranks than cores" in words(figure)) == hollow


def test_without_the_systems_counts_the_programs_are_drawn():
    size = feeding_plots.ways(rows(counts=False), cores=2).axes[1]
    assert sorted(bar.get_width() for bar in size.patches) == pytest.approx([21, 40, 40, 80])


def test_nothing_measured_is_refused():
    with pytest.raises(ValueError, match="nothing to draw"):
        feeding_plots.ways([])


def test_a_training_is_drawn_by_its_median_run():
    runs = {"in turn": np.array([[0, 1, 1], [0, 3, 2], [0, 2, 1.5]]), "preload": np.array([[1, 0, 1], [1, 0, 1.2]])}
    figure = feeding_plots.fed(runs, "3 runs")
    axes = figure.axes[0]
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == pytest.approx([0, 2, 1.5, 1, 0, 1])
    ends = [c.lines[2][0].get_segments()[0][:, 0] for c in axes.containers if hasattr(c, "lines")]
    assert [tuple(end) for end in ends] == [pytest.approx((2, 5)), pytest.approx((2, 2.2))]
    assert axes.get_xlabel() == "time (s)"
    assert sorted(legend(figure)) == sorted(feeding_plots.SPENT)
    assert {text.get_text() for text in axes.texts} == {"3.50 s", "2.00 s"}
