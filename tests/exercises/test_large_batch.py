"""The exercises of 07 accept the solutions, and reject wrong answers with the hint that names the mistake."""

from functools import partial

from exercises.answers import variant, written
from exercises.verdicts import Verdicts

from workshop_lib.exercises import large_batch as check

NOTEBOOK = "07_large_batch"
RATE = "learning_rate(step, base_lr, workers, warmup_steps)"
LAYER = "layer_rate(weights, gradient, trust)"
layer = partial(variant, NOTEBOOK, "layer_rate")
answer = partial(written, "import math\nimport torch")


class TestLargeBatch(Verdicts):
    check, notebook, names = check, NOTEBOOK, ["learning_rate", "layer_rate"]
    right = {
        "with an if": lambda: answer(
            RATE,
            "if step < warmup_steps:",
            "    return base_lr * workers * (step + 1) / warmup_steps",
            "return base_lr * workers",
        ),
        "sums of squares": lambda: answer(
            LAYER,
            "norms = [math.sqrt(float((t * t).sum())) for t in (weights, gradient)]",
            "return trust * norms[0] / norms[1] if all(norms) else 1.0",
        ),
        "a tensor": lambda: answer(
            LAYER,
            "if not weights.any() or not gradient.any(): return torch.tensor(1.0)",
            "return trust * torch.linalg.vector_norm(weights) / torch.linalg.vector_norm(gradient)",
        ),
    }
    wrong = {
        "constant until the peak": (
            lambda: answer(RATE, "return base_lr if step < warmup_steps else base_lr * workers"),
            "but should climb",
        ),
        "text": (lambda: answer(RATE, "return 'fast'"), "returned 'fast'"),
        "squares": (
            lambda: layer(("weights.norm(), gradient.norm()", "(weights**2).sum(), (gradient**2).sum()")),
            "squares of the norms",
        ),
        "each weight": (
            lambda: layer(("trust * weights_norm / gradient_norm", "trust * weights.abs() / gradient.abs()")),
            "one value per weight",
        ),
        "nothing": (lambda: answer(LAYER, "trust * weights.norm() / gradient.norm()"), "it returned None"),
        "zero forgotten": (
            lambda: layer(("if weights_norm == 0 or gradient_norm == 0:", "if gradient_norm == 0:")),
            "return 1",
        ),
        "in place": (
            lambda: layer(("weights.norm(), gradient.norm()", "weights.norm(), gradient.add_(1).norm()")),
            "work on copies",
        ),
    }
    never_ends = {
        "counts past the end": (
            lambda: answer(RATE, "while step != warmup_steps:", "    step += 1", "return base_lr * workers"),
            "doesn't end",
        )
    }
