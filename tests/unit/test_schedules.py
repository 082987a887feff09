"""Learning-rate schedules as functions of the step."""

import pytest

from workshop_lib.training.schedules import lr_at, scale_lr


@pytest.mark.parametrize(("scaling", "expected"), [("none", 0.1), ("sqrt", 0.2), ("linear", 0.4)])
def test_scaling(scaling, expected):
    assert scale_lr(0.1, scaling, 4) == pytest.approx(expected)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="lr_scaling 'cubic'"):
        scale_lr(0.1, "cubic", 4)
    with pytest.raises(ValueError, match="decay 'step'"):
        lr_at(0, 10, 0.1, decay="step")


@pytest.mark.parametrize("decay", ["none", "linear", "cosine"])
def test_warmup_is_a_line_to_the_peak(decay):
    rates = [lr_at(step, 20, 1.0, 5, decay) for step in range(6)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


def test_decays():
    assert lr_at(19, 20, 1.0) == 1.0
    assert [lr_at(s, 4, 1.0, decay="linear") for s in range(4)] == [1.0, 0.75, 0.5, 0.25]
    assert lr_at(2, 4, 1.0, decay="cosine") == pytest.approx(0.5)
    # Still falling, still above zero in the last step.
    assert 0 < lr_at(99, 100, 1.0, decay="cosine") < lr_at(98, 100, 1.0, decay="cosine")
