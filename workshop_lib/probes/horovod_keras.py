"""Rank side of the exercises in 04_horovod_tensorflow.

TensorFlow is imported on the ranks alone, when a probe runs: the notebook's kernel, which names the probes,
does without it.
"""

import contextlib
import shutil
import tempfile
from pathlib import Path

import numpy as np

SAMPLES, EPOCHS, LR, MOMENTUM = 4, 3, 0.1, 0.9  # of each rank, in one batch
STEPS = 2  # of an optimizer alone


def join() -> None:
    """Imports what the probes need, so that their own time is short."""
    from workshop_lib.training.backends import horovod_tf, keras3  # noqa: F401

    horovod_tf.tf.get_logger().setLevel("ERROR")


@contextlib.contextmanager
def _horovod(comm):
    """All ranks leave it together: one that still waits for a collective is seen to wait."""
    import horovod.tensorflow as hvd

    hvd.init()
    try:
        yield
        comm.Barrier()
    finally:
        hvd.shutdown()


def averaging(comm, function) -> list[dict]:
    """What optimizers do that `function` made of Keras's own, on gradients that differ by rank."""
    with _horovod(comm):
        facts = [_stepped(comm, function, make) for make in _optimizers()]
        usable = all(row["optimizer"] for row in facts)
        return [*facts, _fitted(comm, function) if usable else {}]


def _optimizers() -> list:
    import keras

    return [
        lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        lambda: keras.optimizers.Adam(0.01),
        lambda: keras.optimizers.SGD(0.1, clipnorm=0.5),
    ]


def _gradients(rank: int, step: int) -> list[np.ndarray]:
    random = np.random.default_rng([rank, step])
    return [random.normal(1 + rank, 1, shape).astype("float32") for shape in ((2, 3), (3,))]


def _mean_gradients(size: int, step: int) -> list[np.ndarray]:
    of_ranks = [_gradients(rank, step) for rank in range(size)]
    return [np.mean(gradients, axis=0) for gradients in zip(*of_ranks, strict=True)]


def _stepped(comm, function, make) -> dict:
    import keras

    plain = make()
    given = function(make())
    size = comm.size
    if not isinstance(given, keras.optimizers.Optimizer):
        return {"type": type(given).__name__, "kind": type(plain).__name__, "optimizer": False}
    own = [_gradients(comm.rank, step) for step in range(STEPS)]
    mean = [_mean_gradients(size, step) for step in range(STEPS)]
    of_rank = [_run(make(), [_gradients(rank, step) for step in range(STEPS)]) for rank in range(size)]
    return {
        "type": type(given).__name__,
        "kind": type(plain).__name__,
        "optimizer": True,
        "is_kind": isinstance(given, type(plain)),
        "settings": _settings(plain),
        "got_settings": _settings(given),
        "got": _run(given, own),
        "expected": _run(make(), mean),
        "summed": _run(make(), [[g * size for g in gradients] for gradients in mean]),
        "alone": of_rank[comm.rank],
        "clipped_first": _run(make(), mean, before=_clipped_mean(size)) if plain.clipnorm else None,
        "weights_averaged": np.mean(of_rank, axis=0),
        "size": size,
    }


def _clipped_mean(size: int):
    """The gradients of a step when each rank clips its own to norm 0.5 before they are averaged."""

    def of_step(step: int) -> list[np.ndarray]:
        clipped = [[g * min(1, 0.5 / np.linalg.norm(g)) for g in _gradients(rank, step)] for rank in range(size)]
        return [np.mean(of_ranks, axis=0).astype("float32") for of_ranks in zip(*clipped, strict=True)]

    return of_step


def _settings(optimizer) -> dict:
    """The numbers of an optimizer's configuration."""
    config = optimizer.get_config()
    return {name: float(v) for name, v in config.items() if isinstance(v, (int, float, np.number))}


def _run(optimizer, gradients: list, before=None) -> np.ndarray:
    """All weights in one vector after a step with each of these gradients."""
    import keras
    import tensorflow as tf

    variables = [keras.Variable(np.zeros(g.shape, "float32")) for g in gradients[0]]
    for step, of_step in enumerate(gradients):
        if before is not None:
            of_step = before(step)
        optimizer.apply_gradients(zip([tf.constant(g) for g in of_step], variables, strict=True))
    return np.concatenate([np.ravel(np.asarray(variable)) for variable in variables])


def _fitted(comm, function) -> dict:
    """One step of model.fit, which by itself would take the weight from 0 to the number of the rank."""
    import keras

    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), dense])
    model.compile(function(keras.optimizers.SGD(0.5)), "mse", jit_compile=False)
    one = np.ones((1, 1), "float32")
    model.fit(one, comm.rank * one, verbose=0)
    return {"weight": float(model.get_weights()[0][0, 0]), "size": comm.size}


