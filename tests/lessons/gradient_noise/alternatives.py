"""Right answers to the exercises of 07b beside the solutions, and wrong ones beside the known mistakes."""

from judge.answers import written

TRACE = "(small_sq - big_sq) / (1 / small_batch - 1 / big_batch)"
FIT = "fit_law(batches, steps)"
NOISE = "noise_estimates(small_sq, big_sq, small_batch, big_batch)"

RIGHT = {
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
