"""Horovod for Keras 3. These lines turn a one-process script into one that uses Horovod:

    hvd.init()                                               joins the other processes
    optimizer = keras3.DistributedOptimizer(optimizer)       averages gradients before they are applied
    model.fit(…, callbacks=[keras3.BroadcastVariables()])    gives every rank the weights of rank 0

`keras3` is the adapter beside this file. It is needed because horovod.keras was made for Keras 2 and would not average
anything. The trainer here owns its loop, so it calls train_on_batch in place of fit, and broadcasts without a callback.
"""

import keras
import numpy as np

from workshop_lib.training.backends import keras3
from workshop_lib.training.backends.base import Replica, StepResult
from workshop_lib.training.backends.horovod_tf import (
    HorovodTf,
    TensorflowReplica,
    cross_entropy,
    metric_sums,
    some_rows,
)
from workshop_lib.training.data.mnist import Split
from workshop_lib.training.options import TrainOptions


class HorovodKeras(HorovodTf):
    name = "horovod-keras"

    def replica(self, options: TrainOptions, train: Split, test: Split) -> Replica:
        return KerasReplica(options, self, train, test)


class KerasReplica(TensorflowReplica):
    """The Replica (base.py) whose step is Keras's train_on_batch."""

    def prepare(self) -> None:
        self.optimizer = keras3.DistributedOptimizer(self.optimizer)
        self.optimizer.build(self.model.trainable_variables)
        self.metric = SumsOfBatch()
        loss = keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=self.label_smoothing, reduction="sum"
        )
        # This build of Horovod has no operations for XLA, which exist only for GPUs.
        self.model.compile(self.optimizer, loss, weighted_metrics=[self.metric], jit_compile=False)
        keras3.broadcast_model(self.model)

    def step(self, indices: np.ndarray, n_global: int, lr: float) -> StepResult:
        rows, counts = some_rows(indices)
        weight = np.float32(counts * self.backend.world.world_size / n_global)
        self.model.optimizer.learning_rate = lr
        # The targets have one number per class and sample, because Keras smooths no other labels.
        targets = keras.utils.to_categorical(self.train_split.labels[rows], self.model.output_shape[-1])
        images = self.train_split.images[rows]
        logs = self.model.train_on_batch(images, targets, np.full(len(rows), weight), return_dict=True)
        self._sums.assign_add(self.metric.sums.value)
        return StepResult(logs["loss_sum"])


class SumsOfBatch(keras.metrics.Metric):
    """Summed loss, correct answers and samples of one batch: float64 [3]. Its result is the summed loss.

    A batch whose samples have weight 0 counts as empty.
    """

    def __init__(self):
        super().__init__(name="loss_sum")
        self.sums = self.add_variable((3,), "zeros", dtype="float64", name="sums")

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels = keras.ops.argmax(y_true, axis=-1)
        counts = keras.ops.cast(keras.ops.any(sample_weight > 0), "float64")
        self.sums.assign(counts * metric_sums(cross_entropy(y_pred, labels), y_pred, labels))

    def result(self):
        return self.sums[0]
