"""The checks of 07 accept the solutions, and reject wrong answers with the hint that names the mistake."""

from exercises.answers import variant, written
from exercises.verdicts import Verdicts

from workshop_lib.exercises import large_batch as check

NOTEBOOK = "07_large_batch"
PEAK = "base_lr * workers"
CLIMB = "min(1, (step + 1) / warmup_steps)"
NORMS = "weights.norm(), gradient.norm()"
RATE = "trust * weights_norm / gradient_norm"
ZERO = "if weights_norm == 0 or gradient_norm == 0:"


def rate(*changes):
    return lambda: variant(NOTEBOOK, "learning_rate", *changes)


def layer(*changes):
    return lambda: variant(NOTEBOOK, "layer_rate", *changes)


def answer(head, *lines):
    return lambda: written("import math\nimport torch", head, *lines)


RATE_HEAD = "learning_rate(step, base_lr, workers, warmup_steps)"
LAYER_HEAD = "layer_rate(weights, gradient, trust)"

RIGHT = {
    "with an if": answer(
        RATE_HEAD,
        "if step < warmup_steps:",
        "    return base_lr * workers * (step + 1) / warmup_steps",
        "return base_lr * workers",
    ),
    "sums of squares": answer(
        LAYER_HEAD,
        "norms = [math.sqrt(float((t * t).sum())) for t in (weights, gradient)]",
        "return trust * norms[0] / norms[1] if all(norms) else 1.0",
    ),
    "a tensor": answer(
        LAYER_HEAD,
        "if not weights.any() or not gradient.any(): return torch.tensor(1.0)",
        "return trust * torch.linalg.vector_norm(weights) / torch.linalg.vector_norm(gradient)",
    ),
}

WRONG = {
    "not scaled": (rate((PEAK, "base_lr")), "the rate of one worker"),
    "square root": (rate((PEAK, "base_lr * workers ** 0.5")), "square-root scaling"),
    "divided": (rate((PEAK, "base_lr / workers")), "divided by the workers"),
    "never ends climbing": (rate((CLIMB, "(step + 1) / max(1, warmup_steps)")), "beyond the peak"),
    "no warm-up": (rate((CLIMB, "1")), "there is no warm-up"),
    "begins at zero": (rate((CLIMB, "min(1, step / max(1, warmup_steps - 1))")), "wastes the step"),
    "one step late": (rate((CLIMB, "min(1, (step + 1) / (warmup_steps + 1))")), "not in the one after it"),
    "constant": (
        answer(RATE_HEAD, "return base_lr if step < warmup_steps - 1 else base_lr * workers"),
        "constant warm-up",
    ),
    "from the base rate": (
        answer(
            RATE_HEAD,
            "done = min(1, (step + 1) / max(1, warmup_steps))",
            "return base_lr + (base_lr * workers - base_lr) * done",
        ),
        "climbs from the base rate",
    ),
    "text": (answer(RATE_HEAD, "return 'fast'"), "returned 'fast'"),
    "no trust": (layer((RATE, "weights_norm / gradient_norm")), "the trust coefficient is missing"),
    "upside down": (layer((RATE, "trust * gradient_norm / weights_norm")), "upside down"),
    "squares": (layer((NORMS, "(weights**2).sum(), (gradient**2).sum()")), "squares of the norms"),
    "gradient only": (layer((RATE, "trust / gradient_norm")), "the weights' norm is missing"),
    "weights only": (layer((RATE, "trust * weights_norm")), "divide by the norm of the gradient"),
    "each weight": (layer((RATE, "trust * weights.abs() / gradient.abs()")), "one value a weight"),
    "zero forgotten": (layer((ZERO, "if gradient_norm == 0:")), "return 1"),
    "largest value": (layer((NORMS, "weights.abs().max(), gradient.abs().max()")), "root of the sum"),
    "in place": (layer((RATE, "float(gradient.mul_(1).norm() * 0 + gradient.add_(1).sum() * 0) + 1")), "copies"),
}


NEVER_ENDS = {
    "counts past the end": (
        answer(RATE_HEAD, "while step != warmup_steps:", "    step += 1", "return base_lr * workers"),
        "a loop that never ends",
    )
}


class TestVerdicts(Verdicts):
    check, notebook, names = check, NOTEBOOK, ["learning_rate", "layer_rate"]
    right, wrong, never_ends = RIGHT, WRONG, NEVER_ENDS
