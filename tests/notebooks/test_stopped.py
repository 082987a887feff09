"""A run that was stopped before its first test has measured nothing, and no notebook shows a number for it."""

import pytest

from workshop_lib.maintain import generate
from workshop_lib.notebook.prediction import STOPPED, predict

RECORD = {"epochs": []}  # what `team.train` returns after such a stop
CASES = [("00_start_here", "record"), ("07_large_batch", "run_128")]


@pytest.mark.parametrize(("name", "variable"), CASES)
def test_a_comparison_without_a_measurement_says_so(name, variable):
    _, solved = generate.pristine(name)
    [code] = [
        cell.source
        for cell in solved.cells
        if "guess.compare(" in cell.source and f"{variable}[" in "".join(cell.source)
    ]
    *before, comparison = code.splitlines()
    names = {variable: RECORD, "alone": RECORD, "guess": predict("?", 0, 1)}
    exec("\n".join(before), names)
    figure = eval(comparison, names)
    assert STOPPED in [text.get_text() for text in figure.axes[0].texts]
