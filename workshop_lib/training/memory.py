"""How much memory one rank's training takes: bytes of its live tensors, and the most memory its process has used."""

import re
import resource
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from torch import nn

from workshop_lib.training import KINDS

# ZeRO's optimizers keep what a rank owns under these names, where torch's have nothing.
ZERO_GRADIENTS = ("averaged_gradients", "all_grad_tensors", "grad_partitions_flat_buffer")
ZERO_MASTERS = ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat")


def live_bytes(model: nn.Module, optimizer) -> dict[str, int]:
    """Bytes that this rank holds of the model's states, by KINDS; memory that two tensors share counts once.

    The moment to ask is between backward and the optimizer's step, from the second step on: the first makes
    its state. model: as it is, or sharded by FSDP2 or ZeRO. optimizer: torch's, or that of a DeepSpeed
    engine. The fp32 copy of weights that ZeRO's optimizers step on counts as theirs. Buckets on their way to
    other ranks are not counted.
    """
    parameters = list(model.parameters())
    states: dict[str, list] = {
        "parameters": [getattr(parameter, "ds_tensor", parameter) for parameter in parameters],
        "gradients": [parameter.grad for parameter in parameters],
        "optimizer": [],
    }
    while optimizer is not None:  # ZeRO's optimizers hold torch's
        states["gradients"] += [getattr(optimizer, name, None) for name in ZERO_GRADIENTS]
        states["optimizer"] += [getattr(optimizer, name, None) for name in ZERO_MASTERS]
        states["optimizer"] += list(getattr(optimizer, "state", {}).values())
        optimizer = getattr(optimizer, "optimizer", None)
    return {kind: storage_bytes(tensors(states[kind])) for kind in KINDS}


def tensors(nested) -> Iterator[torch.Tensor]:
    """The tensors in nested lists and dicts; of a tensor that is sharded, this rank's share."""
    if isinstance(nested, torch.Tensor):
        yield nested.to_local() if hasattr(nested, "to_local") else nested
    elif isinstance(nested, dict | list | tuple):
        for value in nested.values() if isinstance(nested, dict) else nested:
            yield from tensors(value)


def storage_bytes(live: Iterable[torch.Tensor]) -> int:
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in live}
    return sum(storages.values())


def kept_for_backward(forward: Callable[[], torch.Tensor], model: nn.Module) -> tuple[torch.Tensor, int]:
    """What `forward()` returns, and the bytes that it keeps for backward besides the model's parameters."""
    saved = SavedForBackward([model])
    with saved:
        output = forward()
    return output, saved.bytes


class _Saved:
    """What autograd holds instead of a tensor."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor.detach()  # an output that kept its own graph would never be dropped


class SavedForBackward(torch.autograd.graph.saved_tensors_hooks):
    """Counts the bytes that autograd keeps for backward while a `with` lasts, besides these modules' parameters."""

    def __init__(self, modules: Iterable[nn.Module]):
        super().__init__(self._pack, lambda kept: kept.tensor)
        self.own = {p.untyped_storage().data_ptr() for module in modules for p in module.parameters()}
        self.bytes = self.most_bytes = 0
        self.holders: Counter[int] = Counter()  # how many saved tensors lie in a storage

    def _pack(self, tensor: torch.Tensor) -> _Saved:
        storage, kept = tensor.untyped_storage(), _Saved(tensor)
        place, size = storage.data_ptr(), storage.nbytes()
        if place not in self.own:
            self.bytes += 0 if self.holders[place] else size
            self.holders[place] += 1
            self.most_bytes = max(self.most_bytes, self.bytes)
            weakref.finalize(kept, self._drop, place, size)  # autograd drops it when its backward is done
        return kept

    def _drop(self, place: int, size: int) -> None:
        self.holders[place] -= 1
        self.bytes -= 0 if self.holders[place] else size


def reset_peak(device: torch.device) -> None:
    """Begin to look for a new peak."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak of resident memory: proc(5)
    except OSError:
        pass  # not Linux, or not allowed: the peak is then that of the process's life


def peak_bytes(device: torch.device) -> int:
    """The highest since reset_peak, in bytes: of PyTorch on the GPU, else resident memory of the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        status = ""
    if match := re.search(r"VmHWM:\s+(\d+) kB", status):
        return 1024 * int(match[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def keep_freed_memory() -> None:
    """Let the allocator keep what a step frees for the next step.

    glibc gives freed memory back to the system, to be mapped and zeroed again in the next step, until a large
    block has been freed; then it raises its limits (mallopt(3), M_MMAP_THRESHOLD). Freeing one now saves a
    third of the first epoch's time.
    """
    torch.empty(30 * 2**20, dtype=torch.uint8)
