"""The exercises of 04_horovod_tensorflow.

TensorFlow is imported on the ranks alone, when they observe: the notebook's kernel does without it. To train takes
seconds, so the known mistakes of `train` are not run by its check: what the ranks did says which one it is.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from workshop_lib.exercises import Exercise, Mistake, Property, close

SAMPLES, EPOCHS, LR, MOMENTUM = 4, 3, 0.1, 0.9  # of each rank, in one batch
STEPS = 2  # of an optimizer alone
LIMIT_S = 30.0  # TensorFlow turns functions into graphs, which takes seconds
FLOAT32 = 1e-4  # rounding of float32 over some steps
OPTIMIZERS = ("SGD with momentum", "Adam", "SGD with clipped gradients")


def join() -> None:
    """Imports what the exercises need, so that their own time is short."""
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


@dataclass(frozen=True)
class Stepped:
    """One optimizer on one rank: its settings, and a network's weights after STEPS steps."""

    is_kind: bool  # it is of the class that was given
    settings: dict[str, float]
    expected_settings: dict[str, float]
    weights: np.ndarray
    expected: np.ndarray  # with the mean of all ranks' gradients
    alone: np.ndarray  # with this rank's own


@dataclass
class Averaged:
    """What optimizers did that `averaging` made of Keras's own, on gradients that differ by rank."""

    types: list[str]
    stepped: list[Stepped] = field(default_factory=list)  # if all of them are optimizers
    fitted: float | None = None  # the weight after a step of `fit`, if these are right


def observe_averaging(comm, function: Callable) -> Averaged:
    import keras

    def make() -> list:
        return [
            keras.optimizers.SGD(0.1, momentum=0.9),
            keras.optimizers.Adam(0.01),
            keras.optimizers.SGD(0.1, clipnorm=0.5),
        ]

    with _horovod(comm):
        given = [function(optimizer) for optimizer in make()]
        seen = Averaged([type(optimizer).__name__ for optimizer in given])
        if comm.allreduce(int(all(isinstance(g, keras.optimizers.Optimizer) for g in given))) != comm.size:
            return seen
        own = [_gradients(comm.rank, step) for step in range(STEPS)]
        mean = [_mean_gradients(comm.size, step) for step in range(STEPS)]
        for optimizer, plain, alone in zip(given, make(), make(), strict=True):
            is_kind, settings = isinstance(optimizer, type(plain)), (_settings(optimizer), _settings(plain))
            weights = (_run(optimizer, own), _run(plain, mean), _run(alone, own))
            seen.stepped.append(Stepped(is_kind, *settings, *weights))
        right = all(close(stepped.weights, stepped.expected, FLOAT32) for stepped in seen.stepped)
        if comm.allreduce(int(right)) == comm.size:
            seen.fitted = _fitted(comm, function)
        return seen


def _gradients(rank: int, step: int) -> list[np.ndarray]:
    random = np.random.default_rng([rank, step])
    return [random.normal(1 + rank, 1, shape).astype("float32") for shape in ((2, 3), (3,))]


def _mean_gradients(size: int, step: int) -> list[np.ndarray]:
    of_ranks = [_gradients(rank, step) for rank in range(size)]
    return [np.mean(gradients, axis=0) for gradients in zip(*of_ranks, strict=True)]


def _settings(optimizer) -> dict[str, float]:
    """The numbers of an optimizer's configuration."""
    config = optimizer.get_config()
    return {name: float(v) for name, v in config.items() if isinstance(v, int | float | np.number)}


def _run(optimizer, gradients: list) -> np.ndarray:
    """All weights in one vector after a step with each of these gradients."""
    import keras
    import tensorflow as tf

    variables = [keras.Variable(np.zeros(g.shape, "float32")) for g in gradients[0]]
    for of_step in gradients:
        optimizer.apply_gradients(zip([tf.constant(g) for g in of_step], variables, strict=True))
    return _flat(variables)


