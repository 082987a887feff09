"""A process group that only pretends to send, and tensors without values, for the dry runs of 12_thousand_ranks.

All uses of PyTorch's private modules in a dry run are in this file. tests/dryrun/test_dry_run.py says
what we expect of these modules.
"""

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


def join_fake_group(rank: int, world_size: int) -> None:
    """Join a world that doesn't exist, as one of its ranks. Its collectives return at once and move nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)


@functools.cache
def _load_fake_collectives() -> None:
    """Load the file that lets collectives run on tensors without values. Its package would import a compiler, too."""
    path = Path(torch.__file__).parent / "distributed" / "_tools" / "fake_collectives.py"
    spec = importlib.util.spec_from_file_location("torch_fake_collectives", path)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


@contextlib.contextmanager
def fake_tensors() -> Iterator[None]:
    """Within this context, new tensors have a shape but no memory, however large they are.

    Meshes and the samplers of a DataLoader get real tensors, because they read the values.
    """
    _load_fake_collectives()
    from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

    def with_values(function):
        def call(*args, **kwargs):
            with unset_fake_temporarily():
                return function(*args, **kwargs)

        return call

    make = with_values(device_mesh.init_device_mesh)
    with (
        mock.patch.object(torch, "randperm", with_values(torch.randperm)),
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
    """The process group of a collective, from its operator's arguments: an object, or a name, the last text in them."""
    from torch._C._distributed_c10d import _resolve_process_group

    for value in args:
        if isinstance(value, torch.ScriptObject):
            with contextlib.suppress(TypeError, RuntimeError):
                return dist.ProcessGroup.unbox(value)
    name: Any = [value for value in args if isinstance(value, str)][-1]
    return _resolve_process_group(name)


@contextlib.contextmanager
def ddp_without_futures() -> Iterator[None]:
    """Within this context, DDP reduces its buckets with plain calls that it needn't wait for.

    DDP's own calls return futures, which the pretended group doesn't have.
    """
    init = DistributedDataParallel.__init__

    def with_hook(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.register_comm_hook(None, _sum_bucket)

    with mock.patch.object(DistributedDataParallel, "__init__", with_hook):
        yield


def _sum_bucket(_, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    buffer = bucket.buffer().div_(dist.get_world_size())
    work = dist.all_reduce(buffer, async_op=True)
    torch.autograd.Variable._execution_engine.queue_callback(work.wait)  # at the end of the backward pass
    future: torch.futures.Future = torch.futures.Future()
    future.set_result(buffer)
    return future


@contextlib.contextmanager
def names_of_groups() -> Iterator[dict[str, str]]:
    """Within this context, collect the dimension names of new meshes, by the name of their process group."""
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
