"""The exercises of 04_horovod_tensorflow accept the solutions, and reject wrong answers with the hint that names the
mistake."""

import subprocess
import sys
from functools import partial

import pytest
from judge.answers import solution, variant, written
from judge.verdicts import Verdicts, planted
from needs import needs_backend

from workshop_lib.lessons.horovod_tensorflow import judge as horovod_keras

pytestmark = [needs_backend("horovod-keras"), pytest.mark.usefixtures("healthy")]

NOTEBOOK = "04_horovod_tensorflow"
MEAN = "hvd.grouped_allreduce(list(gradients), op=hvd.Average)"
APPLY = "def apply(self, gradients, variables=None):"
SHARD = "images[rank::size], labels[rank::size]"
CALLBACKS = "callbacks = [keras3.BroadcastVariables()]"
WRAPPED = "keras3.DistributedOptimizer(keras.optimizers.SGD(0.02 * size, momentum=0.9))"
DATASET = "dataset = __import__('tensorflow').data.Dataset.from_tensor_slices((images, labels))"
SAVE = "if rank == 0:\n        model.save(path)"
STOCK = "__import__('horovod.tensorflow.keras').tensorflow.keras"
BEFORE_FIT = "callbacks = []\n    hvd.broadcast_variables([v.value for v in model.variables], root_rank=0)"
MADE = "Averaging.from_config(optimizer.get_config())"
STEP = "return super().apply(mean, variables)"
IMPORT = "import horovod.tensorflow as hvd"
AVERAGED_WEIGHTS = """super().apply(gradients, variables)
            means = hvd.grouped_allreduce([v.value for v in variables], op=hvd.Average)
            for v, mean in zip(variables, means, strict=True): v.assign(mean)"""
LATE = """class Late(keras3.BroadcastVariables):
        def on_train_begin(self, logs=None):
            pass
        def on_train_batch_end(self, batch, logs=None):
            if batch == 0:
                super().on_train_begin()
    callbacks = [Late()]"""
KNOWN = {
    "averaging": {
        "nothing": ([(f"return {MADE}", MADE)], horovod_keras.NO_OPTIMIZER_HINT),
        "the class": ([(MADE, "Averaging")], horovod_keras.NO_OPTIMIZER_HINT),
        "always SGD": (
            [
                (IMPORT, f"{IMPORT}, keras"),
                ("type(optimizer)", "keras.optimizers.SGD"),
                (MADE, "Averaging(float(optimizer.learning_rate), momentum=0.9)"),
            ],
            horovod_keras.KIND_HINT,
        ),
        "the settings of the class": ([(MADE, "Averaging()")], horovod_keras.SETTINGS_HINT),
        "not averaged": ([(MEAN, "gradients")], horovod_keras.OWN_STEP_HINT),
        "two steps": ([(STEP, f"super().apply(gradients, variables); {STEP}")], horovod_keras.TWO_STEPS_HINT),
        "a sum": ([("hvd.Average", "hvd.Sum")], horovod_keras.SUM_HINT),
        "divided twice": ([(MEAN, f"[g / hvd.size() for g in {MEAN}]")], horovod_keras.TWICE_HINT),
        "clipped first": (
            [
                (IMPORT, f"{IMPORT}, tensorflow as tf"),
                (MEAN, MEAN.replace("list(gradients)", "[clipped(g) for g in gradients]")),
                ("mean =", "clipped = lambda g: tf.clip_by_norm(g, self.clipnorm) if self.clipnorm else g; mean ="),
            ],
            horovod_keras.MEAN_HINTS["SGD with clipped gradients"],
        ),
        "weights averaged": ([(STEP, AVERAGED_WEIGHTS), (MEAN, "0")], horovod_keras.MEAN_HINTS["Adam"]),
    },
    "train": {
        "shared out by local rank": (
            [(SHARD, SHARD.replace("rank::", "hvd.local_rank()::"))],
            horovod_keras.LOCAL_HINT,
        ),
        "not shared out": ([(SHARD, "images, labels")], horovod_keras.UNSHARED_HINT),
        "one part": ([(SHARD, SHARD.replace("rank::", "::"))], horovod_keras.MISSING_HINT),
        "the batch divided": ([("batch_size=64", "batch_size=64 // size")], "leave `batch_size` as it is"),
        "another root": ([("BroadcastVariables()", "BroadcastVariables(root=size - 1)")], horovod_keras.ROOT_RANK_HINT),
        "a late broadcast": ([(CALLBACKS, LATE)], horovod_keras.LATE_HINT),
        "no broadcast": ([(CALLBACKS, "callbacks = []")], horovod_keras.NO_BROADCAST_HINT),
        "a plain optimizer": ([("keras3.DistributedOptimizer(", "(")], horovod_keras.UNAVERAGED_HINT),
        **{
            f"the rate times size to the {power}": ([("0.02 * size", f"0.02 * size**{power}")], hint)
            for power, hint in horovod_keras.RATE_HINTS.items()
        },
        "nobody saves": ([(SAVE, "pass")], horovod_keras.UNSAVED_HINT),
        "all save": ([(SAVE, "model.save(path)")], horovod_keras.ALL_SAVE_HINT),
        "saved early": ([(SAVE, "pass"), (CALLBACKS, f"{CALLBACKS}\n    {SAVE}")], horovod_keras.EARLY_SAVE_HINT),
    },
}


