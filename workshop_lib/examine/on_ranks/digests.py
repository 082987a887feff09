"""Digests of tensors, computed where the tensors are: equal tensors have equal digests on every rank.

A digest is a sum of the values' bits, each times a fixed random 64-bit factor, modulo 2^64. Two tensors that differ
have different digests almost certainly, whatever the difference is.
"""

import functools
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

MOST_VALUES = 1024  # of one parameter, evenly spaced; a digest of every step reads no more than these
MOST_OF_SAMPLE = 256  # the same for one sample
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int32, 16: torch.int32}


def tensors_in(value: Any, depth: int = 4) -> Iterator[Tensor]:
    """The tensors in nested lists, tuples and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each, depth - 1)


def samples(tensors: Iterable[Tensor], count: int) -> Tensor:
    """One digest per sample of a batch: an int64 tensor of `count` values. The tensors' first dimension is `count`."""
    total: Any = None
    for tensor in tensors:
        rows = tensor.detach().reshape(count, -1)
        every = max(1, math.ceil(rows.shape[1] / MOST_OF_SAMPLE))
        sums = _sums(rows[:, ::every])
        total = sums if total is None else total * 31 + sums
    return total


def of_each(tensors: Iterable[Tensor], whole: bool = False) -> Tensor | None:
    """One digest per tensor, of evenly spaced values or of all of them; None if there are no tensors."""
    digests = []
    for tensor in tensors:
        values = _flat(tensor.detach())
        every = 1 if whole else max(1, math.ceil(values.numel() / MOST_VALUES))
        digests.append(_sums(values[::every].unsqueeze(0))[0])
    if len({digest.device for digest in digests}) > 1:
        digests = [digest.cpu() for digest in digests]
    return torch.stack(digests) if digests else None


def projection(tensor: Tensor, number: int) -> float:
    """The sum of evenly spaced values, each with a sign that is the same on every rank."""
    values = _flat(tensor.detach())
    values = values[:: max(1, math.ceil(values.numel() / MOST_VALUES))]
    signs = (_factors(values.numel() + number, values.device)[number:] & 2) - 1
    return (values.double() * signs).sum().item()


def of_bytes(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _flat(tensor: Tensor) -> Tensor:
    """The values as one row, without a copy if they lie without gaps in memory, in whichever order."""
    dense = tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))
    return tensor.as_strided((tensor.numel(),), (1,)) if dense else tensor.reshape(-1)


def _sums(rows: Tensor) -> Tensor:
    if rows.numel() == 0:
        return torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    integers = rows.contiguous().view(INTEGERS[rows.element_size()])
    return (integers.to(torch.int64) * _factors(integers.shape[1], rows.device)).sum(1)


@functools.lru_cache(maxsize=256)
def _factors(count: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(count)  # a generator of its own leaves the script's random numbers alone
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator).to(device) | 1
