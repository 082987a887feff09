"""The map of bindings has a panel a host, a row a rank, and fills exactly the cores that a rank may use."""

import pytest
from matplotlib.patches import Rectangle

from workshop_lib.notebook import binding_map


def about(rank, host, cores, threads=1):
    return {"rank": rank, "host": host, "cores": cores, "threads": threads}


def filled(axes) -> set:
    """(row, column) of every filled square."""
    squares = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    return {(round(s.get_y() - 0.1), round(s.get_x())) for s in squares if s.get_facecolor()[3] > 0}


def test_squares_are_the_allowed_cores_of_each_rank_on_its_host():
    ranks = [about(0, "a", [0, 1]), about(1, "a", [2, 3], 2), about(2, "b", [0, 1, 4]), about(3, "b", [4])]
    first, second = binding_map.draw(ranks, "Bound").axes
    assert filled(first) == {(0, 0), (0, 1), (1, 2), (1, 3)}
    assert filled(second) == {(0, 0), (0, 1), (0, 2), (1, 2)}, "columns are the cores in use, in order"
    assert [label.get_text() for label in first.get_yticklabels()] == ["rank 0, 1 thread", "rank 1, 2 threads"]
    assert second.get_title(loc="left") == "b: 3 cores"


@pytest.mark.parametrize("ranks", [[], [about(rank, "a", [0]) for rank in range(65)]])
def test_too_few_or_too_many_ranks_are_refused(ranks):
    with pytest.raises(ValueError, match=f"there are {len(ranks)} ranks"):
        binding_map.draw(ranks)
