"""The workshop's network, in PyTorch: two convolutions and a linear layer, 20,434 parameters.

It is small enough that two CPU cores train an epoch of MNIST in seconds. It passes 99 % test accuracy in two epochs, or
in one epoch with smoothed labels (the mean of five seeds). It has no dropout and no batch normalization, because each
of them would make a step depend on more than the samples in the global batch. Runs on different numbers of ranks could
then not be compared exactly.
"""

import math

import torch
from torch import nn

from workshop_lib.training.models import vit
from workshop_lib.training.models.dropout import Dropout

# Mean and standard deviation of the pixels of MNIST's training images, on the scale 0 to 255.
PIXEL_MEAN = 33.3184
PIXEL_STD = 78.5675
CHANNELS = (8, 56)  # output channels of the two convolutions


def normalize(images: torch.Tensor) -> torch.Tensor:
    """Normalize images, uint8 [n, 28, 28] -> float32 [n, 1, 28, 28], to mean 0 and standard deviation 1.

    The result is in channels-last order. The convolutions keep the order of their input, and a CPU runs them about
    twice as fast in this order.
    """
    images = images.float().sub_(PIXEL_MEAN).div_(PIXEL_STD)
    return images.unsqueeze(3).permute(0, 3, 1, 2)


def build(seed: int, network: str = "workshop", classes: int = 10, shape: tuple[int, int] = vit.MNIST) -> nn.Sequential:
    """Return the network with weights drawn from `seed`, the same wherever it is built.

    It computes one logit per class for images of the given height and width (in pixels, at least 16). The shapes in
    comments are MNIST's.
    """
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model = NETWORKS[network](classes, shape)
    # With one channel both orders are the same in memory, but DDP warns if a weight's strides are not its gradient's.
    first = model[0].weight if isinstance(model[0], nn.Conv2d) else None
    if first is not None:
        first.data = torch.empty_like(first, memory_format=torch.channels_last).copy_(first)
    return model


def convolved(shape: tuple[int, int]) -> tuple[int, int]:
    """Return height and width after two 5 x 5 convolutions, each with a 2 x 2 pool: 28 x 28 becomes 4 x 4."""
    height, width = (((side - 4) // 2 - 4) // 2 for side in shape)
    return height, width


def workshop(classes: int, shape: tuple[int, int]) -> nn.Sequential:
    first, second = CHANNELS
    return nn.Sequential(
        nn.Conv2d(1, first, 5),  # [n, 8, 24, 24]
        nn.MaxPool2d(2),  # [n, 8, 12, 12]
        nn.ReLU(),  # after the pool: the same result from a quarter of the values
        nn.Conv2d(first, second, 5),  # [n, 56, 8, 8]
        nn.MaxPool2d(2),  # [n, 56, 4, 4]
        nn.ReLU(),
        nn.Flatten(),  # [n, 896]
        nn.Linear(second * math.prod(convolved(shape)), classes),  # [n, 10], one logit per class
    )


def classic(classes: int, shape: tuple[int, int]) -> nn.Sequential:
    """Return the network of PyTorch's and Horovod's MNIST examples of 2017, which has 21,840 parameters.

    Published scaling curves were measured with this network. Each worker draws the dropout for its own samples.
    """
    return nn.Sequential(
        nn.Conv2d(1, 10, 5),  # [n, 10, 24, 24]
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, 5),  # [n, 20, 8, 8]
        nn.MaxPool2d(2),  # [n, 20, 4, 4]
        Dropout(channels=True),  # after the pool, like the ReLU: the same result from a quarter of the values
        nn.ReLU(),
        nn.Flatten(),  # [n, 320]
        nn.Linear(20 * math.prod(convolved(shape)), 50),
        nn.ReLU(),
        Dropout(),
        nn.Linear(50, classes),  # [n, 10]
    )


NETWORKS = {"workshop": workshop, "classic": classic, "vit": vit.vit}
