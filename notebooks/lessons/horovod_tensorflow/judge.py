"""Judges the exercises of 04_horovod_tensorflow: `averaging` and `train`. Only the ranks import TensorFlow."""

import contextlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from workshop_lib.exercises.play import Edit, played
from workshop_lib.exercises.solutions import Solution

NOTEBOOK = "04_horovod_tensorflow"
GROUP_HINT = "Is a number of ranks written into your code? Take it from `hvd.size()`."
STEPS = 2  # steps of an optimizer without a model
SAMPLES = 64  # per rank in `train`, all in one batch
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
def horovod(comm):
    """Run Horovod inside a `with` block. All ranks leave it together, so a check sees a rank wait for a collective."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init(comm=comm)
    tf.config.run_functions_eagerly(True)  # tracing a graph takes longer than these few steps
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*does not apply to tf.data")  # tf.data need not run eagerly
            yield
        comm.Barrier()
    finally:
        tf.config.run_functions_eagerly(False)
        hvd.shutdown()


def optimizers() -> dict:
    """New optimizers of several kinds, by a few words on them."""
    from keras.optimizers import SGD, Adam

    return {"SGD with momentum": SGD(0.1, momentum=0.9), "Adam with clipped gradients": Adam(0.01, clipnorm=0.5)}


def play_averaging(averaging: Callable, comm) -> Iterator[tuple]:
    """Step optimizers with gradients that differ by rank."""
    plain = optimizers()
    with horovod(comm):
        made = {what: averaging(optimizer) for what, optimizer in optimizers().items()}
        right = all(isinstance(optimizer, type(plain[what])) for what, optimizer in made.items())
        weights = {}
        if all(comm.allgather(right)):
            weights = {what: stepped(optimizer, [comm.rank]) for what, optimizer in made.items()}
    advice = "did you forget `return`, or return the class instead of an object? Derive it from `type(optimizer)`."
    yield "it returns an optimizer of the same kind", right, "this isn't one:", advice
    for what in made:
        yield f"{what}: as with the mean of all gradients", weights[what]


def gradients(rank: int, step: int) -> list[np.ndarray]:
    random = np.random.default_rng([rank, step])
    return [random.normal(1 + rank, 1, shape).astype("float32") for shape in ((2, 3), (3,))]


def stepped(optimizer, ranks: Sequence[int]) -> np.ndarray:
    """All weights in one vector after STEPS steps with the mean of these ranks' gradients."""
    import keras
    import tensorflow as tf

    variables = [keras.Variable(np.zeros(g.shape, "float32")) for g in gradients(0, 0)]
    for step in range(STEPS):
        by_variable = zip(*(gradients(rank, step) for rank in ranks), strict=True)
        mean = [tf.constant(np.mean(of_ranks, axis=0)) for of_ranks in by_variable]
        optimizer.apply_gradients(zip(mean, variables, strict=True))  # as `fit` does; it ends in `apply`
    return _flat(variables)


def _flat(weights) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(w)) for w in weights])


MEAN = "hvd.grouped_allreduce(list(gradients), op=hvd.Average)"
averaging = played(
    "averaging",
    NOTEBOOK,
    play_averaging,
    [
        Edit(
            "each rank stepped alone. Does Keras call your method at all? (`fit` and `apply_gradients` both end in "
            "`apply`.) Average first, then call `super().apply`, once.",
            (MEAN, "gradients"),
        ),
        Edit(
            "you used the sum, which is `hvd.size()` times too large: use `op=hvd.Average`, or divide by `hvd.size()`.",
            ("hvd.Average", "hvd.Sum"),
        ),
        Edit(
            "the gradients are `hvd.size()` times too small: `hvd.Average` has already divided by the number of ranks.",
            (MEAN, f"[g / hvd.size() for g in {MEAN}]"),
        ),
    ],
    rounding=FLOAT32,
    watched=False,
    group_hint=GROUP_HINT,
    ready=join,
    timeout_s=LIMIT_S,
    stuck=STUCK,
    unknown="average the gradients as you get them, and only once: before anything is clipped, and before the step.",
)


def start(rank: int) -> list[np.ndarray]:
    """The weights of the linear model with which a rank begins."""
    random = np.random.default_rng(10 + rank)
    return [random.normal(size=shape).astype("float32") for shape in ((3, 2), (2,))]


def samples(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [n, 3] and labels [n]."""
    random = np.random.default_rng(1)
    return random.normal(size=(n, 3)).astype("float32"), random.integers(2, size=n)


def trained(train: Callable, comm) -> tuple[np.ndarray, np.ndarray | None]:
    """The weights that `train` reaches on this rank, and those that Keras finds in the file that it saves, if it does.

    It runs as if each rank had a host of its own: local_rank() is 0 everywhere.
    """
    import horovod.tensorflow as hvd
    import horovod.tensorflow.keras as hvd_keras
    import keras

    keras.utils.set_random_seed(1)  # Keras shuffles the samples
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.set_weights(start(comm.rank))
    local: dict[str, Any] = {"local_rank": lambda: 0, "local_size": lambda: 1}
    with tempfile.TemporaryDirectory(prefix="workshop-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "model.keras"
        with horovod(comm), mock.patch.multiple(hvd, **local), mock.patch.multiple(hvd_keras, **local):
            train(model, *samples(SAMPLES * comm.size), str(path), Solution(NOTEBOOK, "averaging").load())
        weights = _flat(model.get_weights())
        saved = None
        with contextlib.suppress(OSError, KeyError, ValueError):  # there is no file, or Keras did not write it
            model.load_weights(path)
            saved = _flat(model.get_weights())
    return weights, saved


def play_train(train: Callable, comm) -> Iterator[tuple]:
    weights, saved = trained(train, comm)
    text = f"all ranks have the weights of one process with {comm.size} times the learning rate"
    yield text, weights, "after training"
    observed = f"rank {comm.rank} {'saved nothing' if saved is None else 'saved'}:"
    yield "rank 0 alone saves", saved is not None, observed, "call `model.save(path)` on rank 0."
    advice = "call `model.save(path)` after training."
    yield "the file holds the trained weights", saved, "it holds others:", advice


train = played(
    "train",
    NOTEBOOK,
    play_train,
    [
        Edit(
            "give each rank its own part of the samples, such as `images[hvd.rank()::hvd.size()]`.",
            ("images[rank::size]", "images"),
            ("labels[rank::size]", "labels"),
        ),
        Edit(
            "the ranks begin with different weights: use `lesson.keras3.BroadcastVariables()` as a callback, or "
            "`hvd.broadcast_variables`.",
            ("[lesson.keras3.BroadcastVariables()]", "[]"),
        ),
        Edit(
            "nothing averages the gradients: give `compile` the optimizer that `averaging` returns.",
            ("averaging(keras", "(keras"),
        ),
        Edit(
            "you left the learning rate as it was, but the global batch has grown: multiply it by `hvd.size()`.",
            ("0.02 * size", "0.02"),
        ),
        Edit("Only rank 0 should save.", ("if rank == 0:", "if True:")),
    ],
    rounding=FLOAT32,
    watched=False,
    group_hint=GROUP_HINT,
    ready=join,
    timeout_s=LIMIT_S,
    stuck=STUCK,
    unknown="Each rank trains for two epochs on its own part of the samples, in batches of 64, with SGD, momentum 0.9 "
    "and `hvd.size()` times the learning rate. (`local_rank()` counts within a host.)",
)
