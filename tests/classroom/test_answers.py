"""What a learner wrote is found in their notebook, with what it needs and nothing else."""

import json

import pytest

from workshop_lib.classroom import answers
from workshop_lib.errors import InputError

IMPORTS = "%matplotlib inline\n!ls\nimport os, numpy as np\nfrom math import tau, pi"


def defined(*cells: str) -> dict:
    namespace: dict = {}
    exec(answers.function(list(cells), "mine"), namespace)
    return namespace


def test_a_function_comes_with_the_imports_functions_and_values_that_it_uses():
    helper = "@np.vectorize\ndef doubled(x):\n    return TIMES * x"
    unused = "def other():\n    return pi\nteam = start(2)"
    found = defined(IMPORTS, "TIMES = 1\nTIMES = 2", helper, unused, "def mine(x):\n    return doubled(x) + tau")
    assert found["mine"](1) == 2 + found["tau"]
    assert {"other", "team", "pi", "os"}.isdisjoint(found)


def test_the_last_definition_counts_and_a_value_of_its_name_does_not():
    cells = [
        "def mine():\n    return 1",
        "def mine():\n    return 2",
        "mine = 3",
        "%%ranks\ndef mine(): return 4",
        "def (",
    ]
    assert defined(*cells)["mine"]() == 2


def test_a_name_of_its_own_or_a_call_is_not_taken_from_the_notebook():
    found = defined("record = 5\nsizes = os.listdir()", "def mine(record):\n    sizes = [record]\n    return sizes")
    assert "record" not in found and "sizes" not in found


@pytest.mark.parametrize(
    "stub", ["    raise NotImplementedError('your code here')", "    # nothing\n    raise NotImplementedError()"]
)
def test_a_stub_is_no_answer(stub):
    assert answers.function([f"def mine(x):\n{stub}"], "mine") is None
    assert answers.function(["x = 1"], "mine") is None


def test_files_and_dictionaries_count_once_they_have_no_gaps():
    cell = "%%writefile {folder}/mine.py\nprint(1)  # your code here\n"
    assert answers.file([cell], "mine.py") == "print(1)  # your code here\n"
    assert answers.file([cell, cell.replace("1", "...")], "mine.py") is None
    assert answers.file([cell.replace("print", "raise NotImplementedError")], "mine.py") is None
    assert answers.file([cell], "yours.py") is None
    chosen = 'diagnoses = {\n    "A": "tired",  # your code here\n}\ncheck.diagnoses(diagnoses)'
    assert answers.answers([chosen], "diagnoses") == '{\n    "A": "tired",  # your code here\n}'
    assert answers.answers([chosen.replace('"tired"', "...")], "diagnoses") is None
    assert answers.answers([], "diagnoses") is None


@pytest.mark.parametrize("text", ["", "{}", json.dumps({"cells": [1]})])
def test_what_is_no_notebook_is_named(tmp_path, text):
    (tmp_path / "00_x.ipynb").write_text(text)
    with pytest.raises(InputError, match="00_x.ipynb can't be read as a notebook"):
        answers.code_cells(tmp_path / "00_x.ipynb")
