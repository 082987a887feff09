"""The figures of 07b and 07c show what they were given."""

import numpy as np
import pytest
from drawn import words

from workshop_lib.lessons.gradient_noise import critical_batch
from workshop_lib.lessons.gradient_noise import figures as learning
from workshop_lib.lessons.less_communication import figures as less_communication_figures
from workshop_lib.results.records import RecordError


def lines(axes):
    return [line for line in axes.get_lines() if len(line.get_xdata()) > 2]


def test_arrows_have_their_length_and_their_part_along_the_true_gradient():
    figure = learning.arrows(1.5, {1: [(3.0, 5.0), (-3.0, 5.0)], 64: [(2.0, 2.0)]}, "caption")
    one, many = figure.axes
    tips = [arrow.xy for arrow in one.texts]
    assert tips[:2] == [pytest.approx((3, 4)), pytest.approx((-3, -4))], "they take turns above and below"
    assert [arrow.xy for arrow in many.texts] == [pytest.approx((2, 0)), pytest.approx((1.5, 0))]
    assert tips[2] == pytest.approx((1.5, 0)), "the true one"
    assert one.get_xlim() == many.get_xlim()
    figure._repr_png_()


def test_the_noise_scale_is_drawn_with_its_errors_and_what_was_published():
    steps, scales, errors = [10, 20, 30], [40.0, np.nan, 400.0], [10.0, np.nan, 300.0]
    axes = learning.noise(steps, scales, errors, "caption").axes[0]
    (line,) = lines(axes)
    assert line.get_xdata() == pytest.approx(steps)
    assert line.get_ydata() == pytest.approx(scales, nan_ok=True)
    levels = [line.get_ydata()[0] for line in axes.get_lines() if len(line.get_xdata()) == 2]
    assert levels == [50, 900]
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert {20.0, 60.0} <= set(heights), "two standard errors, below and above"
    axes.figure._repr_png_()


def test_measured_points_lie_on_their_fit_in_both_panels():
    batches = [16, 64, 256, 1024]
    steps = [100 + 20_000 / batch for batch in batches]
    fit = critical_batch.fit(batches, steps)
    figure = learning.steps_to_target({"here": (batches, steps)}, {"here": fit}, "caption")
    left, right = figure.axes
    points, curve = lines(left)
    assert points.get_xdata() == pytest.approx(batches)
    assert np.interp(64, curve.get_xdata(), curve.get_ydata()) == pytest.approx(100 + 20_000 / 64, rel=1e-3)
    points, curve = lines(right)
    assert points.get_ydata() == pytest.approx(np.multiply(steps, batches))
    assert (curve.get_xdata() / 100 - 1) * (curve.get_ydata() / 20_000 - 1) == pytest.approx(np.ones(200))
    figure._repr_png_()


def test_points_without_a_fit_are_still_drawn():
    figure = learning.steps_to_target({"here": ([8, 64, 512], [90, 20, 20])}, {}, "caption")
    assert [len(lines(axes)) for axes in figure.axes] == [1, 1]


def test_staleness_is_in_shares_on_one_axis():
    figure = less_communication_figures.staleness({"one": {0: 4}, "other": {0: 1, 2: 3}}, "caption")
    one, other = figure.axes
    assert [bar.get_height() for bar in one.patches] == [1]
    assert [(bar.get_x() + 0.4, bar.get_height()) for bar in other.patches] == [(0, 0.25), (2, 0.75)]
    assert one.get_xlim() == other.get_xlim()
    figure._repr_png_()


def reached(batch, steps, target=0.97):
    what = {"batch": batch, "lr": 0.1, "seed": 1, "target": target, "lrs": [0.1], "data_dir": None}
    return {"kind": "steps_to_target", "what": what, "steps": steps}


def test_steps_to_target_are_drawn_from_records_with_their_fit_if_there_is_one():
    by_the_law = [reached(batch, 100 + 20_000 / batch) for batch in (16, 64, 256, 1024)]
    figure = learning.target_curve([{"kind": "bench"}, *by_the_law])
    assert "critical batch 200 (95 %" in words(figure)
    assert len(lines(figure.axes[0])) == 2, "points and curve"
    rising = learning.target_curve([reached(batch, batch) for batch in (16, 64, 256, 1024)])
    assert len(lines(rising.axes[0])) == 1, "no curve"
    with pytest.raises(RecordError, match="target = 0.9 and 0.97"):
        learning.target_curve([*by_the_law, reached(16, 50, target=0.9)])
    with pytest.raises(RecordError, match="no batch size got to 97% test accuracy"):
        learning.target_curve([reached(16, None)])
