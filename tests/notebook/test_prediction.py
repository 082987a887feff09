"""A guess is taken, drawn beside the result, and never waited for."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from drawn import Shown, check_layout, texts, words
from IPython.core.formatters import DisplayFormatter

from workshop_lib.notebook import prediction
from workshop_lib.notebook.figures import new_figure
from workshop_lib.notebook.prediction import predict
from workshop_lib.notebook.widgets import has_widgets


def bars(figure):
    return [bar.get_width() for bar in figure.axes[0].patches]


def test_a_guess_is_drawn_beside_the_result_which_else_stands_alone():
    guess = predict("How many times faster?", 0.5, 4, "times")
    guess.commit(3)
    figure = guess.compare([1.8, 1.9, 2.0])
    assert bars(figure) == [1.9, 3.0]
    assert texts(figure) == ["1.9 times", "3 times"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["measured", "your guess"]
    check_layout(figure)
    alone = predict("How many?", 0, 10, "messages").compare(1234)
    assert bars(alone) == [1234]
    assert texts(alone) == ["1,234 messages"] and "no guess was made" in words(alone)
    check_layout(alone)


def test_a_run_that_measured_nothing_is_not_drawn_as_zero():
    guess = predict("Test accuracy?", 0, 100, "%")
    guess.commit(97)
    figure = guess.compare(None)
    assert "nothing: stopped before it was measured" in texts(figure) and "0 %" not in texts(figure)
    assert "97 %" in texts(figure) and bars(figure) == [0, 97]
    for nothing in ([], float("nan")):
        assert "nothing: stopped before it was measured" in texts(guess.compare(nothing))
    assert bars(guess.compare([1, 2, 30])) == [2, 97]


def test_without_widgets_the_question_is_printed(capsys):
    assert not has_widgets()
    predict("How many times faster?", 0.5, 4, "times")._ipython_display_()
    assert capsys.readouterr().out == "Prediction: How many times faster? (0.5 to 4 times)\n"


def test_an_executed_notebook_has_the_numbers_of_a_question_and_of_its_answer(monkeypatch, shown):
    monkeypatch.setattr(prediction, "get_ipython", lambda: SimpleNamespace(user_ns={}))
    guess = predict("How many times faster?", 0.5, 4, "times")
    guess._ipython_display_()
    asked = {"question": "How many times faster?", "low": 0.5, "high": 4, "unit": "times"}
    assert shown[0]["text/plain"].startswith("Prediction: ") and shown[0][prediction.NUMBERS] == asked
    answer = {"measured": 2.0, "spread": [1.0, 3.0], "text": "2 times"}
    assert guess.compare(np.array([1, 2, 3]))._repr_mimebundle_()[0][prediction.NUMBERS] == asked | answer
    json.dumps(dict(guess.compare(np.int64(2)).numbers))
    first, second = (DisplayFormatter().format(guess.compare(measured))[0] for measured in (1, 4))
    assert first["image/png"] != second["image/png"], "IPython keeps nothing of an earlier figure"
    plain = [DisplayFormatter().format(new_figure(title)[0])[0] for title in ("one", "two")]
    assert plain[0].keys() == {"image/png", "text/plain"} and plain[0]["image/png"] != plain[1]["image/png"]
    assert guess.compare(None).numbers[prediction.NUMBERS]["measured"] is None


def test_an_empty_range_is_refused():
    with pytest.raises(ValueError, match="low < high"):
        predict("?", 2, 2)


@pytest.fixture
def shown(monkeypatch):
    shown = Shown()
    monkeypatch.setattr(prediction, "display", shown.display)
    return shown


def controls(box):
    """The slider and the button of a question's widgets."""
    slider, unit, button = box.children[1].children
    assert unit.value and not slider.description, "the unit stands after the number"
    return slider, button


@pytest.mark.parametrize(("low", "high"), [(0, 100_000), (0.5, 4), (0, 1), (-5, 5), (90, 100)])
def test_the_slider_suggests_nothing_and_commits_only_after_a_move(low, high, shown):
    guess = predict("?", low, high, "x")
    guess._show_widget()
    slider, button = controls(shown[0])
    assert slider.value == low and "workshop-unset" in slider._dom_classes and button.disabled
    slider.value = moved = low + slider.step
    assert "workshop-unset" not in slider._dom_classes and not button.disabled
    button.click()
    assert guess.value == moved


def test_a_committed_guess_keeps_its_button_and_stays_as_html_for_the_next_day(shown):
    guess = predict("Is 1 < 2?", 0, 100, "%")
    guess._show_widget()
    box, below = shown
    assert "Is 1 &lt; 2? (0 to 100 %)" in box.children[0].value
    slider, button = controls(box)
    assert below.data == "", "nothing is left before there is a guess"
    slider.value = 30
    button.click()
    assert "Is 1 &lt; 2? (" in shown[-1] and "<b>30 %</b> (committed)" in shown[-1]
    assert button.description == "Committed ✓" and not button.disabled, "a disabled button has no focus"
    assert slider.disabled and box.comm is not None, "and nothing is closed"
    button.click()
    assert guess.value == 30


def test_a_cell_that_runs_again_shows_its_guess_and_takes_another(shown):
    guess = predict("How many?", 0, 100, "%")
    guess.commit(38)
    guess._show_widget()
    box, below, left = shown
    slider, button = controls(box)
    assert "<b>38 %</b> (committed)" in box.children[0].value and "<b>38 %</b> (committed)" in left
    assert slider.layout.display == "none" and button.description == "Guess again"
    button.click()
    assert slider.layout.display is None and slider.value == 0 and button.disabled, "as when it was asked first"
    slider.value = 50
    button.click()
    assert guess.value == 50 and "<b>50 %</b> (committed)" in shown[-1]


def test_a_cell_that_runs_again_keeps_its_guess(monkeypatch):
    first = predict("How many?", 0, 10)
    notebook = SimpleNamespace(user_ns={"guess": first, "other": 3})
    monkeypatch.setattr(prediction, "get_ipython", lambda: notebook)
    assert predict("How many?", 0, 10) is not first, "nothing is committed yet"
    first.commit(7)
    assert predict("How many?", 0, 10) is first
    assert predict("How many?", 0, 20) is not first
