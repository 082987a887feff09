"""The pictures show what the ranks hold and whose it was, every step of a ring, the parts of a model, and the cores
of each rank."""

from types import SimpleNamespace

import matplotlib.colors
import numpy as np
import pytest
from drawn import check_layout, texts
from matplotlib.patches import Rectangle

from workshop_lib.lessons.compute_nodes import figures as machines
from workshop_lib.lessons.model_parallelism import figures as parallel
from workshop_lib.lessons.mpi_basics import figures as pictures
from workshop_lib.lessons.start_here import figures as start_here_figures
from workshop_lib.lessons.zero_and_fsdp import figures as zero_and_fsdp_figures
from workshop_lib.notebook.palette import TINTS


def fills(figure):
    """Colors of the filled patches, as hex, left to right."""
    patches = [p for p in figure.axes[0].patches if isinstance(p, Rectangle) and p.get_fill()]
    return [matplotlib.colors.to_hex(p.get_facecolor()).upper() for p in patches]


def test_every_value_is_written_once_where_it_is_held():
    figure = pictures.collective("gather", [0, 10, 20], [[0, 10, 20], None, None])
    shown = texts(figure)
    assert shown.count("10") == 2
    assert [shown.count(f"rank {rank}") for rank in range(3)] == [2, 2, 2]
    assert "gather" in shown
    assert fills(figure) == TINTS[:3] * 2
    check_layout(figure)


def test_the_variables_before_and_after_of_the_current_ranks_are_drawn(monkeypatch):
    held = {"before": [7, None], "after": [7, 8]}
    monkeypatch.setattr(pictures.ranks, "current", lambda: SimpleNamespace(pull=held.get))
    assert [text for text in texts(pictures.before_and_after("broadcast")) if text.isdigit()] == ["7", "7", "8"]


def test_a_moved_value_keeps_the_color_of_its_rank_and_only_the_root_gives_in_a_broadcast():
    figure = pictures.collective("alltoall", [[0, 1], [10, 11]], [[0, 10], [1, 11]])
    assert fills(figure) == [TINTS[rank] for rank in (0, 0, 1, 1, 0, 1, 0, 1)]
    assert fills(pictures.collective("bcast", [7, None], [7, 7])) == [TINTS[0]] * 3


def test_a_sum_has_stripes_of_all_ranks_and_a_wrong_one_has_not():
    before = [np.array([1, 2]), np.array([10, 20])]
    right = fills(pictures.collective("allreduce", before, [np.array([11, 22])] * 2))
    assert right[4:] == TINTS[:2] * 4
    wrong = fills(pictures.collective("allreduce", before, [np.array([12, 22])] * 2))
    assert wrong[4] == "#FFFFFF"


@pytest.mark.parametrize("p", [2, 3, 4, 5])
def test_each_panel_shows_a_step_and_the_last_one_all_sums_everywhere(p):
    figure = pictures.ring(p)
    panels = {panel.get_title(loc="left").split("\n")[-1]: panel for panel in figure.axes}
    assert [title for title in panels if title] == ["start", *(f"step {step}" for step in range(1, 2 * p - 1))]
    check_layout(figure)

    def complete(title):
        return sum(text.get_text() == "all" for text in panels[title].texts)

    assert complete("start") == 0
    assert complete(f"step {p - 1}") == p, "after the first phase, each rank has one complete chunk"
    assert complete(f"step {2 * p - 2}") == p * p


def test_each_way_to_split_shows_what_a_rank_holds_and_what_it_sends():
    figure = start_here_figures.splits()
    panels = figure.axes
    check_layout(figure)

    def held(panel):
        """The widths of what is in color: the batch, then weights and state of each layer, rank by rank."""
        return [round(p.get_width(), 2) for p in panel.patches if isinstance(p, Rectangle) and p.get_fill()]

    data, state, layers, tensors = map(held, panels)
    assert data == ([0.5] + [0.62, 0.3] * 4) * 2
    assert state == ([0.5] + [0.62, 0.15] * 4) * 2
    assert layers == [1.0, *[0.62, 0.3] * 2, *[0.0] * 4, 1.0, *[0.0] * 4, *[0.62, 0.3] * 2]
    assert tensors == ([1.0] + [0.31, 0.15] * 4) * 2


def test_a_share_stands_in_the_whole_where_its_rank_is():
    """In bytes per parameter, by panel and rank: where the parts of a bar begin and how high they are."""
    shares = [{"parameters": 40, "gradients": 20, "optimizer": 20}] * 2
    figure = zero_and_fsdp_figures.zero({"DDP": [dict.fromkeys(shares[0], 40)], "ZeRO-2": shares}, 10)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["DDP\n12 bytes", "ZeRO-2\n8 bytes"]
    bars = [[(bar.get_y(), bar.get_height()) for bar in axes.patches if bar.get_fill()] for axes in figure.axes]
    assert bars[0] == [(0, 4), (4, 4), (8, 4)]
    assert bars[1] == [(0, 4), (4, 2), (8, 2), (0, 4), (6, 2), (10, 2)]
    check_layout(figure)


def about(rank, host, cores, threads=1):
    return {"rank": rank, "host": host, "cores": cores, "threads": threads}


def filled(axes) -> set:
    """(row, column) of every filled square."""
    squares = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    return {(round(s.get_y() - 0.1), round(s.get_x())) for s in squares if s.get_facecolor()[3] > 0}


def test_squares_are_the_allowed_cores_of_each_rank_on_its_host():
    ranks = [about(0, "a", [0, 1]), about(1, "a", [2, 3], 2), about(2, "b", [0, 1, 4]), about(3, "b", [4])]
    figure = machines.binding(ranks, "Bound")
    first, second = figure.axes
    assert filled(first) == {(0, 0), (0, 1), (1, 2), (1, 3)}
    assert filled(second) == {(0, 0), (0, 1), (0, 2), (1, 2)}, "columns are the cores in use, in order"
    check_layout(figure)


@pytest.mark.parametrize(
    ("draw", "arguments", "complaint"),
    [
        (zero_and_fsdp_figures.zero, ({}, 1), "nothing to draw"),
        (zero_and_fsdp_figures.zero, ({"DDP": []}, 1), "nothing to draw"),
        (pictures.collective, ("x", [1, 2], [1]), "2 ranks before, but 1 after"),
        (pictures.ring, (1,), "use 2 to 5"),
        (pictures.ring, (6,), "use 2 to 5"),
        (parallel.mlp_in_parts, (5,), "an MLP on 5 ranks cannot be drawn readably"),
        (machines.binding, ([],), "there are 0 ranks"),
        (machines.binding, ([about(rank, "a", [0]) for rank in range(65)],), "there are 65 ranks"),
    ],
)
def test_what_cannot_be_read_is_refused(draw, arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        draw(*arguments)


def test_in_the_dragonfly_the_longest_way_takes_three_links_between_switches():
    figure = machines.dragonfly()
    [axes] = figure.axes
    way = [line for line in axes.lines if line.get_label() == "one of the longest paths"]
    ends = [(line.get_xydata()[0].tolist(), line.get_xydata()[-1].tolist()) for line in way]
    assert len(ends) == 3 and all(one[1] == other[0] for one, other in zip(ends, ends[1:], strict=False))
    check_layout(figure)


@pytest.mark.parametrize("ranks", [2, 4])
def test_both_layers_and_what_is_between_them_are_cut_among_all_ranks(ranks):
    figure = parallel.mlp_in_parts(ranks)
    check_layout(figure)
    shown = texts(figure)
    assert [shown.count(f"rank {rank}") for rank in range(ranks)] == [4] * ranks, "three cuts and a part of each sum"
