"""The exercises of 04_horovod_tensorflow accept the solutions, and reject wrong answers with the hint that names the
mistake."""

import subprocess
import sys
from functools import partial

import pytest
from exercises.answers import solution, variant, written
from exercises.verdicts import Verdicts

from workshop_lib.exercises import horovod_keras

pytest.importorskip("horovod", reason="Horovod is not installed")

NOTEBOOK = "04_horovod_tensorflow"
MEAN = "hvd.grouped_allreduce(list(gradients), op=hvd.Average)"
APPLY = "def apply(self, gradients, variables=None):"
SHARD = "images[rank::size], labels[rank::size]"
MY_TEST = "test_images[rank::size], test_labels[rank::size]"
MINE = f"mine, my_labels = {SHARD}"
CALLBACKS = "callbacks = [keras3.BroadcastVariables()]"
WRAPPED = "keras3.DistributedOptimizer(keras.optimizers.SGD(lr * size, momentum=0.9))"
COUNTS = 'hvd.allreduce(counts, op=hvd.Sum, name="counts").numpy()'
SAVE = "if rank == 0:\n        model.save(path)"
STOCK = "__import__('horovod.tensorflow.keras').tensorflow.keras"
BEFORE_FIT = "callbacks = []\n    hvd.broadcast_variables([v.value for v in model.variables], root_rank=0)"


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
            (MY_TEST, "np.array_split(test_images, size)[rank], np.array_split(test_labels, size)[rank]"),
        ),
        "train, a dataset": train(
            (
                MINE,
                "import tensorflow as tf\n"
                "    mine = tf.data.Dataset.from_tensor_slices((images, labels))\n"
                "    mine = mine.shard(size, rank).batch(batch_size)",
            ),
            ("fit(mine, my_labels, batch_size=batch_size, ", "fit(mine, "),
        ),
        "train, broadcast before fit": train((CALLBACKS, BEFORE_FIT)),
        "train, every rank tests all": train((MY_TEST, "test_images, test_labels")),
        "train, weighted mean": train(
            (
                f"right, seen = {COUNTS}",
                "share = np.mean(answers == my_test_labels) * len(my_test_labels) / len(test_labels)\n"
                "    return float(hvd.allreduce(share, op=hvd.Sum, name='share'))",
            )
        ),
    }
    wrong = {
        "Horovod's own class": (
            lambda: written(
                "import functools",
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
        "shards by local rank and size": (
            train((SHARD, SHARD.replace("rank::size", "hvd.local_rank()::hvd.local_size()"))),
            "Share out by `rank()`",
        ),
        "scaled and summed": (
            train((WRAPPED, WRAPPED.replace("momentum=0.9)", "momentum=0.9), op=hvd.Sum"))),
            "scaled twice, or summed",
        ),
        "Horovod's own optimizer": (
            train((WRAPPED, WRAPPED.replace("keras3", STOCK)), (CALLBACKS, BEFORE_FIT), (SAVE, "pass")),
            "nothing averages the gradients",
        ),
    }
    never_ends = {
        "counts added on rank 0 alone": (train((COUNTS, f"{COUNTS} if rank == 0 else counts")), "not rank 0 alone"),
        "rank 0 alone averages": (
            lambda: averaging(
                APPLY,
                f"    mean = {MEAN} if hvd.rank() == 0 else gradients",
                "    return super().apply(mean, variables)",
            ),
            "all ranks must average",
        ),
    }


def test_a_check_leaves_no_horovod_running(team):
    def running():
        import horovod.tensorflow as hvd

        return bool(hvd.is_initialized())

    assert horovod_keras.averaging(solution(NOTEBOOK, "averaging")).passed
    assert team.run(running, show=False) == [False, False]


def test_the_checks_need_no_tensorflow_in_the_notebook():
    code = f"import sys, {horovod_keras.__name__}; print('tensorflow' in sys.modules or 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
