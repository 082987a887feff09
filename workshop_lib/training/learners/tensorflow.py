"""One rank's training in TensorFlow, with a loop and a tape of our own."""

from collections.abc import Callable, Iterable

import keras
import numpy as np
import tensorflow as tf
import torch

from workshop_lib.data.mnist import Split
from workshop_lib.models import keras_cnn, torch_cnn
from workshop_lib.training.options import TrainOptions

TEST_BATCH = 500


class TensorflowLearner:
    """See learners/__init__.py. All ranks create it together: the backend broadcasts the weights."""

    live_bytes = None  # TensorFlow does not say what it holds of gradients

    def __init__(self, options: TrainOptions, backend, train: Split, test: Split):
        self.backend = backend
        self.train_split, self.test_split = train, test
        self.model = keras_cnn.build(options.seed)
        if options.optimizer == "adam":
            self.optimizer = keras.optimizers.Adam(epsilon=1e-8)  # torch's, where Keras has 1e-7
        else:
            self.optimizer = keras.optimizers.SGD(momentum=options.momentum, nesterov=options.nesterov)
        self.prepare()
        keras.utils.set_random_seed(options.seed + backend.world.rank)
        self._sums = tf.Variable(tf.zeros(3, tf.float64))

    def prepare(self) -> None:
        """Everybody starts alike."""
        self.optimizer.build(self.model.trainable_variables)
        self.backend.broadcast([*self.model.variables, *self.optimizer.variables])

    def reset_sums(self) -> None:
        self._sums.assign(tf.zeros(3, tf.float64))

    def sums(self) -> np.ndarray:
        return self._sums.numpy()

    def train(self, steps: Iterable, after_step: Callable[..., bool]) -> None:
        images, labels = self.train_split.images, self.train_split.labels
        for indices, n_global, lr in steps:
            rows, counts = some_rows(indices)
            scale = counts * self.backend.world.world_size / n_global
            loss_sum = self._step(images[rows], labels[rows], scale, lr)
            if after_step(len(indices), n_global, lr, lambda loss_sum=loss_sum: float(loss_sum)):
                break

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 28, 28], tf.uint8),
            tf.TensorSpec([None], tf.uint8),
            tf.TensorSpec([], tf.float32),
            tf.TensorSpec([], tf.float32),
        ]
    )
    def _step(self, images, labels, scale, lr):
        """One optimizer step; as in the torch learner, world_size cancels in the mean over ranks.

        Samples with a scale of 0 do not count.
        """
        self.optimizer.learning_rate.assign(lr)
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            logits = self.model(images, training=True)
            loss_sum = cross_entropy(logits, labels)
            scaled = loss_sum * scale
        tape = self.backend.wrap_tape(tape)
        gradients = tape.gradient(scaled, [variable.value for variable in variables])
        self.optimizer.apply(gradients, variables)
        counts = tf.cast(scale > 0, tf.float64)
        self._sums.assign_add(counts * metric_sums(loss_sum, logits, labels))
        return loss_sum

    def evaluate(self) -> np.ndarray:
        images, labels = self.test_split.images, self.test_split.labels
        sums = np.zeros(3)
        for first in range(0, len(labels), TEST_BATCH):
            rows = slice(first, first + TEST_BATCH)
            sums += self._evaluate(images[rows], labels[rows]).numpy()
        return sums

    @tf.function(input_signature=[tf.TensorSpec([None, 28, 28], tf.uint8), tf.TensorSpec([None], tf.uint8)])
    def _evaluate(self, images, labels):
        logits = self.model(images, training=False)
        return metric_sums(cross_entropy(logits, labels), logits, labels)

    def weights(self) -> list[np.ndarray]:
        return keras_cnn.to_torch([np.asarray(v) for v in self.model.trainable_variables])

    def state(self) -> dict:
        """In torch's words, so that the file of a checkpoint is the same for every backend."""
        names = torch_cnn.build(seed=0).state_dict()
        model = {name: as_torch(weight) for name, weight in zip(names, self.weights(), strict=True)}
        return {"model": model, "optimizer": [as_torch(variable) for variable in self.optimizer.variables]}

    def load_state(self, state: dict) -> None:
        self.model.set_weights(keras_cnn.from_torch([w.numpy() for w in state["model"].values()]))
        for variable, value in zip(self.optimizer.variables, state["optimizer"], strict=True):
            variable.assign(value.numpy())

    def own_state(self) -> dict:
        return {"sums": torch.tensor(self.sums())}

    def load_sums(self, sums: torch.Tensor) -> None:
        self._sums.assign(sums.numpy())

    def load_own_state(self, own: dict) -> None:
        self.load_sums(own["sums"])


def some_rows(indices: np.ndarray) -> tuple[np.ndarray, float]:
    """The rows that a step computes, and whether they count, 1.0 or 0.0.

    A rank without a sample in a step still takes part in it. It computes a row that does not count, because
    oneDNN's convolutions, with which TensorFlow computes on some processors, fail on an empty batch.
    """
    return (indices, 1.0) if len(indices) else (np.zeros(1, dtype=np.int64), 0.0)


def as_torch(values) -> torch.Tensor:
    return torch.tensor(np.ascontiguousarray(values))


def cross_entropy(logits, labels):
    """Summed over the samples."""
    return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(labels, tf.int32), logits))


def metric_sums(loss, logits, labels):
    """Summed loss, correct answers and samples: float64 [3]."""
    correct = tf.argmax(logits, axis=1, output_type=tf.int32) == tf.cast(labels, tf.int32)
    counted = [loss, tf.math.count_nonzero(correct), tf.shape(labels)[0]]
    return tf.stack([tf.cast(value, tf.float64) for value in counted])
