"""PyTorch's FSDP2: each rank keeps a shard of every parameter, of its gradient and of the optimizer's state.

    for layer in layers: fully_shard(layer)      gathers a layer's weights when it computes, then frees them
    fully_shard(model)                           shards the parameters outside these layers
    optimizer = Adam(model.parameters())         comes last, because only now are the parameters shards

In the backward pass, one reduce-scatter averages a layer's gradients and gives each rank the gradients of its shard.
That is ZeRO's stage 3.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from workshop_lib.training.backends.ddp import Ddp
from workshop_lib.training.backends.pytorch import MakeOptimizer

IN_BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)


class Fsdp(Ddp):
    """FSDP2 that gathers and frees each child layer with parameters as a unit."""

    name = "fsdp"

    def prepare(self, model: nn.Module, make_optimizer: MakeOptimizer, options):
        with torch.no_grad():
            for parameter in model.parameters():
                dist.broadcast(parameter, src=0, group=self.group)
        mesh = DeviceMesh.from_group(self.group, self.device.type)
        policy = IN_BF16 if options.precision == "bf16" else MixedPrecisionPolicy()
        for layer in model.children():
            if list(layer.parameters()):
                fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        return model, make_optimizer(model.parameters(), fused=False)  # PyTorch's fused SGD cannot update shards

    def whole(self, value):
        return value.full_tensor() if isinstance(value, DTensor) else value

    def share(self, parameter, value: torch.Tensor) -> torch.Tensor:
        if value.shape != parameter.shape:
            return value.clone()
        return distribute_tensor(value.to(self.device), parameter.device_mesh, parameter.placements)
