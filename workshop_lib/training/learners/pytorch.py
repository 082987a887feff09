"""One rank's training in PyTorch."""

import math
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch.nn import functional

from workshop_lib.data import shard
from workshop_lib.data.mnist import Split
from workshop_lib.models import torch_cnn
from workshop_lib.models.dropout import WorkerDraws
from workshop_lib.training import memory, optimizers
from workshop_lib.training.backends.base import Backend
from workshop_lib.training.options import TrainOptions

TEST_BATCH = 500
CPU_ROWS = 1024  # that go through the network at once: more would not fit a CPU's caches


class TorchLearner:
    """See learners/__init__.py. All ranks create it together: the backend broadcasts the weights."""

    def __init__(self, options: TrainOptions, backend: Backend, train: Split, test: Split):
        self.backend, self.device = backend, backend.device
        self.images, self.labels = self.to_device(train.images), self.to_device(train.labels)
        self.test_images, self.test_labels = self.to_device(test.images), self.to_device(test.labels)
        self.test_total = test.total
        self.model = torch_cnn.build(options.seed, options.network).to(self.device)
        world = backend.world
        workers = options.workers(world.world_size)
        self.draws = WorkerDraws(self.model, options.seed, workers, world.rank, world.world_size, self.device)
        global_batch = options.global_batch(world.world_size)
        steps_per_epoch = shard.steps_per_epoch(len(train.labels), global_batch, 1)
        make_optimizer = optimizers.maker(options, options.warmup_steps(steps_per_epoch))
        self.forward, self.optimizer = backend.prepare(self.model, make_optimizer, options)
        self.in_parts = self.device.type == "cpu" and not backend.one_forward
        self.live_bytes, self.has_stepped = None, False
        torch.manual_seed(options.seed + world.rank)
        self.reset_sums()

    def to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.tensor(array, device=self.device)

    def reset_sums(self) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64, device=self.device)

    def sums(self) -> np.ndarray:
        return self._sums.cpu().numpy()

    def train(self, steps: Iterable, after_step: Callable[..., bool]) -> None:
        for indices, n_global, lr in steps:
            loss = self.train_step(torch.from_numpy(indices).to(self.device), n_global, lr)
            if after_step(len(indices), n_global, lr, loss.item):
                break
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def train_step(self, indices: torch.Tensor, n_global: int, lr: float) -> torch.Tensor:
        """One optimizer step on the mean loss over the global batch of n_global samples, of
        which `indices` are this rank's. Returns their summed loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.draws.prepare(n_global)
        labels = self.labels[indices].long()
        self.model.zero_grad(set_to_none=False)  # a backend's buffer holds the gradients
        parts = indices.split(CPU_ROWS) if self.in_parts else [indices]
        logits = torch.cat([self.forward(torch_cnn.normalise(self.images[part])) for part in parts])
        loss = functional.cross_entropy(logits, labels, reduction="sum")
        # The backend takes the mean over ranks, so world_size cancels: see backends/base.py.
        self.backend.backward(loss * (self.backend.world.world_size / n_global))
        self.backend.average_gradients()
        if self.live_bytes is None and self.has_stepped:
            self.live_bytes = memory.live_bytes(self.model, self.optimizer)
        self.optimizer.step()
        self.has_stepped = True
        self._sums += metric_sums(loss.detach(), logits.detach(), labels)
        return loss.detach()

    @torch.no_grad()
    def evaluate(self) -> np.ndarray:
        self.model.eval()
        sums = torch.zeros_like(self._sums)
        # As many batches on every rank: with sharded weights, each is a collective.
        batches = math.ceil(self.test_total / self.backend.world.world_size / TEST_BATCH)
        split = self.test_images.tensor_split(batches), self.test_labels.tensor_split(batches)
        for images, labels in zip(*split, strict=True):
            logits, labels = self.forward(torch_cnn.normalise(images)), labels.long()
            sums += metric_sums(functional.cross_entropy(logits, labels, reduction="sum"), logits, labels)
        self.model.train()
        return sums.cpu().numpy()

    def weights(self) -> list[np.ndarray]:
        return [weight.cpu().numpy() for weight in self.backend.weights(self.model)]

    def state(self) -> dict:
        return self.backend.state(self.model, self.optimizer)

    def load_state(self, state: dict) -> None:
        self.backend.load_state(self.model, self.optimizer, state)

    def own_state(self) -> dict:
        return {"sums": self._sums.cpu(), "generators": self.draws.state()}

    def load_sums(self, sums: torch.Tensor) -> None:
        self._sums = sums.to(self.device)

    def load_own_state(self, own: dict) -> None:
        self.load_sums(own["sums"])
        self.draws.load_state(own["generators"])


def metric_sums(loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Summed loss, correct answers and samples: float64 [3], which counts exactly to 2**53."""
    correct = (logits.argmax(dim=1) == labels).sum()
    return torch.stack([loss.double(), correct.double(), loss.new_tensor(len(labels)).double()])
