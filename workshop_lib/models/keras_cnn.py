"""The workshop's network in Keras 3: the same layers as torch_cnn, from the same initial weights."""

import keras
import numpy as np

from workshop_lib.models import torch_cnn


def normalise(images):
    """uint8 [n, 28, 28] -> float32 [n, 28, 28, 1] with mean 0 and standard deviation 1."""
    images = keras.ops.cast(images, "float32")
    return keras.ops.expand_dims((images - torch_cnn.PIXEL_MEAN) / torch_cnn.PIXEL_STD, -1)


def build(seed: int, classes: int = 10, weight_decay: float = 0.0) -> keras.Sequential:
    """The network with the weights that torch_cnn.build(seed, classes=classes) has.

    weight_decay: adds that many times each weight to its gradient, through the loss.

    The layers have names, because Keras would number them, and Horovod matches gradients by these names:
    ranks that had built different numbers of networks would wait for each other forever.
    """
    first, second = torch_cnn.CHANNELS
    penalty = keras.regularizers.L2(weight_decay / 2) if weight_decay else None
    decays = {"kernel_regularizer": penalty, "bias_regularizer": penalty}
    model = keras.Sequential(
        [
            keras.Input((28, 28), dtype="uint8"),
            keras.layers.Lambda(normalise, output_shape=(28, 28, 1), name="normalise"),
            keras.layers.Conv2D(first, 5, name="conv_1", **decays),  # [n, 24, 24, 8]
            keras.layers.MaxPooling2D(2, name="pool_1"),  # [n, 12, 12, 8]
            keras.layers.ReLU(name="relu_1"),
            keras.layers.Conv2D(second, 5, name="conv_2", **decays),  # [n, 8, 8, 56]
            keras.layers.MaxPooling2D(2, name="pool_2"),  # [n, 4, 4, 56]
            keras.layers.ReLU(name="relu_2"),
            keras.layers.Flatten(name="flatten"),  # [n, 896]
            keras.layers.Dense(classes, name="logits", **decays),  # [n, 10], one logit a class
        ],
        name="cnn",
    )
    model.set_weights(from_torch([p.detach().numpy() for p in torch_cnn.build(seed, classes=classes).parameters()]))
    return model


def from_torch(weights: list[np.ndarray]) -> list[np.ndarray]:
    """The weights of the torch network, in its order, in Keras's layout.

    A kernel is [out, in, y, x] in torch and [y, x, in, out] in Keras; what is flattened before the linear
    layer is [channel, y, x] in torch and [y, x, channel] in Keras.
    """
    kernel_1, bias_1, kernel_2, bias_2, linear, bias_3 = weights
    classes = len(bias_3)
    linear = linear.reshape(classes, -1, 4, 4).transpose(2, 3, 1, 0).reshape(-1, classes)
    return [kernel_1.transpose(2, 3, 1, 0), bias_1, kernel_2.transpose(2, 3, 1, 0), bias_2, linear, bias_3]


def to_torch(weights: list[np.ndarray]) -> list[np.ndarray]:
    """The inverse of from_torch."""
    kernel_1, bias_1, kernel_2, bias_2, linear, bias_3 = weights
    classes = len(bias_3)
    linear = linear.reshape(4, 4, -1, classes).transpose(3, 2, 0, 1).reshape(classes, -1)
    return [kernel_1.transpose(3, 2, 0, 1), bias_1, kernel_2.transpose(3, 2, 0, 1), bias_2, linear, bias_3]