def _fitted(comm, function: Callable) -> float:
    """The weight after one step of model.fit, which by itself would take it from 0 to the number of the rank."""
    import keras

    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), dense])
    model.compile(function(keras.optimizers.SGD(0.5)), "mse", jit_compile=False)
    one = np.ones((1, 1), "float32")
    model.fit(one, comm.rank * one, verbose=0)
    return float(model.get_weights()[0][0, 0])


def averaging_properties(observations: list[Averaged]) -> Iterator[Property]:
    yield Property("it returns an optimizer", all(seen.stepped for seen in observations), evidence=())
    by_optimizer = list(zip(*(seen.stepped for seen in observations), strict=True))
    stepped = [row for rows in by_optimizer for row in rows]
    yield Property("of the kind that it was given", all(row.is_kind for row in stepped), evidence=())
    lost = [
        f"`{name}` was {value:g} and is {row.settings.get(name)}: {SETTINGS_HINT}"
        for row in stepped
        for name, value in row.expected_settings.items()
        if row.settings.get(name) != value
    ]
    yield Property("with its settings", not lost, lost[0] if lost else "")
    for rows, what in zip(by_optimizer, OPTIMIZERS, strict=True):
        same = all(np.array_equal(row.weights, rows[0].weights) for row in rows)
        alone = all(close(row.weights, row.alone, FLOAT32) for row in rows)
        yield Property(f"{what}: the ranks agree after {STEPS} steps", same, evidence=alone)
        right = close(rows[0].weights, rows[0].expected, FLOAT32)
        yield Property(f"{what}: as one process with the mean of the gradients", right, evidence=rows[0].weights)
    mean = (len(observations) - 1) / 2
    weights = ", ".join(f"{seen.fitted:g}" for seen in observations if seen.fitted is not None)
    hint = (
        f"a step that should give {mean:g} gave {weights} by rank: "
        "`fit` and `apply_gradients` both end in `apply`, which is the method to replace."
    )
    yield Property("model.fit averages too", all(close(seen.fitted, mean, 1e-5) for seen in observations), hint)


def _from_config(cls: type, optimizer):
    return cls.from_config(optimizer.get_config())  # type: ignore[attr-defined]


def _averaging(apply: Callable, made: Callable = _from_config, base: str = "") -> Callable:
    """A wrong `averaging`: what its optimizer does with gradients, given hvd and the plain optimizer's own step; and
    how it is made of its class, which is not derived from the given optimizer's if `base` names another."""

    def averaging(optimizer):
        import horovod.tensorflow as hvd
        import keras

        kind: Any = getattr(keras.optimizers, base) if base else type(optimizer)

        class Averaging(kind):
            def apply(self, gradients, variables=None):
                return apply(hvd, super().apply, list(gradients), list(variables))

        return made(Averaging, optimizer)

    return averaging


def _mean_step(hvd, step, gradients, variables):
    step(hvd.grouped_allreduce(gradients, op=hvd.Average), variables)


def _weights_averaged(hvd, step, gradients, variables):
    step(gradients, variables)
    for v, mean in zip(variables, hvd.grouped_allreduce([v.value for v in variables], op=hvd.Average), strict=True):
        v.assign(mean)


def _two_steps(hvd, step, gradients, variables):
    step(gradients, variables)
    _mean_step(hvd, step, gradients, variables)


def _clipped_first(hvd, step, gradients, variables):
    import tensorflow as tf

    if step.__self__.clipnorm:
        gradients = [tf.clip_by_norm(g, step.__self__.clipnorm) for g in gradients]
    _mean_step(hvd, step, gradients, variables)


NO_OPTIMIZER_HINT = "it isn't one. Did you forget `return`, or return the class instead of an object?"
SETTINGS_HINT = "`from_config` takes over all of them."

