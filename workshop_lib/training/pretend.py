"""All that a dry run takes from PyTorch's private modules, in one file: a process group that only pretends to send, and
tensors that have a shape but no values. tests/unit/test_dry_run.py says what is expected of them."""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import device_mesh
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten
# A CPU's attention counts as a GPU's, with the same arguments first.
FLOPS = {
    **flop_registry,
    aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[aten._scaled_dot_product_flash_attention],
    aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        aten._scaled_dot_product_flash_attention_backward
    ],
}


def join_fake_group(rank: int, world_size: int) -> None:
    """Be one rank of a world that doesn't exist: collectives return at once, and move nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)


@contextlib.contextmanager
def fake_tensors() -> Iterator[None]:
    """Tensors made meanwhile have no memory, however large they are. Meshes are made of real ones, all the same."""
    import torch.distributed._tools.fake_collectives  # noqa: F401  (it says what collectives make of such tensors)
    from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

    def with_values(function):
        def call(*args, **kwargs):
            with unset_fake_temporarily():
                return function(*args, **kwargs)

        return call

    make = with_values(device_mesh.init_device_mesh)
    with (
        mock.patch.object(device_mesh, "init_device_mesh", make),
        mock.patch.object(dist, "init_device_mesh", make, create=True),
        mock.patch.object(device_mesh.DeviceMesh, "__init__", with_values(device_mesh.DeviceMesh.__init__)),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        yield


def is_fake(tensor: torch.Tensor) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


def group_of(args: tuple) -> dist.ProcessGroup:
    """The process group among the arguments of a collective's operator: an object, or the last text, its name."""
    from torch._C._distributed_c10d import _resolve_process_group

    for value in args:
        if isinstance(value, torch.ScriptObject):
            with contextlib.suppress(TypeError, RuntimeError):
                return dist.ProcessGroup.unbox(value)
    return _resolve_process_group([value for value in args if isinstance(value, str)][-1])


def group_name(group: dist.ProcessGroup) -> str:
    """What a script calls the dimension of its mesh that the group belongs to, or "world" for all ranks."""
    text: Any = group.group_desc
    return text.removeprefix("mesh_") if text.startswith("mesh_") else "world"


def needs_values(error: BaseException) -> bool:
    """Whether a script failed only because its tensors had no values."""
    from torch._subclasses import fake_tensor

    kinds = (
        fake_tensor.DataDependentOutputException,
        fake_tensor.DynamicOutputShapeException,
        fake_tensor.UnsupportedOperatorException,
    )
    words = ("FakeTensor", "data pointer", "Meta tensors", "meta tensor", "numpy()")
    return isinstance(error, kinds) or any(word in str(error) for word in words)
