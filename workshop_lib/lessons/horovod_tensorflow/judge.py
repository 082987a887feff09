"""Judges the exercises of 04_horovod_tensorflow: `averaging` and `train`. Only the ranks import TensorFlow.

Running the known mistakes would take seconds, so they are recognized from what was observed.
"""

import contextlib
import functools
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np

from workshop_lib.judge import Exercise, Property, close
from workshop_lib.lessons.horovod_tensorflow import linear

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
    alone: np.ndarray  # the weights after steps with this rank's own gradients


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
        own = (comm.rank,)
        all_ranks = tuple(range(comm.size))
        for at, (optimizer, plain) in enumerate(zip(given, _plain(), strict=True)):
            weights = _run(optimizer, own), _reference(at, all_ranks), _reference(at, own)
            stepped.append(Stepped(isinstance(optimizer, type(plain)), _lost(optimizer, plain), *weights))
        right = all(close(seen.weights, seen.expected, FLOAT32) for seen in stepped)
        return [*stepped, _model_step(comm, function)] if all(comm.allgather(right)) else stepped


@functools.cache
def _reference(at: int, ranks: tuple[int, ...]) -> np.ndarray:
    """The weights after the plain optimizer's steps with the mean of these ranks' gradients, cached for all checks."""
    return _run(_optimizers()[at], ranks)


def _gradients(rank: int, step: int) -> list[np.ndarray]:
    random = np.random.default_rng([rank, step])
    return [random.normal(1 + rank, 1, shape).astype("float32") for shape in ((2, 3), (3,))]


def _lost(optimizer, plain) -> list[str]:
    config = optimizer.get_config()
    kept = {name: value for name, value in plain.get_config().items() if isinstance(value, int | float | np.number)}
    return [f"`{name}` was {kept[name]:g} and is {config.get(name)}" for name in kept if config.get(name) != kept[name]]


def _run(optimizer, ranks: tuple[int, ...]) -> np.ndarray:
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
    return Stepped(True, [], _flat(model.get_weights()), np.array([(comm.size - 1) / 2]), np.array([comm.rank]))


NO_OPTIMIZER_HINT = "this isn't one. Did you forget `return`, or return the class instead of an object?"
KIND_HINT = "if you get an Adam, return an Adam: derive your class from `type(optimizer)`."
SETTINGS_HINT = "`from_config` copies all settings."
OWN_STEP_HINT = (
    "each rank stepped alone. Does Keras call your method at all? (`fit` and `apply_gradients` both end in `apply`.) "
    "Average first, then call `super().apply`."
)
TWO_STEPS_HINT = "does each rank add a step of its own? Average first, then call `super().apply`, once."
SUM_HINT = "you used the sum, which is `hvd.size()` times too large: use `op=hvd.Average`, or divide by `hvd.size()`."
TWICE_HINT = "the gradients are `hvd.size()` times too small: `hvd.Average` has already divided by the number of ranks."
MEAN_HINTS = {  # keys: what fails first
    "SGD with momentum": "",
    "Adam": "averaging the weights after each rank's own step is a different algorithm: average the gradients first.",
    "SGD with clipped gradients": "each rank clipped its own gradients too early: average first, then clip the mean.",
    "a model's step": "",
}


def averaging_properties(observations: list[list[Stepped]]) -> Iterator[Property]:
    size = len(observations)
    yield Property("it returns an optimizer", all(observations), NO_OPTIMIZER_HINT)
    by_optimizer = list(zip(*observations, strict=True))
    stepped = [row for rows in by_optimizer for row in rows]
    yield Property("it's the same kind of optimizer", all(row.is_kind for row in stepped), KIND_HINT)
    lost = [text for row in stepped for text in row.lost]
    yield Property("with its settings", not lost, f"{lost[0]}: {SETTINGS_HINT}" if lost else "")
    for rows, (what, hint) in zip(by_optimizer, MEAN_HINTS.items(), strict=False):
        same = all(np.array_equal(row.weights, rows[0].weights) for row in rows)
        alone = all(close(row.weights, row.alone, FLOAT32) for row in rows)
        yield Property(f"{what}: the ranks agree", same, OWN_STEP_HINT if alone else TWO_STEPS_HINT)
        weights = rows[0].weights
        expected = rows[0].expected
        for factor, factor_hint in ((size, SUM_HINT), (1 / size, TWICE_HINT)):
            hint = factor_hint if close(weights, factor * expected, FLOAT32) else hint
        yield Property(f"{what}: as with the mean of all gradients", close(weights, expected, FLOAT32), hint)


averaging = Exercise("averaging", observe_averaging, averaging_properties, ready=join, timeout_s=LIMIT_S, stuck=STUCK)


def _flat(weights) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(w)) for w in weights])


