"""The pictures of models cut among ranks: which rank has which part, and what each expert was sent."""

import pytest
from drawn import texts
from matplotlib.patches import Rectangle

from workshop_lib.errors import InputError
from workshop_lib.notebook.figures import parallel


@pytest.mark.parametrize("ranks", [2, 4])
def test_both_layers_and_what_is_between_them_are_cut_among_all_ranks(ranks):
    shown = texts(parallel.mlp_in_parts(ranks))
    assert [shown.count(f"rank {rank}") for rank in range(ranks)] == [4] * ranks, "three cuts and a part of each sum"


def test_too_many_ranks_are_refused():
    with pytest.raises(InputError, match="an MLP on 5 ranks cannot be drawn readably"):
        parallel.mlp_in_parts(5)


def test_a_bar_for_each_expert_and_how_busy_the_busiest_rank_is():
    figure = parallel.expert_load({"uneven": [30, 10, 10, 10], "even": [15, 15, 15, 15]}, ranks=2)
    heights = [[bar.get_height() for bar in axes.patches if isinstance(bar, Rectangle)] for axes in figure.axes]
    assert heights == [[30, 10, 10, 10], [15, 15, 15, 15]]
    assert [axes.get_title().split()[-4] for axes in figure.axes] == ["1.33", "1.00"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["rank 0", "rank 1"]
