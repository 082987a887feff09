"""DeepSpeed and its ZeRO stages. These calls turn a one-process script into one that uses DeepSpeed:

    deepspeed.init_distributed(dist_backend="gloo")                    joins the other processes
    engine, *_ = deepspeed.initialize(model=…, optimizer=…, config=…)  gives every rank the weights of rank 0
    engine.backward(loss)                                              averages the gradients
    engine.step()                                                      replaces optimizer.step()

ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054): stage 0 is plain data parallelism. From stage 1 on, each rank keeps
only a shard of the optimizer's state, from stage 2 on also of the gradients, and in stage 3 also of the parameters.
"""

import logging
import os
import warnings
from collections.abc import Mapping
from typing import Any

import torch

# DeepSpeed reads this variable when it starts.
if not torch.cuda.is_available():
    os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch.distributed as dist
from deepspeed.utils import (
    groups,
    logger,
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_optimizer_state,
)
from torch import nn
from torch.nn import functional

from workshop_lib.training.backends.ddp import Ddp
from workshop_lib.training.backends.pytorch import MakeOptimizer
from workshop_lib.training.models import torch_cnn
from workshop_lib.training.rendezvous import join_process_group

logger.setLevel(logging.ERROR)  # otherwise it would log messages about every engine it creates


def join_deepspeed(world, device: torch.device) -> None:
    """Join this process's process group, and have DeepSpeed use it. All ranks call it, and it blocks.

    No compiler starts. Otherwise DeepSpeed would spend a minute or two here on a CPU, building its own allreduce.
    """
    join_process_group(world, device)
    # DeepSpeed takes the rank's GPU from the first variable, and stops if the second one disagrees. Open MPI sets the
    # second one, and may count local ranks differently.
    for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"):
        os.environ[name] = str(world.local_rank)
    # Otherwise DeepSpeed compiles test programs to find out which operations of its own it could compile.
    deepspeed.ops.__compatible_ops__ = {}
    # DeepSpeed calls functions that PyTorch has deprecated.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    if not deepspeed.comm.is_initialized():
        deepspeed.init_distributed(dist_backend=dist.get_backend(), auto_mpi_discovery=False, verbose=False)
    # DeepSpeed would clone this group without a timeout. With gloo on busy cores, that has hung.
    groups._WORLD_GROUP = dist.group.WORLD


def config(batch_size: int, zero_stage: int, precision: str = "fp32") -> dict:
    """Return DeepSpeed's configuration for one of PyTorch's optimizers. DeepSpeed's own would have to be compiled."""
    return {
        "train_micro_batch_size_per_gpu": batch_size,
        "zero_optimization": {"stage": zero_stage},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,  # if unset, DeepSpeed scales gradients down to a norm of 1
        "bf16": {"enabled": precision == "bf16"},
        "steps_per_print": None,
    }


class Deepspeed(Ddp):
    """DeepSpeed's engine, whose optimizer updates its shard of fp32 weights even if the model's weights are in bf16."""

    name = "deepspeed"
    engine: Any = None

    def __init__(self, world, device):
        super().__init__(world, device)
        join_deepspeed(world, device)

    def replica(self, options, train, test):
        self.shape = train.shape
        return super().replica(options, train, test)

    def prepare(self, model: nn.Module, make_optimizer: MakeOptimizer, options):
        # Stage 0 has no fp32 copy of the weights to update, so it casts to bf16 as the other backends do.
        self.sharded = options.zero_stage > 0
        precision = options.precision if self.sharded else "fp32"
        self.engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=make_optimizer(model.parameters()),
            config=config(options.batch_size, options.zero_stage, precision),
        )
        forward = self.engine
        if options.precision == "bf16":
            forward = self.with_bf16_weights if self.sharded else self.in_bf16(self.engine)
        return forward, EngineOptimizer(self.engine)

    def with_bf16_weights(self, images: torch.Tensor) -> torch.Tensor:
        return self.engine(images.bfloat16()).float()

    def backward(self, loss: torch.Tensor) -> None:
        self.engine.backward(loss)

    def weights(self, model: nn.Module) -> list[torch.Tensor]:
        """Return all parameters, whole and in fp32. All ranks call it.

        In ZeRO's stages 1 and 2 they are this rank's own copy, so that comparing the ranks can find differences.
        """
        with deepspeed.zero.GatheredParameters(list(model.parameters())):
            return [parameter.detach().float().clone() for parameter in model.parameters()]

    def state(self, model: nn.Module, optimizer) -> dict:
        if not self.sharded:
            return super().state(model, self.engine.optimizer)
        remembered: dict = next(iter(self.engine.basic_optimizer.state.values()), {})
        shared = {key: value for key, value in remembered.items() if not _sharded(value)}
        state: dict = {"model": {}, "optimizer": {}}
        for name, parameter in model.named_parameters():
            state["model"][name] = safe_get_full_fp32_param(parameter)
            state["optimizer"][name] = shared | {
                key: safe_get_full_optimizer_state(parameter, key)
                for key, value in remembered.items()
                if _sharded(value)
            }
        return state

    def load_state(self, model: nn.Module, optimizer, state: Mapping) -> None:
        if not self.sharded:
            super().load_state(model, self.engine.optimizer, state)
            return
        self.step_in_place()
        named = dict(model.named_parameters())
        with torch.no_grad(), deepspeed.zero.GatheredParameters(list(named.values()), modifier_rank=0):
            for name, parameter in named.items():
                parameter.copy_(state["model"][name])
        for name, parameter in named.items():  # set the copy that the optimizer updates, and its state
            self.set_share(parameter, state["model"][name])
            for key, value in state["optimizer"].get(name, {}).items():
                if value.shape == state["model"][name].shape:
                    self.set_share(parameter, value, key)
                    continue
                for remembered in self.engine.basic_optimizer.state.values():
                    remembered[key] = value.clone()

    def set_share(self, parameter, value: torch.Tensor, key: str | None = None) -> None:
        """Set the optimizer's copy of a parameter, or its state under `key`, from the whole value."""
        of_stage_3 = hasattr(parameter, "ds_tensor")
        if of_stage_3:
            # All shards have the same size, and the last is padded, which the setter of whole values does not expect.
            size = parameter.ds_tensor.numel()
            filled = functional.pad(value.flatten(), (0, size * self.world.world_size - value.numel()))
            value = filled[size * self.world.rank :][:size]
        if key is None:
            (safe_set_local_fp32_param if of_stage_3 else safe_set_full_fp32_param)(parameter, value)
        else:
            set_state = safe_set_local_optimizer_state if of_stage_3 else safe_set_full_optimizer_state
            set_state(parameter, value, key)

    def step_in_place(self) -> None:
        """Do one step with zero gradients.

        The first step creates the optimizer's state, and the list of which shard of it belongs to which parameter.
        """
        images = torch_cnn.normalize(torch.zeros(1, *self.shape, dtype=torch.uint8, device=self.device))
        dtype = next(self.engine.module.parameters()).dtype
        self.engine.backward(self.engine(images.to(dtype)).sum() * 0.0)
        self.engine.step()

    def close(self) -> None:
        if self.engine is not None:
            self.engine.destroy()


class EngineOptimizer:
    """Adapter that makes the engine look like an optimizer."""

    def __init__(self, engine):
        self.optimizer = engine.optimizer
        self.step = engine.step

    @property
    def param_groups(self) -> list[dict]:
        return self.optimizer.param_groups


def _sharded(value) -> bool:
    """Return whether this optimizer state has one value per weight. A step count, for example, is only one number."""
    return isinstance(value, torch.Tensor) and value.dim() > 0
