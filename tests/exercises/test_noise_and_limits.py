"""The checks of 07b accept the solutions, and reject wrong answers with the hint that names the mistake."""

import pytest
from exercises.answers import variant, written
from exercises.verdicts import Verdicts

from workshop_lib.exercises import noise_and_limits as check

NOTEBOOK = "07b_noise_and_limits"
SQUARE = "(big_batch * big_sq - small_batch * small_sq) / (big_batch - small_batch)"
TRACE = "(small_sq - big_sq) / (1 / small_batch - 1 / big_batch)"
NOISE = "noise_estimates(small_sq, big_sq, small_batch, big_batch)"
COMPRESS = "compress(gradient, residual, k)"


def changed(name, *replacements):
    return lambda: variant(NOTEBOOK, name, *replacements)


def noise(*replacements):
    return changed("noise_estimates", *replacements)


def compress(*replacements):
    return changed("compress", *replacements)


class TestChecks(Verdicts):
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
        "the measured norm": (noise((SQUARE, "big_sq")), "has noise in it"),
        "biased noise": (noise((TRACE, "(small_sq - big_sq) * small_batch")), "takes big_sq for |G|²"),
        "each with the other's batch": (
            noise((SQUARE, SQUARE.replace("big_sq", "x").replace("small_sq", "big_sq").replace("x", "small_sq"))),
            "goes with its own batch",
        ),
        "not divided": (noise((SQUARE, SQUARE.split(" / ")[0])), "Divide by the difference"),
        "difference alone": (noise((TRACE, "small_sq - big_sq")), "Divide by 1/small_batch"),
        "multiplied": (noise((TRACE, TRACE.replace(" / (", " * ("))), "not multiply"),
        "by the batch": (noise((TRACE, "(small_sq - big_sq) / (big_batch - small_batch)")), "multiplied by 1/batch"),
        "sign": (noise((TRACE, f"-{TRACE}")), "wrong way round"),
        "other way round": (lambda: written("", NOISE, f"return {TRACE}, {SQUARE}"), "the other way round"),
        "ratio as well": (lambda: written("", NOISE, f"return {SQUARE}, ({TRACE}) / ({SQUARE})"), "the noise scale"),
        "ratio alone": (lambda: written("", NOISE, f"return ({TRACE}) / ({SQUARE})"), "it returned"),
        "nothing": (lambda: written("", NOISE, f"x = {TRACE}"), "`return` both"),
        "signed": (compress(("np.abs(total)", "total")), "large negative ones"),
        "smallest": (compress(("[-k:]", "[:k]")), "the smallest"),
        "of the gradient": (compress(("np.abs(total)", "np.abs(gradient)")), "get its turn"),
        "values of the gradient": (
            compress(("return total[places]", "return gradient[places]")),
            "what was kept is due now",
        ),
        "magnitudes": (compress(("return total[places]", "return np.abs(total[places])")), "with their signs"),
        "no feedback": (compress(("kept[places] = 0", "kept[:] = 0")), "is dropped"),
        "sent twice": (compress(("kept[places] = 0", "")), "would be sent twice"),
        "old residual forgotten": (compress(("kept = total.copy()", "kept = gradient.copy()")), "is gone"),
        "old residual ignored": (compress(("total = gradient + residual", "total = gradient")), "get its turn"),
        "keeps what it sends": (
            compress(("kept[places] = 0", "kept = np.where(np.isin(np.arange(len(total)), places), total, 0)")),
            "keep the rest",
        ),
        "one too many": (compress(("[-k:]", "[-k - 1:]")), "values have shape"),
        "two arrays": (compress((", kept", "")), "it returned"),
        "in place": (compress(("total = gradient + residual", "gradient += residual; total = gradient")), "new arrays"),
    }
    never_ends = {"noise": (noise(("return", "while True: pass\n    return")), "does not end")}


def test_an_error_in_the_function_is_told_with_its_line():
    verdict = check.compress(variant(NOTEBOOK, "compress", ("total[places]", "total[places, 0]")))
    assert verdict.passed is False
    assert "IndexError" in verdict.failed
    assert "total[places, 0]" in verdict.failed


@pytest.mark.parametrize("name", ["noise_estimates", "compress"])
def test_something_that_is_no_function_is_refused(name):
    assert "a function was expected" in getattr(check, name)(3).failed
