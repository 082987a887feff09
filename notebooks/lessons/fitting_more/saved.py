"""Counts the bytes that autograd keeps for the backward pass. 06c_fitting_more recomputes to keep fewer."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable

import torch
from torch import nn


def kept_for_backward(forward: Callable[[], torch.Tensor], model: nn.Module) -> tuple[torch.Tensor, int]:
    """Return the output of `forward()` and the bytes that it keeps for the backward pass.

    The model's parameters are not counted.
    """
    saved = SavedForBackward([model])
    with saved:
        output = forward()
    return output, saved.bytes


class _Saved:
    """The object that autograd holds in place of a saved tensor."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor.detach()  # an output that kept its own graph would never be freed


class SavedForBackward(torch.autograd.graph.saved_tensors_hooks):
    """Context manager that counts the bytes autograd keeps for the backward pass, besides these modules' parameters."""

    def __init__(self, modules: Iterable[nn.Module]):
        super().__init__(self._pack, lambda kept: kept.tensor)
        self.own = {p.untyped_storage().data_ptr() for module in modules for p in module.parameters()}
        self.bytes = self.most_bytes = 0
        self.holders: Counter[int] = Counter()  # number of saved tensors in each storage

    def _pack(self, tensor: torch.Tensor) -> _Saved:
        storage = tensor.untyped_storage()
        kept = _Saved(tensor)
        place = storage.data_ptr()
        size = storage.nbytes()
        if place not in self.own:
            self.bytes += 0 if self.holders[place] else size
            self.holders[place] += 1
            self.most_bytes = max(self.most_bytes, self.bytes)
            weakref.finalize(kept, self._drop, place, size)  # autograd drops `kept` after its backward pass
        return kept

    def _drop(self, place: int, size: int) -> None:
        self.holders[place] -= 1
        self.bytes -= 0 if self.holders[place] else size
