"""How much memory one rank's training takes: bytes of its live tensors, and the most memory its process has used."""

import re
import resource
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import nn

from workshop_lib.training import KINDS

# Attributes in which ZeRO's optimizers keep what a rank owns. PyTorch's optimizers do not have them.
ZERO_GRADIENTS = ("averaged_gradients", "all_grad_tensors", "grad_partitions_flat_buffer")
ZERO_MASTERS = ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat")


def live_bytes(model: nn.Module, optimizer) -> dict[str, int]:
    """Return how many bytes of the model's states this rank holds, by KINDS. Memory shared by two tensors counts once.

    Call it between the backward pass and the optimizer's step, from the second step on, because the first step creates
    the optimizer's state. model: plain, or sharded by FSDP2 or ZeRO. optimizer: PyTorch's, or the one of a DeepSpeed
    engine. The fp32 copy of the weights that ZeRO's optimizers update counts as optimizer state. Buckets on their way
    to other ranks are not counted.
    """
    parameters = list(model.parameters())
    states: dict[str, list] = {
        "parameters": [getattr(parameter, "ds_tensor", parameter) for parameter in parameters],
        "gradients": [parameter.grad for parameter in parameters],
        "optimizer": [],
    }
    while optimizer is not None:  # ZeRO's optimizers wrap PyTorch's
        states["gradients"] += [getattr(optimizer, name, None) for name in ZERO_GRADIENTS]
        states["optimizer"] += [getattr(optimizer, name, None) for name in ZERO_MASTERS]
        states["optimizer"] += list(getattr(optimizer, "state", {}).values())
        optimizer = getattr(optimizer, "optimizer", None)
    return {kind: storage_bytes(tensors(states[kind])) for kind in KINDS}


def tensors(nested) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested lists and dicts, and only this rank's shard of a sharded tensor."""
    if isinstance(nested, torch.Tensor):
        yield nested.to_local() if hasattr(nested, "to_local") else nested
    elif isinstance(nested, dict | list | tuple):
        for value in nested.values() if isinstance(nested, dict) else nested:
            yield from tensors(value)


def storage_bytes(live: Iterable[torch.Tensor]) -> int:
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in live}
    return sum(storages.values())


def peak_resident_bytes() -> int:
    """Return the most resident memory that this process has had, in bytes."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        status = ""
    if match := re.search(r"VmHWM:\s+(\d+) kB", status):
        return 1024 * int(match[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def keep_freed_memory() -> None:
    """Have the allocator keep the memory that a step frees, so that the next step can use it.

    At first, glibc gives freed memory back to the system, which maps and zeroes it again in the next step. Once a large
    block has been freed, glibc raises its limits (mallopt(3), M_MMAP_THRESHOLD). Freeing a large block now saves a
    third of the first epoch's time.
    """
    torch.empty(30 * 2**20, dtype=torch.uint8)
