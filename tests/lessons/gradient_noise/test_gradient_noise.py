"""The exercises of 07b accept the solutions, and reject wrong answers with the hint that names the mistake."""

from judge.answers import written
from judge.verdicts import Verdicts

from workshop_lib.lessons.gradient_noise import judge as check

NOTEBOOK = "07b_gradient_noise"
TRACE = "(small_sq - big_sq) / (1 / small_batch - 1 / big_batch)"
FIT = "fit_law(batches, steps)"
NOISE = "noise_estimates(small_sq, big_sq, small_batch, big_batch)"


class TestGradientNoise(Verdicts):
    check, notebook, names = check, NOTEBOOK, ["noise_estimates", "fit_law"]
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
        "not weighted": lambda: written("import numpy as np", FIT, "return np.polyfit(1 / batches, steps, 1)[::-1]"),
        "samples against the batch": lambda: written(
            "import numpy as np", FIT, "return tuple(np.polyfit(batches, batches * steps, 1))"
        ),
        "as a system": lambda: written(
            "import numpy as np",
            FIT,
            "matrix = np.stack([np.ones(len(batches)), 1 / batches], axis=1)",
            "s_min, e_min = np.linalg.lstsq(matrix, steps, rcond=None)[0]",
            "return s_min, e_min",
        ),
        "from two points": lambda: written(
            "",
            FIT,
            "e_min = (steps[0] - steps[-1]) / (1 / batches[0] - 1 / batches[-1])",
            "return steps[0] - e_min / batches[0], e_min",
        ),
    }
