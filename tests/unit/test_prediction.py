"""A guess is taken once, drawn beside the result, and never waited for."""

import pytest

from workshop_lib.notebook import prediction
from workshop_lib.notebook.prediction import predict
from workshop_lib.notebook.widgets import has_widgets


def texts(figure):
    axes = figure.axes[0]
    return [text.get_text() for text in [*figure.texts, *axes.texts, *axes.get_yticklabels()]]


def bars(figure):
    return [bar.get_width() for bar in figure.axes[0].patches]


def test_the_first_guess_counts_and_is_drawn_beside_the_result_which_else_stands_alone():
    guess = predict("How many times faster?", 0.5, 4, "times")
    guess.commit(3)
    guess.commit(1.9)
    figure = guess.compare(1.9, spread=(1.8, 2.0))
    assert bars(figure) == [1.9, 3.0]
    assert {"measured", "your guess", "1.9 times", "3 times"} <= set(texts(figure))
    assert figure.axes[0].get_xlabel() == "times"
    alone = predict("How many?", 0, 10).compare(1234)
    assert bars(alone) == [1234]
    assert "1,234" in texts(alone) and any("no guess was made" in text for text in texts(alone))


def test_without_widgets_the_question_is_printed(capsys):
    assert not has_widgets()
    predict("How many times faster?", 0.5, 4, "times")._ipython_display_()
    assert capsys.readouterr().out == "Prediction: How many times faster? (0.5 to 4 times)\n"


def test_an_empty_range_is_refused():
    with pytest.raises(ValueError, match="low < high"):
        predict("?", 2, 2)


@pytest.fixture
def controls(monkeypatch):
    """Shows a question's widget, and returns its slider and its button."""
    shown = []
    monkeypatch.setattr(prediction, "display", shown.append)

    def show(guess):
        guess._show_widget()
        return shown[-1].children[1].children

    return show


def test_the_slider_stands_at_what_was_committed_and_in_the_middle_before(controls):
    guess = predict("?", 0, 10)
    for committed, at in ((None, 5), (0, 0), (7, 7)):
        guess.value = committed
        assert controls(guess)[0].value == at


@pytest.mark.parametrize(("low", "high"), [(0, 100_000), (0.5, 4), (0, 1), (-5, 5), (90, 100)])
def test_the_widget_commits_what_its_slider_says(low, high, controls):
    guess = predict("?", low, high, "x")
    slider, button = controls(guess)
    assert low <= slider.value <= high
    slider.value = low + slider.step
    button.click()
    assert guess.value == slider.value
    assert slider.disabled and button.disabled
