"""Judges the exercises of 04_horovod_tensorflow: `averaging` and `train`. Only the ranks import TensorFlow.

Running the known mistakes would take seconds, so they are recognized from what was observed.
"""

import contextlib
import functools
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np

from workshop_lib.judge import Edit, Exercise, Property, close
from workshop_lib.lessons.horovod_tensorflow import linear

NOTEBOOK = "04_horovod_tensorflow"
STEPS = 2  # steps of an optimizer without a model
LIMIT_S = 30.0  # a first step in TensorFlow can take seconds
FLOAT32 = 1e-4  # tolerance for the rounding of float32 over a few steps
STUCK = "one rank is waiting for the others: every rank must step, allreduce and broadcast, not rank 0 alone."


def join() -> None:
    """Import what the exercises need before a check's clock starts, after setting what TensorFlow reads at import."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for threads in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        os.environ.setdefault(threads, "1")
    import tensorflow as tf

    from workshop_lib.training.backends import keras3  # noqa: F401

    tf.get_logger().setLevel("ERROR")


@contextlib.contextmanager
def _horovod(comm):
    """Run Horovod inside a `with` block. All ranks leave it together, so a check sees a rank wait for a collective."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    tf.config.run_functions_eagerly(True)  # tracing a graph takes longer than these few steps
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*does not apply to tf.data")  # tf.data need not run eagerly
            yield
        comm.Barrier()
    finally:
        tf.config.run_functions_eagerly(False)
        hvd.shutdown()


class Stepped(NamedTuple):
    """One optimizer on one rank, and the weights that it reaches in STEPS steps."""

    is_kind: bool  # whether it has the class of the given optimizer
    lost: list[str]  # settings that differ from those of the given optimizer
    weights: np.ndarray
    expected: np.ndarray  # the weights after steps with the mean of all ranks' gradients


def _optimizers() -> list:
    from keras.optimizers import SGD, Adam

    return [SGD(0.1, momentum=0.9), Adam(0.01), SGD(0.1, clipnorm=0.5)]


_plain = functools.cache(_optimizers)  # cached, because only the settings of these optimizers are read


def observe_averaging(comm, function: Callable) -> list[Stepped]:
    """What each of `_optimizers` does with gradients that differ by rank, and, if that is right, a step of a model.

    Empty if `function` returned something other than an optimizer on any rank.
    """
    import keras

    with _horovod(comm):
        given = [function(optimizer) for optimizer in _optimizers()]
        if not all(comm.allgather(all(isinstance(optimizer, keras.optimizers.Optimizer) for optimizer in given))):
            return []
        stepped: list[Stepped] = []
        for at, (optimizer, plain) in enumerate(zip(given, _plain(), strict=True)):
            weights = _run(optimizer, [comm.rank])
            kind = isinstance(optimizer, type(plain))
            stepped.append(Stepped(kind, _lost(optimizer, plain), weights, _expected(at, comm.size)))
        right = all(close(seen.weights, seen.expected, FLOAT32) for seen in stepped)
        return [*stepped, _model_step(comm, function)] if all(comm.allgather(right)) else stepped


@functools.cache
def _expected(at: int, size: int) -> np.ndarray:
    """The weights after the plain optimizer's steps with the mean of all ranks' gradients, cached for all checks."""
    return _run(_optimizers()[at], range(size))


def _gradients(rank: int, step: int) -> list[np.ndarray]:
    random = np.random.default_rng([rank, step])
    return [random.normal(1 + rank, 1, shape).astype("float32") for shape in ((2, 3), (3,))]


def _lost(optimizer, plain) -> list[str]:
    config = optimizer.get_config()
    kept = {name: value for name, value in plain.get_config().items() if isinstance(value, int | float | np.number)}
    return [f"`{name}` was {kept[name]:g} and is {config.get(name)}" for name in kept if config.get(name) != kept[name]]


def _run(optimizer, ranks: Sequence[int]) -> np.ndarray:
    """All weights in one vector after STEPS steps with the mean of these ranks' gradients."""
    import keras
    import tensorflow as tf

    variables = [keras.Variable(np.zeros(g.shape, "float32")) for g in _gradients(0, 0)]
    for step in range(STEPS):
        by_variable = zip(*(_gradients(rank, step) for rank in ranks), strict=True)
        mean = [tf.constant(np.mean(of_ranks, axis=0)) for of_ranks in by_variable]
        optimizer.apply_gradients(zip(mean, variables, strict=True))
    return _flat(variables)


