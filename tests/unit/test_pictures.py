"""The picture of a collective shows what the ranks hold, and whose it was."""

import matplotlib.colors
import numpy as np
import pytest
from matplotlib.patches import Rectangle

from workshop_lib.notebook import pictures


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def fills(figure):
    """Colours of the filled patches, as hex, left to right."""
    patches = [p for p in figure.axes[0].patches if isinstance(p, Rectangle) and p.get_fill()]
    return [matplotlib.colors.to_hex(p.get_facecolor()).upper() for p in patches]


def test_every_value_is_written_once_where_it_is_held():
    figure = pictures.collective("gather", [0, 10, 20], [[0, 10, 20], None, None])
    shown = texts(figure)
    assert shown.count("10") == 2
    assert [shown.count(f"rank {rank}") for rank in range(3)] == [2, 2, 2]
    assert "gather" in shown
    assert fills(figure) == pictures.TINTS[:3] * 2


def test_a_moved_value_keeps_the_colour_of_its_rank():
    before = [[0, 1], [10, 11]]
    assert fills(pictures.collective("alltoall", before, [[0, 10], [1, 11]])) == [
        pictures.TINTS[rank] for rank in (0, 0, 1, 1, 0, 1, 0, 1)
    ]


def test_a_sum_has_stripes_of_all_ranks_and_a_wrong_one_has_not():
    before = [np.array([1, 2]), np.array([10, 20])]
    right = fills(pictures.collective("allreduce", before, [np.array([11, 22])] * 2))
    assert right[4:] == pictures.TINTS[:2] * 4
    wrong = fills(pictures.collective("allreduce", before, [np.array([12, 22])] * 2))
    assert wrong[4] == "#FFFFFF"


def test_only_the_root_gives_in_a_broadcast():
    figure = pictures.collective("bcast", [7, None], [7, 7])
    assert fills(figure) == [pictures.TINTS[0]] * 3


def test_sides_of_different_length_are_refused():
    with pytest.raises(ValueError, match="2 ranks before, but 1 after"):
        pictures.collective("x", [1, 2], [1])
