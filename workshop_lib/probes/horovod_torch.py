"""Rank side of the exercises in 03_horovod_pytorch. Horovod is left as it was found, mostly shut down."""

import contextlib

import numpy as np
import torch
from torch import nn

LR, MOMENTUM = 0.05, 0.9
IMAGES = 101  # does not divide by 2, 3 or 4 ranks
CLASSES = 3


def load():
    """Horovod itself; to import it takes a while on fresh ranks, and the notebook does without it."""
    import horovod.torch

    return horovod.torch


def ready() -> None:
    """What takes long once on fresh ranks: imports, PyTorch's first optimizer, Horovod's first start."""
    _checkpointed(0)
    with _running():
        pass


class OneRankAHost:
    """Horovod, as it would be if every rank were alone on its host: then local ranks tell nothing apart."""

    def __getattr__(self, name: str):
        return getattr(load(), name)

    def local_rank(self) -> int:
        return 0

    def local_size(self) -> int:
        return 1


@contextlib.contextmanager
def _running():
    """Horovod initialised; shut down afterwards, as its idle thread takes processor time."""
    horovod = load()
    was_running = horovod.is_initialized()
    if not was_running:
        horovod.init()
    try:
        yield OneRankAHost()
    finally:
        if not was_running:
            horovod.shutdown()


def _network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()


def _weights(model: nn.Module) -> np.ndarray:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy().copy()


def _gradient(model: nn.Module) -> np.ndarray:
    return torch.cat([p.grad.flatten() for p in model.parameters()]).numpy().copy()


def _momentum(optimizer, model: nn.Module) -> np.ndarray | None:
    """The momentum of all parameters in one vector; None when there is none."""
    state = optimizer.state
    if any(state.get(p, {}).get("momentum_buffer") is None for p in model.parameters()):
        return None
    return torch.cat([state[p]["momentum_buffer"].flatten() for p in model.parameters()]).numpy().copy()


def _backward(model: nn.Module, rank: int) -> None:
    """A backward on this rank's samples, which differ from those of the others."""
    random = torch.Generator().manual_seed(100 + rank)
    inputs = torch.randn(5, 6, generator=random, dtype=torch.float64)
    model.zero_grad()
    model(inputs).square().mean().backward()


def _checkpointed(rank: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Model and optimizer as on this rank before the call: rank 0's have trained, the others' are new."""
    model = _network(seed=1 + rank)
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=MOMENTUM)
    if rank == 0:
        for _ in range(2):
            _backward(model, 50)
            optimizer.step()
    model.zero_grad()
    return model, optimizer


def make_distributed(comm, function) -> dict:
    """What the returned optimizer holds, and what one step with it does, on this rank."""
    with _running() as hvd:
        model, optimizer = _checkpointed(comm.rank)
        start_model, start_optimizer = _checkpointed(0)
        returned = function(model, optimizer, hvd)
        facts = {
            "size": comm.size,
            "type": type(returned).__name__,
            "optimizer": isinstance(returned, torch.optim.Optimizer),
            "wrapped": hasattr(returned, "synchronize") and hasattr(returned, "skip_synchronize"),
            "weights": _weights(model),
            "expected_weights": _weights(start_model),
            "untouched": np.array_equal(_weights(model), _weights(_checkpointed(comm.rank)[0])),
            "expected_momentum": _momentum(start_optimizer, start_model),
            "lr_for_one": LR,
        }
        # All ranks must take the same way from here, or one would wait for the others.
        if comm.allreduce(int(facts["optimizer"])) != comm.size:
            return facts
        facts["lr"] = [float(group["lr"]) for group in returned.param_groups]
        facts["momentum"] = _momentum(returned, model)
        if comm.allreduce(int(facts["wrapped"])) != comm.size:
            return facts
        here = _weights(model)
        _load(model, facts["expected_weights"])
        _backward(model, comm.rank)
        returned.synchronize()
        facts["gradient"] = _gradient(model)
        facts["expected_gradient"] = _mean_gradient(comm.size, facts["expected_weights"])
        facts["own_gradient"] = _mean_gradient(1, facts["expected_weights"], comm.rank)
        _load(model, here)
        return facts


def _load(model: nn.Module, weights: np.ndarray) -> None:
    with torch.no_grad():
        nn.utils.vector_to_parameters(torch.tensor(weights), model.parameters())


def _mean_gradient(ranks: int, weights: np.ndarray, first: int = 0) -> np.ndarray:
    """The mean of the gradients of ranks first, first + 1, …, computed without Horovod."""
    gradients = []
    for rank in range(first, first + ranks):
        model = _network(seed=1)
        _load(model, weights)
        _backward(model, rank)
        gradients.append(_gradient(model))
    return np.mean(gradients, axis=0)


class Counted(nn.Module):
    """A network that knows the right class of every image, and is right for some; it notes what it tested.

    An image's first element is its number, its second 1.0 where the network is to be right.
    """

    def __init__(self):
        super().__init__()
        self.tested: list[int] = []
        self.gradients = False

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.tested += images[:, 0].long().tolist()
        self.gradients |= torch.is_grad_enabled()
        right = (images[:, 0].long() % CLASSES + (images[:, 1] < 0.5).long()) % CLASSES
        return nn.functional.one_hot(right, CLASSES).double()


def finish_epoch(comm, function) -> dict:
    """The accuracy that this rank returned, the images it tested, and how often it saved."""
    number = torch.arange(IMAGES)
    right = (number % comm.size == 0) | (number < IMAGES // 4)  # the ranks' parts differ in accuracy
    images = torch.stack([number.double(), right.double()], dim=1)
    labels = number % CLASSES
    model, saved = Counted(), []
    with _running() as hvd:
        returned = function(model, images, labels, lambda: saved.append(comm.rank), hvd)
    parts = [right[rank :: comm.size].double().mean().item() for rank in range(comm.size)]
    blocks = [part.double().mean().item() for part in right.tensor_split(comm.size)]
    return {
        "size": comm.size,
        "returned": returned.item() if isinstance(returned, torch.Tensor | np.ndarray) and _one(returned) else returned,
        "correct": int(right.sum()),
        "images": IMAGES,
        "means": [float(np.mean(parts)), float(np.mean(blocks))],
        "tested": model.tested,
        "tested_right": int(right[model.tested].sum()) if model.tested else 0,
        "saved": len(saved),
    }


def _one(array) -> bool:
    return int(np.prod(array.shape)) == 1
