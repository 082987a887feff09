"""How strongly the loss of 07's network curves while it trains at several rates: the ranks share the runs."""

from itertools import islice

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from workshop_lib.machine import world
from workshop_lib.training import schedules
from workshop_lib.training.data import mnist
from workshop_lib.training.models import torch_cnn
from workshop_lib.training.models.dropout import WorkerDraws

# Peak rates, and the steps of a warm-up to them. Linear scaling gives 64 workers 0.64, and 128 workers 1.28.
RATES = {
    "0.1 at once": (0.1, 0),
    "1.28 at once": (1.28, 0),
    "0.64 after warm-up": (0.64, 40),
    "1.28 after warm-up": (1.28, 40),
}
MOMENTUM = 0.5
BATCH = 1024  # less than 128 workers have together, to save time
LOOK_EVERY = 5
MEASURED = 256  # images over which the curvature is measured
ROUNDS = 10

Point = tuple[int, float, float, float]  # step, rate, loss, curvature


def follow(steps: int) -> dict[str, list[Point]]:
    """Train in each of RATES for so many steps; returns this rank's share of the runs. All ranks call it."""
    comm = world.detect().mpi_comm()
    return {name: _followed(steps, *RATES[name]) for name in islice(RATES, comm.rank, None, comm.size)}


def _followed(steps: int, peak: float, warmup_steps: int) -> list[Point]:
    train = mnist.load("train")
    model = torch_cnn.build(1, "classic")
    draws = WorkerDraws(model, 1, 1, 0, 1, torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=peak, momentum=MOMENTUM)
    order = np.random.default_rng(1).permutation(len(train.labels))
    seen = []
    for step in range(steps + 1):
        rate = schedules.lr_at(step, steps, peak, warmup_steps)
        optimizer.param_groups[0]["lr"] = rate
        if step % LOOK_EVERY == 0:
            seen.append((step, rate, *loss_and_curvature(model, *_batch(train, slice(MEASURED)))))
        rows = np.take(order, range(BATCH * step, BATCH * (step + 1)), mode="wrap")
        images, labels = _batch(train, rows)
        model.train()
        draws.prepare(BATCH)
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
    return seen


def _batch(train: mnist.Split, rows) -> tuple[torch.Tensor, torch.Tensor]:
    return torch_cnn.normalize(torch.tensor(train.images[rows])), torch.tensor(train.labels[rows]).long()


def loss_and_curvature(
    model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, rounds: int = ROUNDS
) -> tuple[float, float]:
    """The mean loss without dropout, and the largest curvature, which is the largest eigenvalue of its Hessian.

    Power iteration: a random vector is multiplied by the Hessian again and again, without ever building that matrix.
    """
    parameters = list(model.eval().parameters())
    loss = cross_entropy(model(images), labels)
    slopes = torch.autograd.grad(loss, parameters, create_graph=True)
    vector = [
        torch.randn(each.shape, generator=torch.Generator().manual_seed(1), dtype=each.dtype) for each in parameters
    ]
    curvature = 0.0
    for _ in range(rounds):
        length = torch.stack([(part**2).sum() for part in vector]).sum().sqrt()
        vector = [part / length for part in vector]
        along = torch.stack([(slope * part).sum() for slope, part in zip(slopes, vector, strict=True)]).sum()
        product = torch.autograd.grad(along, parameters, retain_graph=True)
        curvature = float(sum((one * other).sum() for one, other in zip(product, vector, strict=True)))
        vector = list(product)
    return loss.item(), curvature