def averaging(*lines: str):
    return written(
        "import functools",
        "averaging(optimizer)",
        "import horovod.tensorflow as hvd, keras, tensorflow as tf",
        "class Averaging(type(optimizer)):",
        *(f"    {line}" for line in lines),
        "return Averaging.from_config(optimizer.get_config())",
    )


def train(*replacements: tuple[str, str]):
    return partial(variant, NOTEBOOK, "train", *replacements)


def test_a_check_leaves_no_horovod_running(team):
    """Before the answers that never end: on fresh ranks TensorFlow would be imported again."""

    def running():
        import horovod.tensorflow as hvd

        return bool(hvd.is_initialized())

    assert horovod_keras.averaging(solution(NOTEBOOK, "averaging")).passed
    assert team.run(running, show=False) == [False, False]


class TestHorovodKeras(Verdicts):
    check, notebook, names = horovod_keras, NOTEBOOK, ["averaging", "train"]
    right = {
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
            "import functools",
            "averaging(optimizer)",
            "import horovod.tensorflow as hvd",
            "plain = optimizer.apply",
            "optimizer.apply = lambda gradients, variables=None: plain("
            "hvd.grouped_allreduce(list(gradients), op=hvd.Average), variables)",
            "return optimizer",
        ),
        "averaging, the library's": lambda: written(
            "from workshop_lib.training.backends import keras3",
            "averaging(optimizer)",
            "return keras3.DistributedOptimizer(optimizer)",
        ),
        "train, in blocks": train(
            (SHARD, "np.array_split(images, size)[rank], np.array_split(labels, size)[rank]"),
            (IMPORT, f"{IMPORT}, numpy as np"),
        ),
        "train, a dataset": train(
            (f"{SHARD}, batch_size=64", "dataset.shard(size, rank).batch(64)"),
            (CALLBACKS, f"{CALLBACKS}\n    {DATASET}"),
        ),
        "train, broadcast before fit": train((CALLBACKS, BEFORE_FIT)),
    }
    wrong = planted(NOTEBOOK, KNOWN) | {
        "Horovod's own class": (
            lambda: written(
                "import functools",
                "averaging(optimizer)",
                "import horovod.tensorflow.keras as hvd",
                "return hvd.DistributedOptimizer(optimizer)",
            ),
            "Does Keras call your method at all",
        ),
        "Horovod's own optimizer": (
            train((WRAPPED, WRAPPED.replace("keras3", STOCK)), (CALLBACKS, BEFORE_FIT), (SAVE, "pass")),
            "nothing averages the gradients",
        ),
    }
    never_ends = {
        "rank 0 alone trains": (train(("    model.fit(", "    rank or model.fit(")), "not rank 0 alone"),
        "rank 0 alone averages": (
            lambda: averaging(
                APPLY,
                f"    mean = {MEAN} if hvd.rank() == 0 else gradients",
                "    return super().apply(mean, variables)",
            ),
            "not rank 0 alone",
        ),
    }


def test_the_checks_need_no_tensorflow_in_the_notebook():
    code = f"import sys, {horovod_keras.__name__}; print('tensorflow' in sys.modules or 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
