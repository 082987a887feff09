"""One rank's training in Keras 3, with model.fit."""

from collections.abc import Callable, Iterable

import keras
import numpy as np

from workshop_lib.training.learners.tensorflow import TensorflowLearner, cross_entropy, metric_sums, some_rows


class KerasLearner(TensorflowLearner):
    """An epoch is one call of fit; a callback hands each step on to the workshop's loop."""

    def prepare(self) -> None:
        self.optimizer = self.backend.wrap_optimizer(self.optimizer)
        self.optimizer.build(self.model.trainable_variables)
        self.metric = Sums()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
        # XLA does not know Horovod's operations.
        self.model.compile(self.optimizer, loss, weighted_metrics=[self.metric], jit_compile=False)
        self.callbacks = self.backend.callbacks()

    def sums(self) -> np.ndarray:
        return super().sums() + self.metric.total.numpy()

    def train(self, steps: Iterable, after_step: Callable[..., bool]) -> None:
        steps = list(steps)  # fit takes batches ahead of the step that uses them

        def batches():
            images, labels = self.train_split.images, self.train_split.labels
            for indices, n_global, _ in steps:
                rows, counts = some_rows(indices)
                weight = np.float32(counts * self.backend.world.world_size / n_global)
                yield images[rows], labels[rows], np.full(len(rows), weight)

        self.model.fit(
            batches(),
            steps_per_epoch=len(steps),
            shuffle=False,
            verbose=0,
            callbacks=[*self.callbacks, EachStep(self, steps, after_step)],
        )
        self.callbacks = []
        self._sums.assign(self.sums())
        self.metric.reset_state()


class EachStep(keras.callbacks.Callback):
    """Sets the learning rate of each step, and asks the loop after it whether to go on."""

    def __init__(self, learner: KerasLearner, steps: list, after_step: Callable[..., bool]):
        super().__init__()
        self.learner, self.steps, self.after_step = learner, steps, after_step

    def on_train_batch_begin(self, batch, logs=None):
        self.loss_before = self.learner.sums()[0]
        self.model.optimizer.learning_rate = self.steps[batch][2]

    def on_train_batch_end(self, batch, logs=None):
        indices, n_global, lr = self.steps[batch]
        loss_sum = self.learner.sums()[0] - self.loss_before
        self.model.stop_training = self.after_step(len(indices), n_global, lr, lambda: float(loss_sum))


class Sums(keras.metrics.Metric):
    """Summed loss, correct answers and samples, for the loop's exact metrics; without those of weight 0."""

    def __init__(self):
        super().__init__(name="sums")
        self.total = self.add_variable((3,), "zeros", dtype="float64", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels = keras.ops.reshape(y_true, (-1,))
        counts = keras.ops.cast(keras.ops.any(sample_weight > 0), "float64")
        self.total.assign(self.total + counts * metric_sums(cross_entropy(y_pred, labels), y_pred, labels))

    def result(self):
        return self.total[0]
