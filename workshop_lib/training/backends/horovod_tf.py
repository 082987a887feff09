"""Horovod for TensorFlow, in a hand-written training loop. These calls turn a one-process script into one that uses it:

    hvd.init()                                                            joins the other processes
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")          gives each rank its own GPU
    hvd.broadcast_variables([v.value for v in variables], root_rank=0)    gives every rank the weights of rank 0
    tape = hvd.DistributedGradientTape(tape)                              averages the gradients

The broadcast takes `v.value`, because Horovod knows TensorFlow's variables but not Keras 3's.
"""

import os
from collections.abc import Mapping

# TensorFlow reads these variables when it starts: log errors only, and use as many threads as PyTorch would.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
import torch

from workshop_lib.training.backends.base import Backend, Replica, StepResult
from workshop_lib.training.backends.horovod_process import HorovodRanks
from workshop_lib.training.data.mnist import Split, classes_and_shape
from workshop_lib.training.models import keras_cnn, torch_cnn
from workshop_lib.training.options import TrainOptions

TEST_BATCH = 500

# Override the user's ~/.keras/keras.json, so that a run does what its record says.
keras.config.set_floatx("float32")
keras.config.set_image_data_format("channels_last")


class HorovodTf(HorovodRanks, Backend):
    name = "horovod-tf"
    framework = "TensorFlow"
    hvd = hvd

    def __init__(self, world, device):
        super().__init__(world, device)
        if gpus := tf.config.list_physical_devices("GPU"):
            own = gpus[world.local_rank % len(gpus)]
            tf.config.set_visible_devices([own] if device.type == "cuda" else [], "GPU")

    def replica(self, options: TrainOptions, train: Split, test: Split) -> Replica:
        return TensorflowReplica(options, self, train, test)

    def broadcast(self, variables: list) -> None:
        """Give every rank the values of rank 0. Blocks."""
        hvd.broadcast_variables([variable.value for variable in variables], root_rank=0)

    def sum(self, values: np.ndarray) -> np.ndarray:
        return hvd.allreduce(tf.constant(values), op=hvd.Sum, name="sum").numpy()


