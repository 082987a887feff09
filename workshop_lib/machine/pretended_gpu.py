"""A GPU that isn't there: this process answers what a script asks of torch.cuda and torch.accelerator.

Most public scripts are written for CUDA. Here, "cuda" is a name for the CPU, so dry runs and examine take such scripts
as they are on a machine without a GPU. Autocast for CUDA casts the operations that it casts on a GPU. torch.compile
returns the model as it is. NCCL's groups become those of gloo.
"""

import contextlib
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

from workshop_lib.machine.emulation.clock import CLOCK, OnStream, Stream, StreamEvent

MEMORY_BYTES = 80 * 10**9  # of the pretended GPU, for scripts that ask
DEVICES = 8  # of a node
CPU = torch.device("cpu")
# Functions that autocast computes in 32 bits on a GPU, and in the type of their input on a CPU.
IN_32_BITS = {"cross_entropy", "layer_norm", "log_softmax", "nll_loss", "rms_norm", "softmax"}
# Calls that do nothing, and calls that return a number of bytes.
NOTHING = [
    "empty_cache",
    "init",
    "_lazy_init",
    "ipc_collect",
    "manual_seed",
    "manual_seed_all",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "synchronize",
]
BYTES = ["max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"]


class ChosenGpu:
    """Which of the pretended GPUs the script asked for last; None before it asks for one."""

    index: int | None = None

    def note(self, index: int | None) -> None:
        """A script without a number means the current GPU, which is the first one unless it chose another."""
        if index is not None:
            self.index = index
        elif self.index is None:
            self.index = 0

    def name(self) -> str:
        """The name of this GPU among all of the host, or "cpu"."""
        if self.index is None:
            return "cpu"
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        number = visible[self.index] if self.index < len(visible) else ""
        return f"cuda:{number or self.index}"


CHOSEN = ChosenGpu()


def on_cpu(value: Any) -> Any:
    """The CPU for a device of the pretended GPU, and every other value as it is."""
    if isinstance(value, torch.device) and value.type == "cuda":
        CHOSEN.note(value.index)
        return CPU
    if isinstance(value, str) and value.partition(":")[0] == "cuda":
        number = value.partition(":")[2]
        CHOSEN.note(int(number) if number.isdigit() else None)
        return "cpu"
    return value


def _moved(args: Sequence, kwargs: dict) -> tuple[list, dict]:
    return [on_cpu(each) for each in args], {name: on_cpu(each) for name, each in kwargs.items()}


class GeneratorOnCpu(torch.Generator):
    """A source of random numbers, on the CPU even if the script asks for the GPU."""

    def __new__(cls, device: Any = CPU):
        return super().__new__(cls, on_cpu(device))  # type: ignore[call-arg]


