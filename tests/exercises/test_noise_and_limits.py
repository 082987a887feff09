"""The exercises of 07b accept the solutions, and reject wrong answers with the hint that names the mistake."""

from functools import partial

from exercises.answers import variant, written
from exercises.verdicts import Verdicts

from workshop_lib.exercises import noise_and_limits as check

NOTEBOOK = "07b_noise_and_limits"
SQUARE = "(big_batch * big_sq - small_batch * small_sq) / (big_batch - small_batch)"
TRACE = "(small_sq - big_sq) / (1 / small_batch - 1 / big_batch)"
NOISE = "noise_estimates(small_sq, big_sq, small_batch, big_batch)"
COMPRESS = "compress(gradient, residual, k)"


def noise(*replacements):
    return partial(variant, NOTEBOOK, "noise_estimates", *replacements)


def compress(*replacements):
    return partial(variant, NOTEBOOK, "compress", *replacements)


class TestNoiseAndLimits(Verdicts):
    check, notebook, names = check, NOTEBOOK, ["noise_estimates", "compress"]
    right = {
        "solved as a system": lambda: written(
            "import numpy as np",
            NOISE,
            "matrix = [[1, 1 / small_batch], [1, 1 / big_batch]]",
            "return tuple(np.linalg.solve(matrix, [small_sq, big_sq]))",
        ),
        "one from the other": lambda: written(
            "", NOISE, f"trace = {TRACE}", "return [small_sq - trace / small_batch, trace]"
        ),
        "with argpartition": lambda: written(
            "import numpy as np",
            COMPRESS,
            "total = gradient + residual",
            "places = np.argpartition(np.abs(total), -k)[-k:]",
            "kept = total.copy()",
            "kept[places] = 0",
            "return [total[places], places, kept]",
        ),
    }
    wrong = {
        "ratio alone": (lambda: written("", NOISE, f"return ({TRACE}) / ({SQUARE})"), "it returned"),
        "nothing": (lambda: written("", NOISE, f"x = {TRACE}"), "`return` both"),
        "something unknown": (noise((TRACE, f"2.5 * {TRACE}")), "none of the known mistakes"),
        "no feedback": (compress(("kept[places] = 0", "kept[:] = -0.0")), "it drops what was not sent"),
        "old residual ignored": (compress(("total = gradient + residual", "total = gradient")), "gets its turn"),
        "one too many": (compress(("[-k:]", "[-k - 1:]")), "values have shape"),
        "two arrays": (compress((", kept", "")), "it returned"),
        "in place": (compress(("total = gradient + residual", "gradient += residual; total = gradient")), "a new one"),
    }
    never_ends = {"noise": (noise(("return", "while True: pass\n    return")), "doesn't end")}


def test_an_error_in_the_function_is_told_with_its_line():
    verdict = check.compress(variant(NOTEBOOK, "compress", ("total[places]", "total[places, 0]")))
    assert verdict.passed is False
    assert "IndexError" in verdict.failed
    assert "total[places, 0]" in verdict.failed
