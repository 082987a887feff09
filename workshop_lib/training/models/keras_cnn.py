"""The convolutional networks of torch_cnn in Keras 3: the same layers with the same initial weights."""

import keras
import numpy as np

from workshop_lib.training.models import torch_cnn, vit


def normalize(images):
    """Normalize images, uint8 [n, 28, 28] -> float32 [n, 28, 28, 1], to mean 0 and standard deviation 1."""
    images = keras.ops.cast(images, "float32")
    return keras.ops.expand_dims((images - torch_cnn.PIXEL_MEAN) / torch_cnn.PIXEL_STD, -1)


def build(
    seed: int,
    classes: int = 10,
    network: str = "workshop",
    weight_decay: float = 0.0,
    shape: tuple[int, int] = vit.MNIST,
) -> keras.Sequential:
    """Return the network with the same weights as torch_cnn.build(seed, network, classes, shape).

    weight_decay: adds weight_decay times each weight to its gradient, through the loss.

    The layers have names because Horovod matches gradients by these names. Keras would number the layers, and ranks
    that had built different numbers of networks would wait for each other forever.
    """
    start = [
        keras.Input(shape, dtype="uint8"),
        keras.layers.Lambda(normalize, output_shape=(*shape, 1), name="normalise"),
    ]
    model = keras.Sequential([*start, *NETWORKS[network](classes)], name="cnn")
    weights = torch_cnn.build(seed, network, classes, shape).parameters()
    model.set_weights(from_torch([p.detach().numpy() for p in weights], shape))
    if weight_decay:
        for weight in model.trainable_variables:
            weight.regularizer = keras.regularizers.L2(weight_decay / 2)
    return model


def workshop(classes: int) -> list:
    first, second = torch_cnn.CHANNELS
    return [
        keras.layers.Conv2D(first, 5, name="conv_1"),  # [n, 24, 24, 8]
        keras.layers.MaxPooling2D(2, name="pool_1"),  # [n, 12, 12, 8]
        keras.layers.ReLU(name="relu_1"),
        keras.layers.Conv2D(second, 5, name="conv_2"),  # [n, 8, 8, 56]
        keras.layers.MaxPooling2D(2, name="pool_2"),  # [n, 4, 4, 56]
        keras.layers.ReLU(name="relu_2"),
        keras.layers.Flatten(name="flatten"),  # [n, 896]
        keras.layers.Dense(classes, name="logits"),  # [n, 10], one logit per class
    ]


def classic(classes: int) -> list:
    """Return the layers of torch_cnn's classic network. Keras draws the dropout, so masks differ from torch_cnn's."""
    return [
        keras.layers.Conv2D(10, 5, name="conv_1"),  # [n, 24, 24, 10]
        keras.layers.MaxPooling2D(2, name="pool_1"),
        keras.layers.ReLU(name="relu_1"),
        keras.layers.Conv2D(20, 5, name="conv_2"),  # [n, 8, 8, 20]
        keras.layers.MaxPooling2D(2, name="pool_2"),  # [n, 4, 4, 20]
        keras.layers.SpatialDropout2D(0.5, name="drop_channels"),
        keras.layers.ReLU(name="relu_2"),
        keras.layers.Flatten(name="flatten"),  # [n, 320]
        keras.layers.Dense(50, "relu", name="hidden"),
        keras.layers.Dropout(0.5, name="drop"),
        keras.layers.Dense(classes, name="logits"),  # [n, 10]
    ]


NETWORKS = {"workshop": workshop, "classic": classic}


def from_torch(weights: list[np.ndarray], shape: tuple[int, int] = vit.MNIST) -> list[np.ndarray]:
    """Convert the weights of a PyTorch network for images of that shape to Keras's layout. Their order stays the same.

    A kernel is [out, in, y, x] in PyTorch and [y, x, in, out] in Keras. The values flattened before the first linear
    layer are [channel, y, x] in PyTorch and [y, x, channel] in Keras.
    """
    kernel_1, bias_1, kernel_2, bias_2, linear, *more = weights
    outputs = len(linear)
    linear = linear.reshape(outputs, -1, *torch_cnn.convolved(shape)).transpose(2, 3, 1, 0).reshape(-1, outputs)
    return [kernel_1.transpose(2, 3, 1, 0), bias_1, kernel_2.transpose(2, 3, 1, 0), bias_2, linear, *_turned(more)]


def to_torch(weights: list[np.ndarray], shape: tuple[int, int] = vit.MNIST) -> list[np.ndarray]:
    """Convert weights from Keras's layout to PyTorch's, the inverse of from_torch."""
    kernel_1, bias_1, kernel_2, bias_2, linear, *more = weights
    outputs = linear.shape[1]
    linear = linear.reshape(*torch_cnn.convolved(shape), -1, outputs).transpose(3, 2, 0, 1).reshape(outputs, -1)
    return [kernel_1.transpose(3, 2, 0, 1), bias_1, kernel_2.transpose(3, 2, 0, 1), bias_2, linear, *_turned(more)]


def _turned(weights: list[np.ndarray]) -> list[np.ndarray]:
    """Return the later layers' weights, with matrices transposed. Their inputs have the same order in both layouts."""
    return [weight.T for weight in weights]