averaging = Exercise(
    "averaging",
    observe_averaging,
    averaging_properties,
    [
        Mistake(_averaging(_mean_step, lambda cls, optimizer: None), NO_OPTIMIZER_HINT),
        Mistake(_averaging(_mean_step, lambda cls, optimizer: cls), NO_OPTIMIZER_HINT),
        Mistake(
            _averaging(_mean_step, lambda cls, optimizer: cls(float(optimizer.learning_rate), momentum=0.9), "SGD"),
            "given an Adam, it must return an Adam: derive your class from `type(optimizer)`.",
        ),
        Mistake(_averaging(_mean_step, lambda cls, optimizer: cls()), SETTINGS_HINT),
        Mistake(
            _averaging(lambda hvd, step, gradients, variables: step(gradients, variables)),
            "every rank took its own step. Either nothing was averaged (is the method that you replaced the one that "
            "is called?), or it was averaged after the weights had changed: average first, then `super().apply`.",
        ),
        Mistake(
            _averaging(_two_steps),
            "the weights differ by rank, though something was sent. Does each rank add a step of its own, before or "
            "after the averaged one? Average first, then call `super().apply` once.",
        ),
        Mistake(
            _averaging(
                lambda hvd, step, gradients, variables: step(hvd.grouped_allreduce(gradients, op=hvd.Sum), variables)
            ),
            "the gradients are too large by the number of ranks, a sum: `op=hvd.Average`, or divide by `hvd.size()`.",
        ),
        Mistake(
            _averaging(
                lambda hvd, step, gradients, variables: step(
                    [g / hvd.size() for g in hvd.grouped_allreduce(gradients, op=hvd.Average)], variables
                )
            ),
            "the gradients are too small by the number of ranks: `hvd.Average` has already divided by it.",
        ),
        Mistake(
            _averaging(_clipped_first),
            "each rank clipped its own gradients before they were averaged: average first, clip the mean.",
        ),
        Mistake(
            _averaging(_weights_averaged),
            "each rank stepped with its own gradients, and then the weights were averaged. That is another algorithm, "
            "and not the same for Adam: average the gradients, before the weights change.",
        ),
    ],
    ready=join,
    timeout_s=LIMIT_S,
    stuck="some rank waits for an allreduce that another rank never starts: all ranks must average, always.",
)


class Task(NamedTuple):
    """What all ranks train and test on."""

    images: np.ndarray  # float32 [n, 3], whose first column is the sample's number divided by n
    labels: np.ndarray  # 0 or 1
    test_images: np.ndarray
    test_labels: np.ndarray  # a network that was trained right gets all but the first right


def _task(size: int) -> Task:
    images, labels = _samples(SAMPLES * size, seed=1)
    test_images, _ = _samples(2 * size + 1, seed=2)
    test_labels = _answers(_descend(size, LR * size), test_images)
    test_labels[0] = 1 - test_labels[0]
    return Task(images, labels, test_images, test_labels)


def _samples(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    images = random.normal(size=(n, 3)).astype("float32")
    images[:, 0] = np.arange(n) / n
    return images, random.integers(2, size=n)


def _answers(weights: np.ndarray, images: np.ndarray) -> np.ndarray:
    return np.argmax(images @ weights[:6].reshape(3, 2) + weights[6:], axis=1)


def _start(rank: int) -> list[np.ndarray]:
    random = np.random.default_rng(10 + rank)
    return [random.normal(size=shape).astype("float32") for shape in ((3, 2), (2,))]


def _descend(size: int, lr: float) -> np.ndarray:
    """Weights after EPOCHS steps of SGD with momentum on all samples, on one process, in float64."""
    images, labels = _samples(SAMPLES * size, seed=1)
    weights = [w.astype(float) for w in _start(0)]
    velocity = [np.zeros_like(w) for w in weights]
    for _ in range(EPOCHS):
        logits = images @ weights[0] + weights[1]
        error = np.exp(logits - logits.max(axis=1, keepdims=True))
        error /= error.sum(axis=1, keepdims=True)
        error[np.arange(len(labels)), labels] -= 1
        gradients = [images.T @ error / len(labels), error.mean(axis=0)]
        velocity = [MOMENTUM * v - lr * g for v, g in zip(velocity, gradients, strict=True)]
        weights = [w + v for w, v in zip(weights, velocity, strict=True)]
    return _flat(weights)


def _flat(weights) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(w)) for w in weights])


@dataclass(frozen=True)
class Trained:
    """What training did on one rank."""

    steps: list[list[int]]  # the samples of each
    asked: list[str]  # those of local_rank and local_size that were called
    began: np.ndarray | None  # weights before the first step
    second: np.ndarray | None  # and before the second
    weights: np.ndarray
    files: list[str]
    saved: np.ndarray | None  # the weights in the file
    returned: float | str  # its type, if it is no number


