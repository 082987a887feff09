"""One process in PyTorch: what a training script looks like before it is distributed.

The backends for several ranks replace methods of TorchBackend. In each training step, TorchReplica calls

    loss = loss_sum(local batch) * world_size / n_global
    backend.backward(loss)
    backend.average_gradients()
    optimizer.step()

The mean over ranks is then exactly the gradient of the mean loss over the global batch, even if the ranks hold
different numbers of samples, or none.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from workshop_lib.training import memory, optimizers
from workshop_lib.training.backends.base import Backend, CollectiveSpan, StepResult
from workshop_lib.training.data.mnist import Split, classes_and_shape
from workshop_lib.training.models import torch_cnn
from workshop_lib.training.models.dropout import WorkerDraws
from workshop_lib.training.options import TrainOptions

MakeOptimizer = Callable[..., torch.optim.Optimizer]  # takes the parameters, and options to override
TEST_BATCH = 500
CPU_ROWS = 1024  # rows that go through the network at once; more would not fit into a CPU's caches


class TorchBackend(Backend):
    """PyTorch on one process, and the base of PyTorch's backends for several ranks.

    All ranks call every method, in the same order.
    """

    name = "base"
    framework = "PyTorch"
    one_forward = False  # whether the backend hooks into the forward pass and expects one call per step

    def replica(self, options: TrainOptions, train: Split, test: Split) -> "TorchReplica":
        return TorchReplica(options, self, train, test)

    def prepare(self, model: nn.Module, make_optimizer: MakeOptimizer, options):
        """Give every rank the weights of rank 0. Returns the forward function and the optimizer to use.

        The forward function replaces the model, and maps images to logits.
        """
        forward, optimizer = self.wrap(model, make_optimizer)
        return (self.in_bf16(forward) if options.precision == "bf16" else forward), optimizer

    def wrap(self, model: nn.Module, make_optimizer: MakeOptimizer):
        """Do what `prepare` does, for computing in fp32."""
        return model, make_optimizer(model.parameters())

    def in_bf16(self, forward: Callable) -> Callable:
        """Return `forward` with matrix products and convolutions that use bf16 copies of the fp32 weights."""

        def call(images: torch.Tensor) -> torch.Tensor:
            with torch.autocast(self.device.type, torch.bfloat16):
                return forward(images).float()

        return call

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients. Some backends average them at the same time."""
        loss.backward()

    def average_gradients(self) -> CollectiveSpan | None:
        """Make every gradient the mean over ranks. Called after `backward`, and blocks.

        Returns the span of its collective. Returns None if `backward` has averaged already, or if nobody has to.
        """
        return None

    def weights(self, model: nn.Module) -> list[torch.Tensor]:
        """Return all parameters, whole, as this rank computes with them. Blocks if they are sharded."""
        return [self.whole(parameter.detach()) for parameter in model.parameters()]

    def state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
        """Return the parameters and the optimizer's state of each one, whole, by parameter name.

        Blocks if they are sharded.
        """
        named = dict(model.named_parameters())
        return {
            "model": {name: self.whole(parameter.detach()) for name, parameter in named.items()},
            "optimizer": {
                name: {key: self.whole(value) for key, value in optimizer.state[parameter].items()}
                for name, parameter in named.items()
                if parameter in optimizer.state
            },
        }

    def load_state(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping) -> None:
        """Continue from what `state` returned, on any number of ranks."""
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(self.share(parameter, state["model"][name]))
                remembered = state["optimizer"].get(name, {})
                optimizer.state[parameter] = {key: self.share(parameter, value) for key, value in remembered.items()}

    def whole(self, value: torch.Tensor) -> torch.Tensor:
        """Return a whole parameter, or its whole optimizer state, gathered from all ranks' shards."""
        return value

    def share(self, parameter: nn.Parameter, value: torch.Tensor) -> torch.Tensor:
        """Return this rank's shard of a whole value, the inverse of `whole`.

        The shard is on the parameter's device, except for a step count, which stays where it is.
        """
        return value.to(parameter.device, copy=True) if value.shape == parameter.shape else value.clone()


