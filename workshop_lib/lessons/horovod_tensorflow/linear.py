"""A linear model, a few samples, and SGD in NumPy: the reference for the exercise `train` of 04_horovod_tensorflow."""

import numpy as np

# SAMPLES per rank, all in one batch.
SAMPLES = 4
EPOCHS = 2
LR = 0.1
MOMENTUM = 0.9


def task(size: int) -> tuple[np.ndarray, ...]:
    """Training images and labels, and test images and labels, for `size` ranks.

    Images are float32 [n, 3], and their first column is the sample's number divided by n. Labels are 0 or 1. A
    correctly trained network gets all test labels right except for the first.
    """
    test_images, _ = samples(2 * size + 1, seed=2)
    test_labels = answers(descend(size, LR * size), test_images)
    test_labels[0] = 1 - test_labels[0]
    return *samples(SAMPLES * size, seed=1), test_images, test_labels


def samples(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    images = random.normal(size=(n, 3)).astype("float32")
    images[:, 0] = np.arange(n) / n
    return images, random.integers(2, size=n)


def answers(weights: np.ndarray, images: np.ndarray) -> np.ndarray:
    return np.argmax(images @ weights[:6].reshape(3, 2) + weights[6:], axis=1)


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
