"""All that a dry run takes from PyTorch's private modules, in one file: a process group that only pretends to send, and
tensors that have a shape but no values. tests/lessons/thousand_ranks/test_dry_run.py says what is expected of them."""

import contextlib
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import device_mesh
from torch.nn.parallel import DistributedDataParallel
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


@functools.cache
def _load_fake_collectives() -> None:
    """The file that says what collectives make of tensors without values; its package would import a compiler, too."""
    path = Path(torch.__file__).parent / "distributed" / "_tools" / "fake_collectives.py"
    spec = importlib.util.spec_from_file_location("torch_fake_collectives", path)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


@contextlib.contextmanager
def fake_tensors() -> Iterator[None]:
    """Tensors made meanwhile have no memory, however large they are. Meshes are made of real ones, all the same."""
    _load_fake_collectives()
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
    name: Any = [value for value in args if isinstance(value, str)][-1]
    return _resolve_process_group(name)


@contextlib.contextmanager
def ddp_without_futures() -> Iterator[None]:
    """DDP waits for results, which the pretended group's calls don't have: its buckets go through others."""
    init = DistributedDataParallel.__init__

    def with_hook(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.register_comm_hook(None, _sum_bucket)

    with mock.patch.object(DistributedDataParallel, "__init__", with_hook):
        yield


def _sum_bucket(_, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    buffer = bucket.buffer().div_(dist.get_world_size())
    dist.all_reduce(buffer)
    future: torch.futures.Future = torch.futures.Future()
    future.set_result(buffer)
    return future


@contextlib.contextmanager
def names_of_groups() -> Iterator[dict[str, str]]:
    """What meshes that are made meanwhile call their dimensions, by the name of the process group."""
    names: dict[str, str] = {}
    make = device_mesh.init_device_mesh

    def noted(*args, **kwargs):
        mesh = make(*args, **kwargs)
        for number, name in enumerate(mesh.mesh_dim_names or ()):
            if mesh.size(number) > 1:
                names[mesh.get_group(number).group_name] = name
        return mesh

    with (
        mock.patch.object(device_mesh, "init_device_mesh", noted),
        mock.patch.object(dist, "init_device_mesh", noted, create=True),
    ):
        yield names