class TrainedSteps(NamedTuple):
    """What training did on one rank."""

    steps: list[list[int]]  # the numbers of the samples in each step
    weights: list[np.ndarray]  # the weights before each step, and after the last one
    local: bool  # whether local_rank or local_size was called
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
        local_used = any(each.called for each in local.values())
        saves = any(Path(folder).iterdir())
        saved = None
        with contextlib.suppress(OSError, KeyError, ValueError):  # there is no file, or Keras did not write it
            model.load_weights(path)
            saved = _flat(model.get_weights())
    return TrainedSteps(steps, weights, local_used, saves, saved)


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


LOCAL_HINT = "`local_rank()` counts within a host, and here each rank is alone on its host. Use `rank()` and `size()`."
UNSHARED_HINT = "every rank trains on all samples: give each its own part, such as `images[hvd.rank()::hvd.size()]`."
MISSING_HINT = "some of the samples are never used. Do all ranks take the same part?"
OVERLAP_HINT = "some samples are used more often than others: the parts overlap."
ROOT_RANK_HINT = "all ranks begin with the same weights, but not with rank 0's: is `root_rank` 0?"
LATE_HINT = "the ranks agree only from the second step on: broadcast before the first one (`on_train_begin`)."
NO_BROADCAST_HINT = (
    "the ranks begin with different weights: use `keras3.BroadcastVariables()` as a callback, or "
    "`hvd.broadcast_variables`."
)
UNAVERAGED_HINT = "nothing averages the gradients: under Keras 3 `keras3.DistributedOptimizer` does, Horovod's doesn't."
RATE_HINTS = {  # keys: the power of the number of ranks by which the learning rate was scaled
    0: "you left the learning rate as it was, but the global batch has grown: multiply it by `hvd.size()`.",
    0.5: "you scaled the learning rate with the square root of the ranks; this exercise asks for `0.02 * hvd.size()`.",
    2: "the steps are `hvd.size()` times too large: did you scale twice, or sum where you meant the mean?",
}
OTHER_WEIGHTS_HINT = "the ranks agree on wrong weights. Is it SGD with momentum 0.9, the same loss, two epochs?"
UNSAVED_HINT = "rank 0 wrote no file: `model.save(path)`."
ALL_SAVE_HINT = "another rank saved as well; on a shared file system they'd all write one file. Only rank 0 should."
EARLY_SAVE_HINT = "call `model.save(path)` after training."


def train_properties(observations: list[TrainedSteps]) -> Iterator[Property]:
    first = observations[0]
    size = len(observations)
    trains = all(seen.steps for seen in observations)
    yield Property("every rank trains", trains, "some rank took no step: call `model.fit` on every rank.")
    used = [sum(seen.steps, []) for seen in observations]
    counts = np.bincount(sum(used, []), minlength=linear.SAMPLES * size)
    if any(seen.local for seen in observations):
        hint = LOCAL_HINT
    elif all(set(samples) == set(range(len(counts))) for samples in used):
        hint = UNSHARED_HINT
    else:
        hint = OVERLAP_HINT if np.all(counts) else MISSING_HINT
    yield Property("each sample is trained on once per epoch, by one rank", bool(np.all(counts == linear.EPOCHS)), hint)
    most = max(len(step) for seen in observations for step in seen.steps)
    right = most == linear.SAMPLES and all(len(seen.steps) == linear.EPOCHS for seen in observations)
    hint = f"a step takes {linear.SAMPLES} samples on each rank, and yours took {most}: leave `batch_size` as it is."
    yield Property(f"each rank takes batches of {linear.SAMPLES}", right, hint)
    same, late = (all(close(seen.weights[i], first.weights[i], 0.0) for seen in observations) for i in (0, 1))
    hint = ROOT_RANK_HINT if same else LATE_HINT if late else NO_BROADCAST_HINT
    right = all(close(seen.weights[0], _flat(linear.start(0)), 1e-7) for seen in observations)
    yield Property("all ranks begin with rank 0's weights", right, hint)
    trained = first.weights[-1]
    same = all(np.array_equal(seen.weights[-1], trained) for seen in observations)
    yield Property("the ranks agree after training", same, UNAVERAGED_HINT)
    rates = [power for power in RATE_HINTS if close(trained, linear.descend(size, linear.LR * size**power), FLOAT32)]
    text = f"the weights are those of one process with all samples and {size} times the learning rate"
    hint = RATE_HINTS[rates[0]] if rates else OTHER_WEIGHTS_HINT
    yield Property(text, close(trained, linear.descend(size, linear.LR * size), FLOAT32), hint)
    yield Property("rank 0 saves", bool(first.saves), UNSAVED_HINT)
    yield Property("no other rank does", not any(seen.saves for seen in observations[1:]), ALL_SAVE_HINT)
    yield Property("the file holds the trained weights", close(first.saved, trained), EARLY_SAVE_HINT)


train = Exercise("train", observe_train, train_properties, ready=join, timeout_s=LIMIT_S, stuck=STUCK)
