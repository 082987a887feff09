"""Dropout that is the same on any number of processes, because each worker draws with its own generator."""

import torch
from torch import nn

from workshop_lib.training.data.shard import shard_bounds


class Dropout(nn.Module):
    """Like nn.Dropout, or like nn.Dropout2d with `channels`, but the workers that own the samples draw the masks.

    WorkerDraws begins each step with `draws`, which holds each worker's generator, its number of samples in this step,
    and which of these samples are in the batch. The batch may arrive in parts.
    """

    def __init__(self, p: float = 0.5, channels: bool = False):
        super().__init__()
        self.p = p
        self.channels = channels
        self.draw([])

    def draw(self, draws: list) -> None:
        """Begin a step. Its masks are drawn with `draws` when the first samples arrive."""
        self.draws = draws
        self.done = 0
        self.mask: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        if self.mask is None:
            shape = (*x.shape[1:2], *(1 for _ in x.shape[2:])) if self.channels else x.shape[1:]
            masks = [
                torch.empty((n, *shape), device=x.device).bernoulli_(1 - self.p, generator=generator)[rows]
                for generator, n, rows in self.draws
            ]
            self.mask = torch.cat(masks).div_(1 - self.p)
        mask = self.mask[self.done : self.done + len(x)]
        self.done += len(x)
        return x * mask.to(x.dtype)


class WorkerDraws:
    """The generators of the workers whose samples a rank holds.

    With more workers than ranks, each rank has workers // world_size workers. With fewer, several ranks have parts of
    one worker's samples, and each of these ranks draws for all samples of the worker.
    """

    def __init__(self, model: nn.Module, seed: int, workers: int, rank: int, world_size: int, device):
        self.layers = [layer for layer in model.modules() if isinstance(layer, Dropout)]
        self.total = workers
        self.rank = rank
        self.world_size = world_size
        first = rank * workers // world_size
        self.own = range(first, max(first + 1, (rank + 1) * workers // world_size))
        self.generators = [torch.Generator(device).manual_seed(seed + worker) for worker in self.own]

    def prepare(self, n_global: int) -> None:
        """Have the layers draw masks for this rank's part of a global batch of n_global samples."""
        if not self.layers:
            return
        start, stop = shard_bounds(n_global, self.rank, self.world_size)
        draws = []
        for worker, generator in zip(self.own, self.generators, strict=True):
            first, end = shard_bounds(n_global, worker, self.total)
            rows = slice(max(start, first) - first, max(min(stop, end) - first, 0))
            draws.append((generator, end - first, rows))
        for layer in self.layers:
            layer.draw(draws)

    def state(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in self.generators]

    def load_state(self, states: list[torch.Tensor]) -> None:
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state)