class TorchReplica:
    """The Replica (base.py) of all PyTorch backends.

    Creating it broadcasts the weights, so all ranks create it together.
    """

    def __init__(self, options: TrainOptions, backend: TorchBackend, train: Split, test: Split):
        self.backend = backend
        self.device = backend.device
        self.images = self.to_device(train.images)
        self.labels = self.to_device(train.labels)
        self.test_images = self.to_device(test.images)
        self.test_labels = self.to_device(test.labels)
        self.test_total = test.total
        self.label_smoothing = options.label_smoothing
        self.model = torch_cnn.build(options.seed, options.network, *classes_and_shape(train, test)).to(self.device)
        world = backend.world
        workers = options.workers(world.world_size)
        self.draws = WorkerDraws(self.model, options.seed, workers, world.rank, world.world_size, self.device)
        self.forward, self.optimizer = backend.prepare(self.model, optimizers.maker(options), options)
        self.in_parts = self.device.type == "cpu" and not backend.one_forward
        self.live_bytes: dict[str, int] | None = None
        self.has_stepped = False
        torch.manual_seed(options.seed + world.rank)
        self.reset_sums()

    def to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.tensor(array, device=self.device)

    def reset_sums(self) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64, device=self.device)

    def sums(self) -> np.ndarray:
        return self._sums.cpu().numpy()

    def step(self, indices: np.ndarray, n_global: int, lr: float) -> StepResult:
        own = torch.from_numpy(indices).to(self.device)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.draws.prepare(n_global)
        labels = self.labels[own].long()
        self.model.zero_grad(set_to_none=False)  # keep the tensors, which may be views into a backend's buffer
        parts = own.split(CPU_ROWS) if self.in_parts else [own]
        logits = torch.cat([self.forward(torch_cnn.normalize(self.images[part])) for part in parts])
        loss = functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=self.label_smoothing)
        # The backend takes the mean over ranks, so world_size cancels: see the top of this file.
        self.backend.backward(loss * (self.backend.world.world_size / n_global))
        averaging = self.backend.average_gradients()
        if self.live_bytes is None and self.has_stepped:
            self.live_bytes = memory.live_bytes(self.model, self.optimizer)
        self.optimizer.step()
        self.has_stepped = True
        logits = logits.detach()
        plain = loss.detach()
        if self.label_smoothing:  # the reported loss stays comparable with the test loss
            plain = functional.cross_entropy(logits, labels, reduction="sum")
        self._sums += metric_sums(plain, logits, labels)
        return StepResult(plain, averaging)

    @torch.no_grad()
    def evaluate(self) -> np.ndarray:
        self.model.eval()
        sums = torch.zeros_like(self._sums)
        # Every rank has the same number of batches, because with sharded weights each batch needs collectives.
        batches = math.ceil(self.test_total / self.backend.world.world_size / TEST_BATCH)
        split = self.test_images.tensor_split(batches), self.test_labels.tensor_split(batches)
        for images, labels in zip(*split, strict=True):
            logits = self.forward(torch_cnn.normalize(images))
            labels = labels.long()
            sums += metric_sums(functional.cross_entropy(logits, labels, reduction="sum"), logits, labels)
        self.model.train()
        return sums.cpu().numpy()

    def weights(self) -> list[np.ndarray]:
        return [weight.cpu().numpy() for weight in self.backend.weights(self.model)]

    def state(self) -> dict:
        return self.backend.state(self.model, self.optimizer)

    def load_state(self, state: Mapping) -> None:
        self.backend.load_state(self.model, self.optimizer, state)

    def own_state(self) -> dict:
        return {"sums": self._sums.cpu(), "generators": self.draws.state()}

    def load_own_state(self, own: dict) -> None:
        self._sums = own["sums"].to(self.device)
        generators = own.get("generators", [])
        if len(generators) == len(self.draws.generators):  # otherwise the number of workers changed, and they draw anew
            self.draws.load_state(generators)


def metric_sums(loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the summed loss, the correct answers and the samples: float64 [3], which counts exactly up to 2**53."""
    correct = (logits.argmax(dim=1) == labels).sum()
    return torch.stack([loss.double(), correct.double(), loss.new_tensor(len(labels)).double()])
