"""The figures of 07e: who computes and who waits, and what old weights cost."""

import math

from drawn import check_layout, curve
from matplotlib.colors import to_hex

from workshop_lib.notebook import palette

from lessons.waiting_less import figures

LABELS = ["without ratios: breaks at staleness 2", "with clipped ratios: doesn't break"]


def test_the_figure_has_a_bar_for_each_gradient_and_shows_the_late_ones():
    computing = [[(0.05, 0.06), (0.08, 0.09)], [(0.06, 0.08)]]
    run = {"mode": "lag sync", "straggler": "fixed", "computing": computing, "ms per step": 15.0}
    figure = figures.timelines([run, run])
    first, second = figure.axes
    assert first.get_title(loc="left") == "lag sync, fixed straggler"
    bars = [bar.get_paths()[0].get_extents() for bar in first.collections]
    edges = [(round(bar.x0), round(bar.x1), round(bar.y0 + 0.35)) for bar in bars]
    assert edges == [(-30, -20, 1), (0, 10, 1), (-20, 0, 2)]
    colors = [to_hex(bar.get_facecolor()[0]) for bar in first.collections]
    assert colors == [palette.BLUE.lower(), palette.BLUE.lower(), palette.YELLOW.lower()]
    assert second.get_xlim() == (0, 120)
    check_layout(figure)


def test_training_breaks_at_the_first_staleness_that_costs_a_fifth_of_the_reward():
    rewards = {False: [1.0, 0.9, 0.79, 0.1], True: [1.0, 0.9, 0.85, 0.81]}
    runs = []
    for ratios, of_staleness in rewards.items():
        for staleness, reward in zip((0, 1, 2, 4), of_staleness, strict=True):
            for difference in (-0.05, 0.05):
                runs.append({"staleness": staleness, "ratios": ratios, "reward": reward + difference})
    assert figures.breaks_at(runs, ratios=False) == 2
    assert math.isnan(figures.breaks_at(runs, ratios=True))
    figure = figures.rewards(runs)
    [axes] = figure.axes
    assert curve(axes)[1].round(2).tolist() == rewards[False] and curve(axes, 1)[1].round(2).tolist() == rewards[True]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == LABELS
    assert "median of 2 seeds" in figure.texts[1].get_text()
    check_layout(figure)
