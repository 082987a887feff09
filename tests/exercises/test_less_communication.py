"""The exercises of 07c accept the solutions, and reject wrong answers with the hint that names the mistake."""

from functools import partial

from exercises.answers import variant, written
from exercises.verdicts import Verdicts

from workshop_lib.exercises import less_communication as check

NOTEBOOK = "07c_less_communication"
COMPRESS = "compress(gradient, residual, k)"


def compress(*replacements):
    return partial(variant, NOTEBOOK, "compress", *replacements)


class TestLessCommunication(Verdicts):
    check, notebook, names = check, NOTEBOOK, ["compress"]
    right = {
        "with argpartition": lambda: written(
            "import numpy as np",
            COMPRESS,
            "total = gradient + residual",
            "places = np.argpartition(np.abs(total), -k)[-k:]",
            "kept = total.copy()",
            "kept[places] = 0",
            "return [total[places], places, kept]",
        )
    }
    wrong = {
        "no feedback": (compress(("kept[places] = 0", "kept[:] = -0.0")), "it drops what was not sent"),
        "old residual ignored": (compress(("total = gradient + residual", "total = gradient")), "gets its turn"),
        "one too many": (compress(("[-k:]", "[-k - 1:]")), "values have shape"),
        "two arrays": (compress((", kept", "")), "it returned"),
        "in place": (compress(("total = gradient + residual", "gradient += residual; total = gradient")), "a new one"),
    }


def test_an_error_in_the_function_is_told_with_its_line():
    verdict = check.compress(variant(NOTEBOOK, "compress", ("total[places]", "total[places, 0]")))
    assert verdict.passed is False
    assert "IndexError" in verdict.failed
    assert "total[places, 0]" in verdict.failed