class OnPretendedGpu(TorchFunctionMode):
    """Runs each function of PyTorch on the CPU where the script asks for the GPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.device:
            return func("cuda", *args) if type(args[0]) is int else func(*args, **(kwargs or {}))
        args, kwargs = _moved(args, kwargs or {})
        name = getattr(func, "__name__", "")
        if func is torch.Tensor.cuda:
            CHOSEN.note(args[1] if len(args) > 1 and type(args[1]) is int else None)
            return args[0]
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.__format__ and not args[0].dim():
            return format(args[0].item(), args[1])  # PyTorch itself formats no fake tensor
        if func is torch.Tensor.record_stream:
            return None
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            CHOSEN.note(args[1])
            args[1] = CPU
        if name in IN_32_BITS and torch.is_autocast_enabled("cpu"):
            args = [_in_32_bits(each) for each in args]
            kwargs = {key: _in_32_bits(each) for key, each in kwargs.items()}
        return func(*args, **kwargs)


def _in_32_bits(value: Any) -> Any:
    half = isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if half else value


def _answers() -> dict[str, Any]:
    """What the modules torch.cuda and torch.accelerator answer, by the name of the function or class."""
    about = SimpleNamespace(
        name="a pretended GPU", total_memory=MEMORY_BYTES, major=9, minor=0, multi_processor_count=132
    )
    values = {
        "is_available": True,
        "is_initialized": True,
        "is_bf16_supported": True,
        "is_current_stream_capturing": False,
        "device_count": min(DEVICES, int(os.environ["WORLD_SIZE"])),
        "current_accelerator": torch.device("cuda"),
        "get_device_name": about.name,
        "get_device_properties": about,
        "get_device_capability": (9, 0),
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "mem_get_info": (MEMORY_BYTES, MEMORY_BYTES),
        "get_memory_info": (MEMORY_BYTES, MEMORY_BYTES),
        "memory_summary": "",
        "memory_stats": {},
        **dict.fromkeys(NOTHING),
        **dict.fromkeys(BYTES, 0),
    }
    answers: dict[str, Any] = {name: _always(value) for name, value in values.items()}
    answers |= dict.fromkeys(
        ["current_device", "current_device_index", "current_device_idx"], lambda: CHOSEN.index or 0
    )
    here = _always(contextlib.nullcontext())
    answers |= {"Event": StreamEvent, "Stream": Stream, "StreamContext": OnStream, "stream": OnStream}
    answers |= {"current_stream": lambda *_: CLOCK.stream, "default_stream": lambda *_: CLOCK.default}
    return answers | {"device": here, "device_index": here, "set_device": _choose, "set_device_index": _choose}


def _choose(device: Any) -> None:
    on_cpu(torch.device(device))  # a number means a GPU


def _always(value: Any) -> Callable:
    return lambda *_, **__: value


def _changed(function: Callable, change: Callable[[dict[str, Any]], None]) -> Callable:
    """The same function, whose arguments by name go through `change` first."""
    signature = inspect.signature(function)

    def call(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        change(bound.arguments)
        return function(*bound.args, **bound.kwargs)

    return call


def _cast_there(arguments: dict[str, Any]) -> None:
    if on_cpu(arguments["device_type"]) != arguments["device_type"]:
        arguments["device_type"] = "cpu"
        if arguments.get("dtype") is None:
            arguments["dtype"] = torch.float16  # what CUDA casts to


def _not_pinned(arguments: dict[str, Any]) -> None:
    arguments.pop("pin_memory", None)


def _in_this_process(arguments: dict[str, Any]) -> None:
    arguments["num_workers"] = 0
    for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"):
        arguments.pop(name, None)


def _without_devices(arguments: dict[str, Any]) -> None:
    """DDP takes no devices for a model on the CPU."""
    arguments.pop("device_ids", None)
    arguments.pop("output_device", None)


def _of_gloo(arguments: dict[str, Any]) -> None:
    """A process group of NCCL's becomes one of gloo's."""
    if "nccl" in str(arguments.get("backend")):
        arguments["backend"] = "gloo"
    arguments.pop("device_id", None)


def _mesh_there(arguments: dict[str, Any]) -> None:
    arguments["device_type"] = on_cpu(arguments["device_type"])


def _compiled(model: Any = None, **_) -> Any:
    return model if model is not None else lambda function: function


@contextlib.contextmanager
def pretended_gpu(values: bool = True) -> Iterator[None]:
    """Within this context, a script finds a GPU, and what it asks of this GPU happens on the CPU.

    values: whether tensors have any. Without them, no checkpoint is saved, the steps of a GradScaler are never skipped,
    and batches are loaded in this process.
    """
    answers = _answers()
    parse_to: Callable = torch._C._nn._parse_to

    mode = OnPretendedGpu()
    run: Callable = torch.autograd._engine_run_backward

    def run_backward(*args, **kwargs):
        with mode:  # layers that are recomputed ask for the GPU, too, but PyTorch calls this without the mode
            return run(*args, **kwargs)

    def parse(*args, **kwargs):
        words, named = _moved(args, kwargs)
        for place, each in enumerate(words):
            if type(each) is int:
                CHOSEN.note(each)
                words[place] = CPU
        return parse_to(*words, **named)

    places = [(module, name) for module in (torch.cuda, torch.accelerator) for name in answers if hasattr(module, name)]
    patches = [mock.patch.object(module, name, answers[name]) for module, name in places]
    patches += [
        mock.patch.object(torch._C._nn, "_parse_to", parse),
        mock.patch.object(torch, "compile", _compiled),
        mock.patch.object(torch, "Generator", GeneratorOnCpu),
        mock.patch.object(torch.autograd, "_engine_run_backward", run_backward),
        mock.patch.object(torch, "set_default_device"),
        mock.patch.object(torch.amp.autocast, "__init__", _changed(torch.amp.autocast.__init__, _cast_there)),
        mock.patch.object(DataLoader, "__init__", _changed(DataLoader.__init__, _not_pinned)),
        mock.patch.object(DDP, "__init__", _changed(DDP.__init__, _without_devices)),
        mock.patch.object(dist, "init_process_group", _changed(dist.init_process_group, _of_gloo)),
        mock.patch.object(dist, "new_group", _changed(dist.new_group, _of_gloo)),
        mock.patch.object(DeviceMesh, "__init__", _changed(DeviceMesh.__init__, _mesh_there)),
        mock.patch.object(dist, "is_nccl_available", _always(True)),
    ]
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        if not values:
            stack.enter_context(_without_values())
        stack.enter_context(mode)
        yield


@contextlib.contextmanager
def _without_values() -> Iterator[None]:
    with (
        mock.patch.object(torch, "save"),  # which would replace a checkpoint by one without values
        mock.patch.object(torch.amp.GradScaler, "_maybe_opt_step", _step),
        mock.patch.object(DataLoader, "__init__", _changed(DataLoader.__init__, _in_this_process)),
    ):
        yield


def _step(self, optimizer, _, *args, **kwargs) -> Any:
    """Take the step of an optimizer, which the scaler skips where a gradient is infinite. Fake gradients don't say."""
    return optimizer.step(*args, **kwargs)
