"""The figures of 07 show what they were given."""

import numpy as np
import pytest
from drawn import check_layout, lines
from test_recipes import told
from test_worker_curve import emulated

from workshop_lib.lessons.large_batch import figures
from workshop_lib.training.schedules import DECAYS


def test_every_decay_is_drawn():
    figure = figures.decays()
    assert all(set(DECAYS) == set(lines(axes)) for axes in figure.axes)
    check_layout(figure)


def test_each_seed_is_a_line():
    figure = figures.by_epoch([emulated(128, 0.9), emulated(128, 0.5, seed=2), emulated(16, 0.9)], 128)
    assert [line.get_ydata()[-1] for line in figure.axes[0].get_lines()[:2]] == [90, 50]
    check_layout(figure)


def test_the_clinic_has_a_panel_for_each_run_and_shows_a_treatment_beside_it():
    sick = told("A", (0.1, 0.1))
    sick["epochs"][1]["test_loss"] = None
    figure = figures.clinic({"healthy": told("healthy", (0.9, 0.95)), "A": sick}, {"A": told("A", (0.5, 0.93))})
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["healthy: 95 %", "A: 10 % → 93 %"]
    assert len(figure.axes[1].lines) == 2 * 2 + 1, "two losses of two runs, and the level of guessing"
    figure.axes[1].set_xlim(0, 632)
    assert figure.axes[0].get_xlim()[1] < 632, "a long cure does not squeeze the other panels"
    check_layout(figure)


def test_in_the_bowl_long_steps_leave_and_short_ones_arrive():
    figure = figures.bowl()
    ends = [abs(lines(axes)["the steps"][-1, 0]) for axes in figure.axes]
    assert ends[0] < ends[1] < 1 < ends[2]
    check_layout(figure)


def test_the_limit_is_drawn_for_runs_with_warm_up_where_there_is_curvature():
    rows = [(0, 0.1, 2.3, 0.05), (5, 0.2, 1.0, 3.0)]
    figure = figures.limits({"at once": rows, "after warm-up": rows}, momentum=0.5)
    limit, rate = figure.axes[1].get_lines()
    assert limit.get_ydata() == pytest.approx([np.nan, 1.0], nan_ok=True)
    assert rate.get_ydata() == pytest.approx([0.1, 0.2])
    check_layout(figure)
