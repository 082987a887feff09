"""The emulated device under PyTorch: what computing costs, charged where it happens, even inside a backward pass.

Every operation that multiplies (matrix products, convolutions, attention) moves the clock on by what it would take on
the device: its floating-point operations at the speed that training reaches there, or its bytes at the speed of the
memory, whichever is longer. Everything else is in that reached speed already. Once a layer has a
profile (`takes`), profiles alone are charged.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from workshop_lib.machine.catalogue import Machine
from workshop_lib.machine.emulation.clock import CLOCK, OnStream, Stream, StreamEvent

aten = torch.ops.aten
FORMULAS = dict(flop_counter.flop_registry)
# PyTorch has attention of its own for CPUs, with the operations of that for GPUs.
FORMULAS[aten._scaled_dot_product_flash_attention_for_cpu] = FORMULAS[aten._scaled_dot_product_flash_attention]
FORMULAS[aten._scaled_dot_product_flash_attention_for_cpu_backward] = FORMULAS[
    aten._scaled_dot_product_flash_attention_backward
]
OF_STREAMS = ("Stream", "Event", "StreamContext", "current_stream", "stream", "synchronize")


class DeviceMode(TorchDispatchMode):
    """Charges each operation of this process's main thread, including those of backward passes."""

    def __init__(self, machine: Machine):
        super().__init__()
        self.machine = machine
        self.declared_flop_s: float | None = None  # seconds per operation of a network that stands for a large one
        self.operations = 0  # floating-point operations so far
        self.byte_s = 1 / machine.memory_bytes_per_s if machine.memory_bytes_per_s else 0.0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(kind.__name__ == "DTensor" for kind in types):  # importing the class takes seconds
            return NotImplemented  # its operations on this rank's shards come here next
        result = func(*args, **(kwargs or {}))
        formula = FORMULAS.get(func._overloadpacket)
        if formula is not None:
            operations = formula(*args, **(kwargs or {}), out_val=result)
            self.operations += operations
            if not CLOCK.profiled:
                CLOCK.compute(self.seconds(func, operations, (args, result)))
        return result

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep PyTorch from wrapping this mode, for which it would import its compiler."""
        return False

    def operations_of(self, network: nn.Module, sample: torch.Tensor) -> int:
        """Floating-point operations of training on these samples, which take no emulated time here."""
        before = self.operations
        profiled, CLOCK.profiled = CLOCK.profiled, True
        network(sample).sum().backward()
        CLOCK.profiled = profiled
        return self.operations - before

    def seconds(self, func, flops: int, tensors) -> float:
        if self.declared_flop_s is not None:
            return flops * self.declared_flop_s
        kind = "convolutional" if "convolution" in func.name() else "transformer"
        nbytes = sum(tensor.numel() * tensor.element_size() for tensor in _tensors(tensors))
        return max(flops * self.machine.flop_s(kind), nbytes * self.byte_s)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


class Device:
    """The emulated device of this rank: the mode that charges, and streams that have their own time."""

    def __init__(self, machine: Machine):
        self.mode = DeviceMode(machine)
        self.mode.__enter__()
        self.places = [(torch.cpu, name) for name in OF_STREAMS] + [(torch.accelerator, "current_stream")]
        self.plain = [getattr(module, name) for module, name in self.places]
        replaced: list[Any] = [Stream, StreamEvent, OnStream, _current_stream, OnStream, _synchronize, _current_stream]
        for (module, name), value in zip(self.places, replaced, strict=True):
            setattr(module, name, value)
        self.hook = register_optimizer_step_post_hook(lambda *_: CLOCK.next_step())

    def remove(self) -> None:
        self.mode.__exit__(None, None, None)
        for (module, name), value in zip(self.places, self.plain, strict=True):
            setattr(module, name, value)
        self.hook.remove()


def _current_stream(device=None) -> Stream:
    return CLOCK.stream


def _synchronize(device=None) -> None:
    """Do nothing, because the program runs ahead of no stream that it reads from."""


def may_begin() -> bool:
    """Whether no other mode watches the operations, under which this one could not be removed."""
    return not _get_current_dispatch_mode_stack()


class Charge(torch.autograd.Function):
    """Passes a tensor on, and charges a layer's time: forward here, backward before its gradients are computed."""

    @staticmethod
    def forward(ctx, tensor, forward_s, backward_s):
        ctx.backward_s = backward_s
        CLOCK.compute(forward_s)
        return tensor.clone()  # a view would keep FSDP from finding the backward pass

    @staticmethod
    def backward(ctx, gradient):
        CLOCK.compute(ctx.backward_s)
        return gradient, None, None


def takes(layer: nn.Module, forward_s: float, backward_s: float) -> nn.Module:
    """Have a layer take these seconds on the emulated device, and return it.

    Its gradients are ready when its backward pass ends. Call this before DDP or fully_shard wraps the layer.
    """
    CLOCK.profiled = True
    layer.register_forward_hook(lambda _, args, output: Charge.apply(output, forward_s, backward_s))
    return layer
