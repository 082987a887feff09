"""The figures of 07b show what they were given."""

import numpy as np
import pytest
from drawn import check_layout, lines, words

from workshop_lib.lessons.gradient_noise import critical_batch
from workshop_lib.lessons.gradient_noise import figures as learning
from workshop_lib.results.records import RecordError


def test_arrows_have_their_length_and_their_part_along_the_true_gradient():
    figure = learning.arrows(1.5, {1: [(3.0, 5.0), (-3.0, 5.0)], 64: [(2.0, 2.0)]}, "caption")
    (first, true), (second, _) = (axes.collections for axes in figure.axes)
    assert (list(first.U), list(first.V)) == ([3, -3], [4, 4])
    assert (list(second.U), list(second.V)) == ([2], [0])
    assert (list(true.U), list(true.V)) == ([1.5], [0])
    assert all(axes.get_aspect() == 1 for axes in figure.axes), "an arrow is drawn at its true angle"
    check_layout(figure)


def test_the_noise_scale_is_drawn_with_its_errors_and_what_was_published():
    steps, scales, errors = [10, 20, 30], [40.0, np.nan, 400.0], [10.0, np.nan, 300.0]
    figure = learning.noise(steps, scales, errors, "caption")
    [axes] = figure.axes
    assert lines(axes)["measured here"][:, 1] == pytest.approx(scales, nan_ok=True)
    assert {"published, at the start: 50", "published, mean over training: 900"} <= set(lines(axes))
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert {20.0, 60.0} <= set(heights), "two standard errors, below and above"
    check_layout(figure)


def curves(axes):
    """The fitted curves, which have 200 points."""
    return [line.get_xydata().T for line in axes.lines if len(line.get_xdata()) == 200]


def test_measured_points_lie_on_their_fit_in_both_panels():
    batches = [16, 64, 256, 1024]
    steps = [100 + 20_000 / batch for batch in batches]
    fit = critical_batch.fit(batches, steps)
    figure = learning.steps_to_target({"stopped": ([], []), "here": (batches, steps)}, {"here": fit}, "caption")
    left, right = figure.axes
    assert lines(left)["here"].tolist() == np.transpose([batches, steps]).tolist()
    [(x, y)] = curves(left)
    assert np.interp(64, x, y) == pytest.approx(100 + 20_000 / 64, rel=1e-3)
    assert right.lines[0].get_ydata() == pytest.approx(np.multiply(steps, batches))
    [(x, y)] = curves(right)
    assert (x / 100 - 1) * (y / 20_000 - 1) == pytest.approx(np.ones(200))
    check_layout(figure)


def test_the_number_line_has_a_row_for_each_batch_size_with_its_numbers():
    figure = learning.number_line({"critical batch, here": 5.4})
    [axes] = figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["critical batch, here", *learning.PUBLISHED_BATCHES]
    assert [line.get_xdata().tolist() for line in axes.lines[:2]] == [[5.4, 5.4], [50, 900]]
    assert [text.get_text() for text in axes.texts][:2] == ["5", "50 to 900"]
    assert axes.get_xlim()[0] < 5.4, "it is on the axis"
    check_layout(figure)


def reached(batch, steps, target=0.97):
    what = {"batch": batch, "lr": 0.1, "seed": 1, "target": target, "lrs": [0.1], "data_dir": None}
    return {"kind": "steps_to_target", "what": what, "steps": steps}


def test_steps_to_target_are_drawn_from_records_with_their_fit_if_there_is_one():
    by_the_law = [reached(batch, 100 + 20_000 / batch) for batch in (16, 64, 256, 1024)]
    figure = learning.target_curve([{"kind": "bench"}, *by_the_law])
    assert "critical batch 200 (95 %" in words(figure)
    assert len(curves(figure.axes[0])) == 1
    rising = learning.target_curve([reached(batch, batch) for batch in (16, 64, 256, 1024)])
    assert not curves(rising.axes[0]) and len(lines(rising.axes[0])["to 97% test accuracy"]) == 4
    with pytest.raises(RecordError, match="target = 0.9 and 0.97"):
        learning.target_curve([*by_the_law, reached(16, 50, target=0.9)])
    with pytest.raises(RecordError, match="no batch size got to 97% test accuracy"):
        learning.target_curve([reached(16, None)])