def observe_train(comm, function: Callable) -> Trained:
    join()
    task, model = _task(comm.size), _watched(_start(comm.rank))
    folder = Path(tempfile.mkdtemp(prefix="workshop-"))
    path = folder / "model.keras"
    try:
        with _horovod(comm), _one_rank_a_host() as asked:
            returned = function(model, *task, LR, SAMPLES, EPOCHS, str(path))
        files = sorted(file.name for file in folder.rglob("*") if file.is_file())
        steps = [[round(x * len(task.labels)) for x in step] for step in model.steps]
        weights = _flat(model.get_weights())
        return Trained(steps, sorted(asked), model.began, model.second, weights, files, _saved(path), _plain(returned))
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


def _saved(path: Path) -> np.ndarray | None:
    """The weights in the file, or None when it cannot be read as a model of Keras."""
    import zipfile

    import h5py

    try:
        with zipfile.ZipFile(path) as archive, archive.open("model.weights.h5") as stored:
            weights: list[np.ndarray] = []
            with h5py.File(stored) as file:
                file["layers"].visititems(
                    lambda _, item: weights.append(np.asarray(item)) if isinstance(item, h5py.Dataset) else None
                )
            return _flat(weights)
    except (OSError, KeyError, zipfile.BadZipFile):
        return None


def _plain(returned) -> float | str:
    try:
        return float(returned)
    except (TypeError, ValueError):
        return type(returned).__name__


LOCAL_HINT = (
    "the check pretends that each rank has a host of its own, and then ranks take the same samples: `local_rank()` "
    "counts on one host, to choose a GPU. Share out by `rank()` and `size()`."
)
UNSHARED_HINT = "every rank trains on all samples: give it its part, such as `images[hvd.rank()::hvd.size()]`."
MISSING_HINT = "some samples are used by nobody. Do all ranks take one part?"
ROOT_RANK_HINT = "all ranks begin alike, but not with rank 0's weights: is `root_rank` 0?"
LATE_HINT = (
    "the ranks differ in the first step and agree in the second: broadcast before the first step (`on_train_begin`), "
    "not after it."
)
NO_BROADCAST_HINT = (
    "each rank begins with weights of its own, and averaged gradients do not bring them together: "
    "`keras3.BroadcastVariables()` among the callbacks, or `hvd.broadcast_variables` before `fit`."
)
UNAVERAGED_HINT = (
    "the ranks began alike and came apart, because nothing averages the gradients. Keras's optimizers do not, and "
    "under Keras 3 that of `horovod.tensorflow.keras` does not either: use `keras3.DistributedOptimizer`."
)
RATE_HINTS = {  # by the power of the number of ranks in the learning rate
    0: "the learning rate is as it was, but the global batch has grown: multiply the learning rate by `hvd.size()`.",
    0.5: "the learning rate grew with the root of the ranks; this exercise asks for `lr * hvd.size()`.",
    2: "the steps are too large by the number of ranks: scaled twice, or summed where the mean is meant.",
}
UNSAVED_HINT = "rank 0 wrote no file: `model.save(path)`."
ALL_SAVE_HINT = "another rank saved as well: on one file system all write into one file. `if hvd.rank() == 0:`."
EARLY_SAVE_HINT = "save with `model.save(path)`, after training."
NO_NUMBER_HINT = "return the accuracy, on all ranks."
OWN_PART_HINT = "each rank reports its own part. Add up the right ones and the samples over all ranks."
MEAN_HINT = "the mean of the ranks' accuracies, but their parts differ in size. Add counts, then divide."
DISAGREE_HINT = "the ranks do not agree: every one must take part in the sum, and return its outcome."
COUNT_HINT = "that is a count. Divide it by the number of test samples."


