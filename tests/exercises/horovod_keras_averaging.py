"""Answers to `averaging` of 04_horovod_tensorflow: right ones, wrong ones with their hint, and one that never
ends.
"""

from exercises.answers import variant, written

NOTEBOOK = "04_horovod_tensorflow"
IMPORTS = "import functools"
MEAN = "hvd.grouped_allreduce(list(gradients), op=hvd.Average)"
APPLY = "def apply(self, gradients, variables=None):"


def averaging(*lines: str, returned: str = "return Averaging.from_config(optimizer.get_config())"):
    body = [f"    {line}" for line in lines]
    return written(
        IMPORTS,
        "averaging(optimizer)",
        "import horovod.tensorflow as hvd, keras, tensorflow as tf",
        "class Averaging(type(optimizer)):",
        *body,
        returned,
    )


def changed(old: str, new: str):
    return variant(NOTEBOOK, "averaging", (old, new))


RIGHT = {
    "averaging, one allreduce each": lambda: averaging(
        APPLY,
        "    mean = [hvd.allreduce(g, op=hvd.Average, name=f'g{i}') for i, g in enumerate(gradients)]",
        "    return super().apply(mean, variables)",
    ),
    "averaging, a sum divided": lambda: averaging(
        APPLY,
        "    total = hvd.grouped_allreduce(list(gradients), op=hvd.Sum)",
        "    return super().apply([g / hvd.size() for g in total], variables)",
    ),
    "averaging, apply of the object replaced": lambda: written(
        IMPORTS,
        "averaging(optimizer)",
        "import horovod.tensorflow as hvd",
        "plain = optimizer.apply",
        "optimizer.apply = lambda gradients, variables=None: plain("
        "hvd.grouped_allreduce(list(gradients), op=hvd.Average), variables)",
        "return optimizer",
    ),
    "averaging, the library's": lambda: written(
        IMPORTS,
        "averaging(optimizer)",
        "from workshop_lib.training.backends import keras3",
        "return keras3.DistributedOptimizer(optimizer)",
    ),
}
WRONG = {
    "sum": (lambda: changed("hvd.Average", "hvd.Sum"), "times too large, a sum"),
    "nothing averaged": (lambda: averaging("pass"), "every rank took its own step"),
    "Horovod's own class": (
        lambda: written(
            IMPORTS,
            "averaging(optimizer)",
            "import horovod.tensorflow.keras as hvd",
            "return hvd.DistributedOptimizer(optimizer)",
        ),
        "is the method that you replaced the one that is called",
    ),
    "averaged after the step": (
        lambda: averaging(
            APPLY, "    super().apply(gradients, variables)", "    hvd.grouped_allreduce(list(gradients))"
        ),
        "average first, then `super().apply`",
    ),
    "weights averaged": (
        lambda: averaging(
            APPLY,
            "    variables = list(variables)",
            "    super().apply(gradients, variables)",
            "    means = hvd.grouped_allreduce([v.value for v in variables], op=hvd.Average)",
            "    for v, mean in zip(variables, means):",
            "        v.assign(mean)",
        ),
        "average the gradients, before the weights change",
    ),
    "two steps": (
        lambda: averaging(
            APPLY,
            "    variables = list(variables)",
            "    super().apply(list(gradients), variables)",
            f"    super().apply({MEAN}, variables)",
        ),
        "Average first, then call `super().apply` once",
    ),
    "divided twice": (
        lambda: averaging(APPLY, f"    super().apply([g / hvd.size() for g in {MEAN}], variables)"),
        "times the right one",
    ),
    "clipped before": (
        lambda: averaging(
            APPLY,
            "    gradients = list(gradients)",
            "    if self.clipnorm:",
            "        gradients = [tf.clip_by_norm(g, self.clipnorm) for g in gradients]",
            f"    return super().apply({MEAN}, variables)",
        ),
        "average first, clip the mean",
    ),
    "settings lost": (
        lambda: averaging(APPLY, f"    return super().apply({MEAN}, variables)", returned="return Averaging()"),
        "`from_config` takes over",
    ),
    "always SGD": (
        lambda: written(
            IMPORTS,
            "averaging(optimizer)",
            "import horovod.tensorflow as hvd, keras",
            "class Averaging(keras.optimizers.SGD):",
            f"    {APPLY}",
            f"        return super().apply({MEAN}, variables)",
            "return Averaging(float(optimizer.learning_rate), momentum=0.9)",
        ),
        "derive your class from `type(optimizer)`",
    ),
    "the class": (
        lambda: averaging(APPLY, f"    return super().apply({MEAN}, variables)", returned="return Averaging"),
        "instead of an object",
    ),
    "nothing returned": (
        lambda: averaging(APPLY, f"    return super().apply({MEAN}, variables)", returned="pass"),
        "forget `return`",
    ),
}
NEVER_ENDS = {
    "rank 0 alone averages": (
        lambda: averaging(
            APPLY, f"    mean = {MEAN} if hvd.rank() == 0 else gradients", "    return super().apply(mean, variables)"
        ),
        "all ranks must average",
    )
}
