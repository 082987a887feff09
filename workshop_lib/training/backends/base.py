"""One process, no communication: what a training script looks like before it is distributed.

The other backends replace these methods. In a training step the loop calls

    loss = loss_sum(local batch) * world_size / n_global
    backend.backward(loss)
    backend.average_gradients()
    optimizer.step()

so that the mean over ranks is exactly the gradient of the mean loss over the global batch,
also when the ranks hold different numbers of samples, or none.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from workshop_lib.training.world import World

MakeOptimizer = Callable[..., torch.optim.Optimizer]  # of the parameters, and of options to change


class Backend:
    """Communication of one run. Every method is called by all ranks, in the same order."""

    name = "base"
    framework = "PyTorch"
    # Seconds this rank spent in average_gradients; None where that cannot be told apart.
    communication_s: float | None = 0.0
    # time.perf_counter() when this rank entered and left the last averaging's blocking collective;
    # None where there is none, or where it overlaps with backward.
    averaging_span: tuple[float, float] | None = None

    one_forward = False  # whether it hooks into forward, and so expects one a step

    def __init__(self, world: World, device: torch.device):
        self.world, self.device = world, device
        if self.name == "base" and world.world_size > 1:
            raise ValueError("the base backend is for one process: choose another for more ranks")

    def prepare(self, model: nn.Module, make_optimizer: MakeOptimizer, options):
        """Give every rank the weights of rank 0. Returns what to call in the model's place, images to logits,
        and the optimizer to step with."""
        forward, optimizer = self.wrap(model, make_optimizer)
        return (self.in_bf16(forward) if options.precision == "bf16" else forward), optimizer

    def wrap(self, model: nn.Module, make_optimizer: MakeOptimizer):
        """`prepare` for computing in fp32."""
        return model, make_optimizer(model.parameters())

    def in_bf16(self, forward: Callable) -> Callable:
        """Weights stay in fp32; matrix products and convolutions take bf16 copies of them."""

        def call(images: torch.Tensor) -> torch.Tensor:
            with torch.autocast(self.device.type, torch.bfloat16):
                return forward(images).float()

        return call

    def learner(self, options, train_split, test_split):
        """What computes on this rank: see training/learners. Called by all ranks together."""
        from workshop_lib.training.learners.pytorch import TorchLearner

        return TorchLearner(options, self, train_split, test_split)

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients; some backends average them meanwhile."""
        loss.backward()

    def average_gradients(self) -> None:
        """After it, every gradient is the mean over ranks. Blocks; called after backward."""

    def weights(self, model: nn.Module) -> list[torch.Tensor]:
        """All parameters, whole, as this rank computes with them. Blocks, where they are sharded."""
        return [parameter.detach() for parameter in model.parameters()]

    def state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
        """Parameters and what the optimizer remembers of each, whole, by the parameter's name. Blocks, where
        they are sharded."""
        named = dict(model.named_parameters())
        return {
            "model": {name: parameter.detach() for name, parameter in named.items()},
            "optimizer": {name: dict(optimizer.state[p]) for name, p in named.items() if p in optimizer.state},
        }

    def load_state(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict) -> None:
        """Go on from what `state` returned, on any number of ranks."""
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(state["model"][name])
                remembered = state["optimizer"].get(name, {})
                optimizer.state[parameter] = {
                    key: self.placed_like(parameter, value) for key, value in remembered.items()
                }

    def placed_like(self, parameter: nn.Parameter, value: torch.Tensor) -> torch.Tensor:
        """What an optimizer remembers, where it remembers it; a count of steps stays where it is."""
        if value.shape == parameter.shape:
            return value.to(parameter.device, copy=True)
        return value.clone()

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum of each float64 or int64 value over ranks, the same on every rank. Blocks."""
        return values

    def allgather(self, value) -> list:
        """The (picklable) value of each rank, by rank, on every rank. Blocks."""
        return [value]

    def close(self) -> None:
        """Called once, after the run or its failure."""
