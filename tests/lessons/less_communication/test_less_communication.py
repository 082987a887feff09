"""The exercises of 07c accept the solutions, and reject wrong answers with the hint that names the mistake."""

from functools import partial

from judge.answers import variant, written
from judge.verdicts import Verdicts

from workshop_lib.lessons.less_communication import judge as check

NOTEBOOK = "07c_less_communication"
OUTER = "outer_step(comm, start, mine, velocity, lr=0.7, momentum=0.9)"
COMPRESS = "compress(gradient, residual, k)"


def compress(*replacements):
    return partial(variant, NOTEBOOK, "compress", *replacements)


def outer(*replacements):
    return partial(variant, NOTEBOOK, "outer_step", *replacements)


class TestLessCommunication(Verdicts):
    check, notebook, names, threads = check, NOTEBOOK, ["compress", "outer_step"], 2
    right = {
        "with argpartition": lambda: written(
            "import numpy as np",
            COMPRESS,
            "total = gradient + residual",
            "places = np.argpartition(np.abs(total), -k)[-k:]",
            "kept = total.copy()",
            "kept[places] = 0",
            "return [total[places], places, kept]",
        ),
        "the differences are averaged, in place": lambda: written(
            "import numpy as np",
            OUTER,
            "gradient = np.empty_like(start)",
            "comm.Allreduce(start - mine, gradient)",
            "gradient /= comm.size",
            "velocity *= momentum",
            "velocity += gradient",
            "start -= lr * (gradient + momentum * velocity)",
            "return start, velocity",
        ),
        "each rank steps with its own, and then they average": lambda: written(
            "",
            OUTER,
            "velocity = momentum * velocity + start - mine",
            "weights = start - lr * (start - mine + momentum * velocity)",
            "return comm.allreduce(weights) / comm.size, velocity",
        ),
        "the rate is inside the velocity": lambda: written(
            "",
            OUTER,
            "gradient = start - comm.allreduce(mine) / comm.size",
            "velocity = momentum * velocity - lr * gradient",
            "return start - lr * gradient + momentum * velocity, velocity",
        ),
    }
    wrong = {
        "old residual ignored": (compress(("total = gradient + residual", "total = gradient")), "gets its turn"),
        "one too many": (compress(("[-k:]", "[-k - 1:]")), "an array of 3, an array of 3, an array of 6"),
        "two arrays": (compress((", kept", "")), "it returned"),
        "weights alone": (outer(("return weights, velocity", "return weights")), "rank 0 returned an array of 4"),
        "velocities too": (
            outer(("    weights = ", "    velocity = comm.allreduce(velocity) / comm.size\n    weights = ")),
            "send them once",
        ),
        "a rate of its own": (outer(("start - lr *", "start - 0.3 *")), "none of the known mistakes"),
        "in place": (
            compress(("total = gradient + residual", "gradient += residual; total = gradient")),
            "make a new one",
        ),
    }
