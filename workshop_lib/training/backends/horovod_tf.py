"""Horovod for TensorFlow, in a training loop of one's own. What is added to a one-process script:

    hvd.init()
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")    a GPU of its own
    hvd.broadcast_variables([v.value for v in variables], root_rank=0)
    tape = hvd.DistributedGradientTape(tape)                        gradients come out averaged

`v.value`, because Horovod knows TensorFlow's variables and not Keras 3's.
"""

import os

# Read by TensorFlow when it begins: errors alone, and as many threads as PyTorch would take.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from workshop_lib.training.backends import horovod_process
from workshop_lib.training.backends.base import Backend


class HorovodTf(Backend):
    name = "horovod-tf"
    framework = "TensorFlow"
    communication_s = None

    def __init__(self, world, device):
        super().__init__(world, device)
        horovod_process.start(hvd, world)
        if gpus := tf.config.list_physical_devices("GPU"):
            own = gpus[world.local_rank % len(gpus)]
            tf.config.set_visible_devices([own] if device.type == "cuda" else [], "GPU")

    def learner(self, options, train_split, test_split):
        from workshop_lib.training.learners.tensorflow import TensorflowLearner

        return TensorflowLearner(options, self, train_split, test_split)

    def broadcast(self, variables: list) -> None:
        """Give every rank the values of rank 0."""
        hvd.broadcast_variables([variable.value for variable in variables], root_rank=0)

    def wrap_tape(self, tape: tf.GradientTape) -> tf.GradientTape:
        return hvd.DistributedGradientTape(tape, op=hvd.Average, num_groups=1)

    def sum(self, values: np.ndarray) -> np.ndarray:
        return hvd.allreduce(tf.constant(values), op=hvd.Sum, name="sum").numpy()

    def allgather(self, value) -> list:
        return hvd.allgather_object(value, name="value")  # else named by its type, which may differ

    def close(self) -> None:
        hvd.shutdown()
