"""A linear model, a few samples, and SGD in NumPy: the reference for the exercise `train` of 04_horovod_tensorflow."""

import numpy as np

# As in the function to be changed. SAMPLES is per rank, all in one batch.
SAMPLES = 64
EPOCHS = 2
LR = 0.02
MOMENTUM = 0.9


def samples(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    images = random.normal(size=(n, 3)).astype("float32")
    images[:, 0] = np.arange(n) / n
    return images, random.integers(2, size=n)


def start(rank: int) -> list[np.ndarray]:
    random = np.random.default_rng(10 + rank)
    return [random.normal(size=shape).astype("float32") for shape in ((3, 2), (2,))]


def descend(size: int, lr: float) -> np.ndarray:
    """Weights after EPOCHS steps of SGD with momentum on all samples, in one process and in float64."""
    images, labels = samples(SAMPLES * size, seed=1)
    inputs = np.column_stack([images, np.ones(len(images))])
    weights = np.vstack(start(0)).astype(float)
    velocity = 0.0
    for _ in range(EPOCHS):
        odds = np.exp(inputs @ weights)
        error = odds / odds.sum(axis=1, keepdims=True) - np.eye(2)[labels]
        velocity = MOMENTUM * velocity - lr * inputs.T @ error / len(labels)
        weights = weights + velocity
    return weights.ravel()