def train(comm, function) -> dict:
    """What training with `function` did: samples, weights, files and the accuracy that it returned."""
    join()
    folder = Path(tempfile.mkdtemp(prefix="workshop-"))
    try:
        with _horovod(comm), _one_rank_a_host() as asked:
            return _trained(comm, function, folder) | {"asked": sorted(asked)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _one_rank_a_host():
    """Each rank as if on a host of its own: local_rank() is 0 on all. Yields the names that were called."""
    import horovod.tensorflow as hvd
    import horovod.tensorflow.keras as hvd_keras

    asked, kept = set(), []

    def stand_in(name, value):
        def called():
            asked.add(name)
            return value

        return called

    for module in (hvd, hvd_keras):
        for name, value in (("local_rank", 0), ("local_size", 1)):
            kept.append((module, name, getattr(module, name)))
            setattr(module, name, stand_in(name, value))
    try:
        yield asked
    finally:
        for module, name, value in kept:
            setattr(module, name, value)


def _trained(comm, function, folder: Path) -> dict:
    images, labels = _samples(SAMPLES * comm.size, seed=1)
    start = _start(0)
    expected = descend(start, images, labels, LR * comm.size)
    test_images, _ = _samples(2 * comm.size + 1, seed=2)
    test_labels = np.argmax(test_images @ expected[0] + expected[1], axis=1)
    test_labels[0] = 1 - test_labels[0]  # the trained network gets all right but the first
    model = _watched(_start(comm.rank))
    path = folder / "model.keras"
    returned = function(model, images, labels, test_images, test_labels, LR, SAMPLES, EPOCHS, str(path))
    trained = [np.asarray(w) for w in model.get_weights()]
    shards = [np.arange(len(test_labels))[rank :: comm.size] for rank in range(comm.size)]
    right = np.argmax(test_images @ trained[0] + trained[1], axis=1) == test_labels
    return {
        "size": comm.size,
        "samples": len(labels),
        "steps": model.steps,  # [(start of the row, samples)] of each
        "start": _flat(start),
        "began": model.began,
        "second": model.second,
        "trained": _flat(trained),
        "expected": _flat(expected),
        "unscaled": _flat(descend(start, images, labels, LR)),
        "root": _flat(descend(start, images, labels, LR * comm.size**0.5)),
        "summed": _flat(descend(start, images, labels, LR * comm.size**2)),
        "files": sorted(file.name for file in folder.rglob("*") if file.is_file()),
        "saved": _saved(path),
        "returned": _plain(returned),
        "accuracy": float(np.mean(right)),
        "own_accuracy": float(np.mean(right[shards[comm.rank]])),
        "mean_accuracy": float(np.mean([np.mean(right[shard]) for shard in shards])),
        "right": int(np.sum(right)),
    }


def _samples(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """float32 [n, 3], whose first column is the sample's number divided by n, and labels 0 or 1, [n]."""
    random = np.random.default_rng(seed)
    images = random.normal(size=(n, 3)).astype("float32")
    images[:, 0] = np.arange(n) / n
    return images, random.integers(2, size=n)


def _start(rank: int) -> list[np.ndarray]:
    random = np.random.default_rng(10 + rank)
    return [random.normal(size=shape).astype("float32") for shape in ((3, 2), (2,))]


def descend(start: list, images: np.ndarray, labels: np.ndarray, lr: float) -> list[np.ndarray]:
    """Weights after EPOCHS steps of SGD with momentum on all samples, on one process, in float64."""
    weights = [w.astype(float) for w in start]
    velocity = [np.zeros_like(w) for w in weights]
    for _ in range(EPOCHS):
        logits = images @ weights[0] + weights[1]
        error = np.exp(logits - logits.max(axis=1, keepdims=True))
        error /= error.sum(axis=1, keepdims=True)
        error[np.arange(len(labels)), labels] -= 1
        gradients = [images.T @ error / len(labels), error.mean(axis=0)]
        velocity = [MOMENTUM * v - lr * g for v, g in zip(velocity, gradients, strict=True)]
        weights = [w + v for w, v in zip(weights, velocity, strict=True)]
    return weights


def _watched(start: list):
    """A linear model that notes the samples of each training step, and its weights before the first two."""
    import keras
    import tensorflow as tf

    class Watched(keras.Sequential):
        def train_step(self, data):
            inputs = keras.utils.unpack_x_y_sample_weight(data)[0]
            noted = tf.numpy_function(self.note, [inputs, *(w.value for w in self.weights)], tf.int64)
            with tf.control_dependencies([noted]):
                return super().train_step(data)

        def note(self, inputs, *weights):
            if len(self.steps) < 2:
                at = "second" if self.steps else "began"
                object.__setattr__(self, at, _flat(weights))
            self.steps.append(np.asarray(inputs)[:, 0].tolist())
            return np.int64(0)

    model = Watched([keras.Input((3,)), keras.layers.Dense(2)])
    model.set_weights(start)
    # Keras would wrap a list that is set as an attribute, and track it.
    for name, value in (("steps", []), ("began", None), ("second", None)):
        object.__setattr__(model, name, value)
    return model


def _flat(weights) -> np.ndarray:
    return np.concatenate([np.ravel(w) for w in weights])


def _saved(path: Path) -> np.ndarray | None:
    """The weights in the file, or None when it cannot be read as a model of Keras."""
    import zipfile

    import h5py

    try:
        with zipfile.ZipFile(path) as archive, archive.open("model.weights.h5") as stored:
            found = []
            with h5py.File(stored) as file:
                file["layers"].visititems(
                    lambda _, item: found.append(np.asarray(item)) if isinstance(item, h5py.Dataset) else None
                )
            return _flat(found)
    except (OSError, KeyError, zipfile.BadZipFile):
        return None


def _plain(returned):
    """A number as Python's; anything else as it is, if it can be sent."""
    try:
        return float(returned)
    except (TypeError, ValueError):
        return type(returned).__name__
