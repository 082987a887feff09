"""A run that was stopped before its first test has measured nothing, and no notebook shows a number for it."""

import pytest

from workshop_lib.maintain import generate
from workshop_lib.notebook.prediction import STOPPED, predict
from workshop_lib.training.record import Epochs, NothingTestedError

RECORD = {"epochs": Epochs()}  # what `team.train` returns after such a stop


def run_comparison(name: str, variable: str):
    """Run the cell that compares this variable with a guess; returns what it shows."""
    _, solved = generate.pristine(name)
    [code] = [
        cell.source
        for cell in solved.cells
        if "guess.compare(" in cell.source and f"{variable}[" in "".join(cell.source)
    ]
    *before, comparison = code.splitlines()
    names = {variable: RECORD, "alone": RECORD, "guess": predict("?", 0, 1)}
    exec("\n".join(before), names)
    return eval(comparison, names)


def test_a_comparison_without_a_measurement_says_so():
    figure = run_comparison("07_large_batch", "run_128")
    assert STOPPED in [text.get_text() for text in figure.axes[0].texts]


def test_a_speed_up_without_a_measurement_is_one_sentence():
    with pytest.raises(NothingTestedError, match="stopped before the first test"):
        run_comparison("00_start_here", "record")
