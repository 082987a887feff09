"""The figures of 07e: who computes and who waits."""

from drawn import check_layout
from matplotlib.colors import to_hex

from workshop_lib.notebook import palette

from lessons.waiting_less import figures


def test_the_figure_has_a_bar_for_each_gradient_and_shows_the_late_ones():
    computing = [[(0.05, 0.06), (0.08, 0.09)], [(0.06, 0.08)]]
    run = {"mode": "lag sync", "straggler": "fixed", "computing": computing, "ms per step": 15.0}
    figure = figures.timelines([run, run])
    first, second = figure.axes
    assert first.get_title(loc="left") == "lag sync; late: fixed"
    bars = [bar.get_paths()[0].get_extents() for bar in first.collections]
    edges = [(round(bar.x0), round(bar.x1), round(bar.y0 + 0.35)) for bar in bars]
    assert edges == [(-30, -20, 1), (0, 10, 1), (-20, 0, 2)]
    colors = [to_hex(bar.get_facecolor()[0]) for bar in first.collections]
    assert colors == [palette.BLUE.lower(), palette.BLUE.lower(), palette.YELLOW.lower()]
    assert second.get_xlim() == (0, 120)
    check_layout(figure)
