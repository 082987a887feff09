"""The picture of where a step's time goes shows every rank, and what it was given."""

import pytest
from matplotlib.colors import to_hex

from workshop_lib.notebook import bars

EVEN = [{"computing": 6.0, "waiting": 1.0, "Allreduce": 0.5}, {"computing": 6.5, "waiting": 0.5, "Allreduce": 0.5}]
UNEVEN = [{"computing": 6.0, "waiting": 9.0, "Allreduce": 0.5}, {"computing": 15.0, "waiting": 0.0, "Allreduce": 0.5}]


def test_bars_are_as_long_as_the_times_and_panels_share_one_axis():
    upper, lower = bars.step_times({"even": EVEN, "uneven": UNEVEN}).axes
    for axes, of_ranks in ((upper, EVEN), (lower, UNEVEN)):
        drawn = [(bar.get_x(), bar.get_width(), to_hex(bar.get_facecolor()).upper()) for bar in axes.patches]
        wanted = []
        for times in of_ranks:
            left = 0.0
            for kind, (colour, _) in bars.LOOKS.items():
                wanted.append((left, times[kind], colour))
                left += times[kind]
        assert drawn == wanted
        assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1"]
        assert axes.get_ylim()[0] > axes.get_ylim()[1], "rank 0 is at the top"
    assert upper.get_xlim() == lower.get_xlim()
    assert [text.get_text() for text in lower.texts] == ["6.0", "9.0", "15.0"], "no number where there is no room"


@pytest.mark.parametrize("panels", [{}, {"nobody": []}])
def test_nothing_to_draw_is_said(panels):
    with pytest.raises(ValueError, match="at least one"):
        bars.step_times(panels)