class TensorflowReplica:
    """The Replica (base.py) with our own loop and gradient tape.

    Creating it broadcasts the weights, so all ranks create it together.
    """

    live_bytes: dict[str, int] | None = None  # unknown, because TensorFlow does not report the memory of gradients

    def __init__(self, options: TrainOptions, backend: HorovodTf, train: Split, test: Split):
        self.backend = backend
        self.train_split = train
        self.test_split = test
        self.label_smoothing = options.label_smoothing
        by_adam = options.optimizer == "adam"
        # Adam's weight decay is separate from the gradient. SGD's is part of the gradient, so it goes through the loss.
        # Keras's own option for SGD would keep it separate.
        in_loss = 0.0 if by_adam else options.weight_decay
        classes, self.shape = classes_and_shape(train, test)
        self.model = keras_cnn.build(options.seed, classes, options.network, in_loss, self.shape)
        if by_adam:  # use PyTorch's epsilon, because Keras's default is 1e-7
            self.optimizer = keras.optimizers.Adam(epsilon=1e-8, weight_decay=options.weight_decay or None)
        else:
            self.optimizer = keras.optimizers.SGD(momentum=options.momentum, nesterov=options.nesterov)
        self._sums = tf.Variable(tf.zeros(3, tf.float64))
        self.prepare()
        self.network = options.network
        keras.utils.set_random_seed(options.seed + backend.world.rank)
        self._draws = [layer.seed_generator.state for layer in self.model.layers if hasattr(layer, "seed_generator")]
        for number, state in enumerate(self._draws):  # all ranks and layers draw different dropout masks
            state.assign([options.seed + backend.world.rank, number])

    def prepare(self) -> None:
        """Build the optimizer, and give every rank the weights and the optimizer state of rank 0."""
        self.optimizer.build(self.model.trainable_variables)
        self.backend.broadcast([*self.model.weights, *self.optimizer.variables])

    def reset_sums(self) -> None:
        self._sums.assign(tf.zeros(3, tf.float64))

    def sums(self) -> np.ndarray:
        return self._sums.numpy()

    def step(self, indices: np.ndarray, n_global: int, lr: float) -> StepResult:
        rows, counts = some_rows(indices)
        scale = counts * self.backend.world.world_size / n_global
        return StepResult(self._step(self.train_split.images[rows], self.train_split.labels[rows], scale, lr))

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None, None], tf.uint8),
            tf.TensorSpec([None], tf.uint8),
            tf.TensorSpec([], tf.float32),
            tf.TensorSpec([], tf.float32),
        ]
    )
    def _step(self, images, labels, scale, lr):
        """Do one optimizer step and return the summed loss. As in TorchReplica, world_size cancels in the mean.

        images: uint8 [n, height, width], labels: uint8 [n]. Samples with a scale of 0 do not count.
        """
        self.optimizer.learning_rate.assign(lr)
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            logits = self.model(images, training=True)
            scaled = cross_entropy(logits, labels, self.label_smoothing) * scale + sum(self.model.losses)
        tape = hvd.DistributedGradientTape(tape, op=hvd.Average, num_groups=1)
        gradients = tape.gradient(scaled, [variable.value for variable in variables])
        self.optimizer.apply(gradients, variables)
        loss_sum = cross_entropy(logits, labels)
        counts = tf.cast(scale > 0, tf.float64)
        self._sums.assign_add(counts * metric_sums(loss_sum, logits, labels))
        return loss_sum

    def evaluate(self) -> np.ndarray:
        images = self.test_split.images
        labels = self.test_split.labels
        sums = np.zeros(3)
        for first in range(0, len(labels), TEST_BATCH):
            rows = slice(first, first + TEST_BATCH)
            sums += self._evaluate(images[rows], labels[rows]).numpy()
        return sums

    @tf.function(input_signature=[tf.TensorSpec([None, None, None], tf.uint8), tf.TensorSpec([None], tf.uint8)])
    def _evaluate(self, images, labels):
        logits = self.model(images, training=False)
        return metric_sums(cross_entropy(logits, labels), logits, labels)

    def weights(self) -> list[np.ndarray]:
        return keras_cnn.to_torch([np.asarray(v) for v in self.model.trainable_variables], self.shape)

    def state(self) -> dict:
        """Return the state with PyTorch's parameter names, as in the checkpoint files of all other backends."""
        names = torch_cnn.build(seed=0, network=self.network).state_dict()
        model = {name: as_torch(weight) for name, weight in zip(names, self.weights(), strict=True)}
        return {"model": model, "optimizer": [as_torch(variable) for variable in self.optimizer.variables]}

    def load_state(self, state: Mapping) -> None:
        self.model.set_weights(keras_cnn.from_torch([w.numpy() for w in state["model"].values()], self.shape))
        for variable, value in zip(self.optimizer.variables, state["optimizer"], strict=True):
            variable.assign(value.numpy())

    def own_state(self) -> dict:
        return {"sums": torch.tensor(self.sums()), "draws": [as_torch(np.int64(state)) for state in self._draws]}

    def load_own_state(self, own: dict) -> None:
        self._sums.assign(own["sums"].numpy())
        if "draws" not in own:  # written on a different number of ranks: the masks begin anew
            return
        for state, saved in zip(self._draws, own["draws"], strict=True):
            state.assign(saved.numpy().astype(np.uint32))


def some_rows(indices: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the rows that a step computes, and whether they count: 1.0 or 0.0.

    A rank without a sample in a step still takes part in the step. It computes one row that does not count, because
    oneDNN's convolutions, which TensorFlow uses on some processors, fail on an empty batch.
    """
    return (indices, 1.0) if len(indices) else (np.zeros(1, dtype=np.int64), 0.0)


def as_torch(values) -> torch.Tensor:
    return torch.tensor(np.array(values, order="C"))


def cross_entropy(logits, labels, smoothing: float = 0.0):
    """Return the cross-entropy summed over the samples. TensorFlow does not smooth targets, so this function does."""
    classes = logits.shape[-1]
    targets = (1 - smoothing) * tf.one_hot(labels, classes) + smoothing / classes
    return tf.reduce_sum(tf.nn.softmax_cross_entropy_with_logits(targets, logits))


def metric_sums(loss, logits, labels):
    """Return the summed loss, the correct answers and the samples: float64 [3]."""
    correct = tf.argmax(logits, axis=1, output_type=tf.int32) == tf.cast(labels, tf.int32)
    counted = [loss, tf.math.count_nonzero(correct), tf.shape(labels)[0]]
    return tf.stack([tf.cast(value, tf.float64) for value in counted])