def _model_step(comm, function: Callable) -> Stepped:
    """The step that model.fit takes for a batch. Without averaging, it moves the weight from 0 to the rank's number."""
    import keras

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(function(keras.optimizers.SGD(0.5)), "mse", jit_compile=False)
    model.train_on_batch(np.ones((1, 1)), np.full((1, 1), comm.rank))
    return Stepped(True, [], _flat(model.get_weights()), np.array([(comm.size - 1) / 2]))


WHAT = ("SGD with momentum", "Adam", "SGD with clipped gradients", "a model's step")
NO_OPTIMIZER = "this isn't one. Did you forget `return`, or return the class instead of an object?"
SETTINGS = "`from_config` copies all settings."
OWN_STEP = (
    "each rank stepped alone. Does Keras call your method at all? (`fit` and `apply_gradients` both end in `apply`.) "
    "Average first, then call `super().apply`, once."
)
SUM = "you used the sum, which is `hvd.size()` times too large: use `op=hvd.Average`, or divide by `hvd.size()`."
NO_MEAN = "average the gradients as you get them, and only once: before anything is clipped, and before the step."


def averaging_properties(observations: list[list[Stepped]]) -> Iterator[Property]:
    size = len(observations)
    yield Property("it returns an optimizer", all(observations), NO_OPTIMIZER)
    by_optimizer = list(zip(*observations, strict=True))
    stepped = [row for rows in by_optimizer for row in rows]
    hint = "if you get an Adam, return an Adam: derive your class from `type(optimizer)`."
    yield Property("it's the same kind of optimizer", all(row.is_kind for row in stepped), hint)
    lost = [text for row in stepped for text in row.lost]
    yield Property("with its settings", not lost, f"{lost[0]}: {SETTINGS}" if lost else "")
    for what, rows in zip(WHAT, by_optimizer, strict=False):
        weights = rows[0].weights
        expected = rows[0].expected
        same = all(np.array_equal(row.weights, weights) for row in rows)
        yield Property(f"{what}: the ranks agree", same, OWN_STEP)
        hint = SUM if close(weights, size * expected, FLOAT32) else NO_MEAN
        yield Property(f"{what}: as with the mean of all gradients", close(weights, expected, FLOAT32), hint)


MEAN = "hvd.grouped_allreduce(list(gradients), op=hvd.Average)"
MADE = "Averaging.from_config(optimizer.get_config())"
averaging = Exercise(
    "averaging",
    observe_averaging,
    averaging_properties,
    notebook=NOTEBOOK,
    edits=[
        Edit(NO_OPTIMIZER, (MADE, "Averaging")),
        Edit(SETTINGS, (MADE, "Averaging()")),
        Edit(OWN_STEP, (MEAN, "gradients")),
        Edit(SUM, ("hvd.Average", "hvd.Sum")),
        Edit(NO_MEAN, (MEAN, f"[g / hvd.size() for g in {MEAN}]")),
    ],
    ready=join,
    timeout_s=LIMIT_S,
    stuck=STUCK,
)


def _flat(weights) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(w)) for w in weights])


class TrainedSteps(NamedTuple):
    """What training did on one rank."""

    steps: list[list[int]]  # the numbers of the samples in each step
    weights: list[np.ndarray]  # the weights before each step, and after the last one
    saves: bool
    saved: np.ndarray | None  # the weights in the file; None if it cannot be loaded