def train_properties(observations: list[Trained]) -> Iterator[Property]:
    first, size = observations[0], len(observations)
    trains = all(seen.steps for seen in observations)
    yield Property("every rank trains", trains, "no step was seen: train with `model.fit`, on every rank.")
    used = [[sample for step in seen.steps for sample in step] for seen in observations]
    counts = np.bincount(np.concatenate(used), minlength=SAMPLES * size)
    right = bool(np.all(counts == EPOCHS))
    yield Property(
        "each sample is trained on once an epoch, by one rank", right, _shard_hint(observations, used, counts)
    )
    most = max(len(step) for seen in observations for step in seen.steps)
    right = most == SAMPLES and all(len(seen.steps) == EPOCHS for seen in observations)
    hint = (
        f"`batch_size`, {SAMPLES}, is that of one rank, and a step took {most} samples. The learning rate is scaled "
        f"because the global batch is {size} times as large."
    )
    yield Property("each rank takes batches of `batch_size`", right, hint)
    right = all(close(seen.began, _flat(_start(0)), 1e-7) for seen in observations)
    yield Property("all ranks begin with rank 0's weights", right, _start_hint(observations))
    same = all(np.array_equal(seen.weights, first.weights) for seen in observations)
    yield Property("the ranks agree after training", same, UNAVERAGED_HINT)
    text = f"the weights are those of one process with all samples and {size} times the learning rate"
    yield Property(text, close(first.weights, _descend(size, LR * size), FLOAT32), _rate_hint(first.weights, size))
    yield Property("rank 0 saves", bool(first.files), UNSAVED_HINT)
    yield Property("no other rank does", not any(seen.files for seen in observations[1:]), ALL_SAVE_HINT)
    right = first.saved is not None and np.allclose(np.sort(first.saved), np.sort(first.weights))
    yield Property("the file holds the trained weights", right, EARLY_SAVE_HINT)
    numbers = [seen.returned for seen in observations if isinstance(seen.returned, float)]
    hint = f"it returned {first.returned} on rank 0: {NO_NUMBER_HINT}"
    yield Property("it returns a number", len(numbers) == size, hint)
    task = _task(size)
    hits = _answers(first.weights, task.test_images) == task.test_labels
    exact = all(abs(value - np.mean(hits)) < 1e-6 for value in numbers)
    text = "on every rank, the accuracy over all test samples, each counted once"
    yield Property(text, exact, _accuracy_hint(numbers, hits))


def _shard_hint(observations: list[Trained], used: list[list[int]], counts: np.ndarray) -> str:
    if any(seen.asked for seen in observations):
        return LOCAL_HINT
    if all(set(samples) == set(range(len(counts))) for samples in used):
        return UNSHARED_HINT
    return MISSING_HINT if np.any(counts == 0) else "some samples are used more often than others: the parts overlap."


def _start_hint(observations: list[Trained]) -> str:
    if all(close(seen.began, observations[0].began, 0.0) for seen in observations):
        return ROOT_RANK_HINT
    agree = all(close(seen.second, observations[0].second, 0.0) for seen in observations)
    return LATE_HINT if agree else NO_BROADCAST_HINT


def _rate_hint(weights: np.ndarray, size: int) -> str:
    for power, hint in RATE_HINTS.items():
        if close(weights, _descend(size, LR * size**power), FLOAT32):
            return hint
    return "the ranks agree, but on other weights. Is it SGD with momentum 0.9, the same loss, `epochs` epochs?"


def _accuracy_hint(returned: list[float], hits: np.ndarray) -> str:
    parts = [float(np.mean(hits[rank :: len(returned)])) for rank in range(len(returned))]
    values = ", ".join(f"{value:.4g}" for value in returned)
    start = f"it returned {values} by rank, not {np.mean(hits):.4g}: "
    if np.allclose(returned, parts):
        return start + OWN_PART_HINT
    if np.allclose(returned, np.mean(parts)):
        return start + MEAN_HINT
    if len(set(returned)) > 1:
        return start + DISAGREE_HINT
    if np.allclose(returned, np.sum(hits)):
        return start + COUNT_HINT
    return start + "which sums does it divide?"


def _by_rank(hvd, samples):
    return samples[hvd.rank() :: hvd.size()]


def _broadcast(hvd, keras3) -> list:
    return [keras3.BroadcastVariables()]


