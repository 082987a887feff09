"""The first step again on one process, with the samples of all ranks as one batch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


class FirstStep:
    """Several ranks keep their batches, weights and gradients of the first step in files; one process replays them."""

    def __init__(self, folder: Path, rank: int, replays: bool):
        self.folder = folder
        self.rank = rank
        self.replays = replays
        self.is_over = False
        self.drawn: Counter[int] = Counter()  # batches, by loader

    def batch(self, loader: int, batch: Any) -> Any:
        """What the script gets for the next batch of a loader. Raises ValueError if batches can't be joined."""
        if self.is_over:
            return batch
        name = f"batch.{loader}.{self.drawn[loader]}"
        self.drawn[loader] += 1
        if not self.replays:
            torch.save(batch, self.folder / f"{name}.{self.rank}.pt")
            return batch
        try:
            return join([_load(path) for path in sorted(self.folder.glob(f"{name}.*.pt"))])
        except Exception:
            self.is_over = True  # its gradients would be those of other samples
            raise

    def begin(self, module: nn.Module) -> None:
        """Keep the weights of the first rank, or begin with them."""
        path = self.folder / "weights.pt"
        parameters = list(module.parameters())
        if self.replays:
            for parameter, value in zip(parameters, _load(path), strict=True):
                parameter.data.copy_(value)
        elif self.rank == 0:
            torch.save([parameter.detach().cpu() for parameter in parameters], path)

    def end(self, module: nn.Module) -> None:
        """Keep the gradients as they are before they are clipped and used."""
        if not self.is_over and (self.replays or self.rank == 0):
            gradients = [None if each.grad is None else each.grad.detach().cpu() for each in module.parameters()]
            torch.save(gradients, self.folder / ("one.pt" if self.replays else "several.pt"))
        self.is_over = True


def join(parts: Sequence[Any]) -> Any:
    """The ranks' batches as one. Raises ValueError if they can't be joined."""
    first = parts[0]
    if all(isinstance(each, Tensor) and each.dim() for each in parts):
        if len({each.shape[1:] for each in parts}) > 1:
            raise ValueError(f"the ranks' batches have shapes {[tuple(each.shape) for each in parts]}")
        return torch.cat(list(parts))
    if isinstance(first, Mapping):
        return {key: join([each[key] for each in parts]) for key in first}
    if isinstance(first, tuple | list) and all(isinstance(each, str) for each in first):
        return [word for each in parts for word in each]
    if isinstance(first, tuple | list):
        joined = [join(each) for each in zip(*parts, strict=True)]
        return type(first)(*joined) if hasattr(first, "_fields") else type(first)(joined)
    if all(type(each) is type(first) and each == first for each in parts):
        return first
    raise ValueError(f"the ranks' batches hold different values of type {type(first).__name__}")


def compare(folder: Path) -> tuple[float, float] | None:
    """How many times the one process's gradient that of several ranks is, and by which share they differ otherwise.

    None if either is missing.
    """
    paths = folder / "several.pt", folder / "one.pt"
    if not all(path.exists() for path in paths):
        return None
    several, one = (_flat(_load(path)) for path in paths)
    if several.shape != one.shape or not one.norm():
        return None
    factor = float(several @ one / (one @ one))
    return factor, float((several - factor * one).norm() / several.norm().clamp(min=1e-30))


def _flat(gradients: list[Tensor | None]) -> Tensor:
    return torch.cat([each.double().flatten() for each in gradients if each is not None])


def _load(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=False)