def observe_train(comm, function: Callable) -> TrainedSteps:
    """What `train` does on this rank, as if each rank ran on a host of its own: local_rank() is 0 everywhere."""
    import horovod.tensorflow as hvd
    import horovod.tensorflow.keras as hvd_keras

    steps: list[list[int]] = []
    weights: list[np.ndarray] = []
    model = _watched(linear.start(comm.rank), linear.SAMPLES * comm.size, steps, weights)
    local = {"local_rank": mock.Mock(return_value=0), "local_size": mock.Mock(return_value=1)}
    with tempfile.TemporaryDirectory(prefix="workshop-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "model.keras"
        with _horovod(comm), mock.patch.multiple(hvd, **local), mock.patch.multiple(hvd_keras, **local):
            function(model, *linear.samples(linear.SAMPLES * comm.size, seed=1), str(path))
        weights.append(_flat(model.get_weights()))
        saves = any(Path(folder).iterdir())
        saved = None
        with contextlib.suppress(OSError, KeyError, ValueError):  # there is no file, or Keras did not write it
            model.load_weights(path)
            saved = _flat(model.get_weights())
    return TrainedSteps(steps, weights, saves, saved)


def _watched(start: list, samples: int, steps: list, weights_before: list):
    """A linear model that records the numbers of the samples in each training step, and the weights before the step."""
    import keras
    import tensorflow as tf

    class Watched(keras.Sequential):
        def train_step(self, data):
            inputs = keras.utils.unpack_x_y_sample_weight(data)[0]
            recorded = tf.numpy_function(record, [inputs, *(w.value for w in self.weights)], tf.int64)
            with tf.control_dependencies([recorded]):
                return super().train_step(data)

    def record(inputs, *weights):
        steps.append([round(x * samples) for x in inputs[:, 0]])
        weights_before.append(_flat(weights))
        return np.int64(0)

    model = Watched([keras.Input((3,)), keras.layers.Dense(2)])
    model.set_weights(start)
    return model


UNSHARED = (
    "give each rank its own part, such as `images[hvd.rank()::hvd.size()]`. (`local_rank()` counts within a host, and "
    "here each rank is alone on its host.)"
)
NO_BROADCAST = (
    "some rank begins with other weights: use `keras3.BroadcastVariables()` as a callback, or call "
    "`hvd.broadcast_variables` before the first step, with rank 0 as the root."
)
UNAVERAGED = "nothing averages the gradients: under Keras 3 `keras3.DistributedOptimizer` does, Horovod's doesn't."
RATE = (
    "the global batch has grown, so multiply the learning rate by `hvd.size()`, once. All else stays: SGD with "
    "momentum 0.9, the same loss, two epochs."
)
ALL_SAVE = "another rank saved as well; on a shared file system they'd all write one file. Only rank 0 should."


def train_properties(observations: list[TrainedSteps]) -> Iterator[Property]:
    first = observations[0]
    size = len(observations)
    trains = all(seen.steps for seen in observations)
    yield Property("every rank trains", trains, "some rank took no step: call `model.fit` on every rank.")
    used = [sample for seen in observations for step in seen.steps for sample in step]
    once = np.all(np.bincount(used, minlength=linear.SAMPLES * size) == linear.EPOCHS)
    yield Property("each sample is trained on once per epoch, by one rank", bool(once), UNSHARED)
    most = max(len(step) for seen in observations for step in seen.steps)
    right = most == linear.SAMPLES and all(len(seen.steps) == linear.EPOCHS for seen in observations)
    hint = f"a step takes {linear.SAMPLES} samples on each rank, and yours took {most}: leave `batch_size` as it is."
    yield Property(f"each rank takes batches of {linear.SAMPLES}", right, hint)
    right = all(close(seen.weights[0], _flat(linear.start(0)), 1e-7) for seen in observations)
    yield Property("all ranks begin with rank 0's weights", right, NO_BROADCAST)
    trained = first.weights[-1]
    same = all(np.array_equal(seen.weights[-1], trained) for seen in observations)
    yield Property("the ranks agree after training", same, UNAVERAGED)
    text = f"the weights are those of one process with all samples and {size} times the learning rate"
    yield Property(text, close(trained, linear.descend(size, linear.LR * size), FLOAT32), RATE)
    yield Property("rank 0 saves", bool(first.saves), "rank 0 wrote no file: `model.save(path)`.")
    yield Property("no other rank does", not any(seen.saves for seen in observations[1:]), ALL_SAVE)
    yield Property("the file holds the trained weights", close(first.saved, trained), "save after training.")


train = Exercise(
    "train",
    observe_train,
    train_properties,
    notebook=NOTEBOOK,
    edits=[
        Edit(UNSHARED, ("images[rank::size], labels[rank::size]", "images, labels")),
        Edit(NO_BROADCAST, ("[keras3.BroadcastVariables()]", "[]")),
        Edit(UNAVERAGED, ("keras3.DistributedOptimizer(", "(")),
        Edit(RATE, ("0.02 * size", "0.02")),
        Edit(ALL_SAVE, ("if rank == 0:", "if True:")),
    ],
    ready=join,
    timeout_s=LIMIT_S,
    stuck=STUCK,
)
