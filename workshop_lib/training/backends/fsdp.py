"""PyTorch's FSDP2: each rank keeps a share of every parameter, of its gradient and of the optimizer's state.

    for layer in layers: fully_shard(layer)      its weights are gathered when it computes, then dropped
    fully_shard(model)                           what is in no layer
    optimizer = Adam(model.parameters())         after it, since the parameters are shares now

In backward a layer's gradients are averaged and scattered in one reduce-scatter, so that each rank has
those of its share. That is ZeRO's stage 3.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from workshop_lib.training.backends.ddp import Ddp
from workshop_lib.training.backends.pytorch import MakeOptimizer

IN_BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)


class Fsdp(Ddp):
    """A layer with parameters of its own is a unit that is gathered and dropped."""

    name = "fsdp"

    def prepare(self, model: nn.Module, make_optimizer: MakeOptimizer, options):
        with torch.no_grad():
            for parameter in model.parameters():
                dist.broadcast(parameter, src=0)
        mesh = init_device_mesh(self.device.type, (self.world.world_size,))
        policy = IN_BF16 if options.precision == "bf16" else MixedPrecisionPolicy()
        for layer in model.children():
            if list(layer.parameters()):
                fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        return model, make_optimizer(model.parameters(), fused=False)  # PyTorch's fused SGD takes no shares

    def weights(self, model: nn.Module) -> list[torch.Tensor]:
        return [_whole(parameter.detach()) for parameter in model.parameters()]

    def state(self, model, optimizer) -> dict:
        state = super().state(model, optimizer)
        return {
            "model": {name: _whole(value) for name, value in state["model"].items()},
            "optimizer": {
                name: {key: _whole(value) for key, value in remembered.items()}
                for name, remembered in state["optimizer"].items()
            },
        }

    def load_state(self, model, optimizer, state: Mapping) -> None:
        named = dict(model.named_parameters())
        placed = {name: self.placed_like(named[name], value) for name, value in state["model"].items()}
        super().load_state(model, optimizer, {**state, "model": placed})

    def placed_like(self, parameter: nn.Parameter, value: torch.Tensor) -> torch.Tensor:
        if isinstance(parameter, DTensor) and value.shape == parameter.shape:
            return distribute_tensor(value.to(self.device), parameter.device_mesh, parameter.placements)
        return value.clone()


def _whole(value):
    return value.full_tensor() if isinstance(value, DTensor) else value