def _late_broadcast(hvd, keras3) -> list:
    class Late(keras3.BroadcastVariables):
        def on_train_begin(self, logs=None):
            pass

        def on_train_batch_end(self, batch, logs=None):
            if batch == 0:
                super().on_train_begin()

    return [Late()]


def _accuracy(hvd, hits):
    right, seen = hvd.allreduce(np.array([np.sum(hits), len(hits)]), op=hvd.Sum, name="counts").numpy()
    return right / seen


def _train(
    shard: Callable = _by_rank,
    power: float = 1,
    wrapped: bool = True,
    callbacks: Callable = _broadcast,
    divided: bool = False,
    saves: str = "rank 0",
    result: Callable = _accuracy,
) -> Callable:
    """A wrong `train`: a rank's part of the samples, the power of the number of ranks in the learning rate, whether
    the optimizer averages, the callbacks, whether the batch is divided by the ranks, who saves ("rank 0", "all",
    "early", ""), and what it returns of the test samples that the network is right about."""

    def train(model, images, labels, test_images, test_labels, lr, batch_size, epochs, path):
        import horovod.tensorflow as hvd
        import keras

        from workshop_lib.training.backends import keras3

        optimizer: Any = keras.optimizers.SGD(lr * hvd.size() ** power, momentum=0.9)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras3.DistributedOptimizer(optimizer) if wrapped else optimizer, loss, jit_compile=False)
        if saves == "early" and hvd.rank() == 0:
            model.save(path)
        model.fit(
            shard(hvd, images),
            shard(hvd, labels),
            batch_size=batch_size // hvd.size() if divided else batch_size,
            epochs=epochs,
            verbose=0,
            callbacks=callbacks(hvd, keras3),
        )
        if saves == "all" or (saves == "rank 0" and hvd.rank() == 0):
            model.save(path)
        hits = np.argmax(model(_by_rank(hvd, test_images)), axis=1) == _by_rank(hvd, test_labels)
        return result(hvd, hits)

    return train


train = Exercise(
    "train",
    observe_train,
    train_properties,
    [
        Mistake(_train(lambda hvd, samples: samples[hvd.local_rank() :: hvd.size()]), LOCAL_HINT),
        Mistake(_train(lambda hvd, samples: samples), UNSHARED_HINT),
        Mistake(_train(lambda hvd, samples: samples[:: hvd.size()]), MISSING_HINT),
        Mistake(_train(divided=True), "is that of one rank"),
        Mistake(_train(callbacks=lambda hvd, keras3: [keras3.BroadcastVariables(root=hvd.size() - 1)]), ROOT_RANK_HINT),
        Mistake(_train(callbacks=_late_broadcast), LATE_HINT),
        Mistake(_train(callbacks=lambda hvd, keras3: []), NO_BROADCAST_HINT),
        Mistake(_train(wrapped=False), UNAVERAGED_HINT),
        *[Mistake(_train(power=power), hint) for power, hint in RATE_HINTS.items()],
        Mistake(_train(saves=""), UNSAVED_HINT),
        Mistake(_train(saves="all"), ALL_SAVE_HINT),
        Mistake(_train(saves="early"), EARLY_SAVE_HINT),
        Mistake(_train(result=lambda hvd, hits: None), NO_NUMBER_HINT),
        Mistake(_train(result=lambda hvd, hits: np.mean(hits)), OWN_PART_HINT),
        Mistake(_train(result=lambda hvd, hits: hvd.allreduce(np.mean(hits), op=hvd.Average, name="mean")), MEAN_HINT),
        Mistake(_train(result=lambda hvd, hits: _accuracy(hvd, hits) * (hvd.rank() == 0)), DISAGREE_HINT),
        Mistake(_train(result=lambda hvd, hits: hvd.allreduce(np.sum(hits), op=hvd.Sum, name="right")), COUNT_HINT),
    ],
    ready=join,
    timeout_s=LIMIT_S,
    stuck="some rank waits for the others, which are elsewhere. All must take the same number of steps, and all must "
    "call every allreduce and broadcast, not rank 0 alone.",
)
