"""Where PyTorch tells a recorder what the script does: its global hooks, and notes around public functions."""

import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import distributed_c10d, fsdp
from torch.distributed.tensor import DTensor
from torch.nn.modules import module as modules
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.hooks import RemovableHandle

from workshop_lib.examine.on_ranks import digests
from workshop_lib.examine.on_ranks.recorder import FIRST_STEPS, RankRecorder, _is_shared_out, _plain

COLLECTIVES = (
    "all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "gather", "all_gather_object", "gather_object",
    "broadcast", "scatter", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier",
    "monitored_barrier", "broadcast_object_list", "scatter_object_list", "send", "recv", "isend", "irecv",
    "batch_isend_irecv",
)  # fmt: skip
READ_BY_CPU = ("item", "tolist", "__float__", "cpu")
# Files of no interest: Python's own, caches, and those that only look like files.
NOT_FILES = ("/dev/", "/proc/", "/sys/", "/.cache/", "__pycache__", "site-packages", "torchinductor", ".lock")


def install(recorder: RankRecorder) -> None:
    """Install all hooks in this process."""
    watch_forward(recorder)
    _backward(recorder)
    _optimizers(recorder)
    _loaders(recorder)
    _collectives(recorder)
    _wrappers(recorder)
    watch_gradients(recorder)
    _files(recorder)
    watch_devices(recorder)


def _replace(owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """Put a function that `make` creates around the original in its place; does nothing if there is no original."""
    original = getattr(owner, name, None)
    if original is not None:
        setattr(owner, name, functools.wraps(original)(make(original)))


def _noting(recorder: RankRecorder, note: Callable[..., None]) -> Callable[[Callable], Callable]:
    """Make functions that call `note` with the original's arguments first. Compiled code does without the note."""

    def make(original: Callable) -> Callable:
        def call(*args, **kwargs):
            if not torch.compiler.is_compiling() and recorder.is_on():
                note(*args, **kwargs)
            return original(*args, **kwargs)

        return call

    return make


def watch_forward(recorder: RankRecorder) -> tuple[RemovableHandle, ...]:
    stack: list[dict[str, Any] | None] = []  # the record of each module that is running; only the outermost has one

    def before(module, args):
        if torch.compiler.is_compiling() or not recorder.is_on():
            return
        outermost = not stack and not recorder.in_backward and not recorder.in_loader
        stack.append(recorder.forward_begins(module) if outermost else None)
        recorder.in_forward = True

    def after(module, args, *more):
        # more: keyword arguments and output. After an error PyTorch leaves the former out, and recomputing activations
        # in the backward pass ends with an error that PyTorch raises and catches itself.
        if torch.compiler.is_compiling() or not recorder.is_on() or not stack:
            return
        kwargs = more[0] if len(more) == 2 else {}
        forward = stack.pop()
        recorder.in_forward = bool(stack)
        if forward is not None:
            recorder.forward_ends(module, forward, (*args, kwargs))

    return (
        modules.register_module_forward_pre_hook(before),
        modules.register_module_forward_hook(after, with_kwargs=True, always_call=True),
    )


def _backward(recorder: RankRecorder) -> None:
    def make(original):
        def backward(*args, **kwargs):
            if torch.compiler.is_compiling() or recorder.in_backward:
                return original(*args, **kwargs)
            recorder.in_backward = True
            begin_s = time.monotonic()
            try:
                return original(*args, **kwargs)
            finally:
                recorder.in_backward = False
                recorder.backward(begin_s, time.monotonic() - begin_s)

        return backward

    _replace(torch.autograd, "backward", make)


def _optimizers(recorder: RankRecorder) -> None:
    optimizers.register_optimizer_step_post_hook(lambda optimizer, args, kwargs: recorder.optimizer_stepped(optimizer))

    def make(original):
        def step(scaler, optimizer, *args, **kwargs):
            recorder.stepped = False
            result = original(scaler, optimizer, *args, **kwargs)
            if not recorder.stepped:
                recorder.optimizer_stepped(optimizer, skipped=True)
            return result

        return step

    _replace(torch.amp.GradScaler, "step", make)


def _loaders(recorder: RankRecorder) -> None:
    numbers: dict[int, int] = {}  # by the id of a loader
    epochs: dict[int, int] = {}  # by a loader's number
    batches_of: dict[int, tuple[int, int]] = {}  # loader and epoch, by the id of the object that chooses batches
    ready: set[type] = set()

    def noting_indices(original):
        def iterate(chooser):
            iterator = original(chooser)
            return iterator if id(chooser) not in batches_of else keep(iterator, batches_of[id(chooser)])

        return iterate

    def keep(iterator, key):
        recorder.indexed.add(key[0])
        for batch in iterator:
            recorder.indices.setdefault(key, []).extend([int(each) for each in batch])
            yield batch

    def timed(original):
        def following(iterator):
            number = getattr(iterator, "examined", None)
            if number is None or not recorder.is_on():
                return original(iterator)
            recorder.in_loader = True
            # The first batch of an epoch may draw the seed of its order, so it doesn't count as a random change.
            looks = iterator.examined_before and recorder.looks_at_randomness()
            before = recorder.random_states() if looks else {}
            begin_s = time.monotonic()
            try:
                result = original(iterator)
            finally:
                record = recorder.current()
                record["data_s"] += time.monotonic() - begin_s
                recorder.in_loader = False
            if looks:
                after = recorder.random_states()
                record["drew_data"] = [name for name in after if after[name] != before[name]]
            iterator.examined_before = True
            recorder.loader = number
            if recorder.step <= FIRST_STEPS:
                recorder.write("labels", loader=number, epoch=epochs[number], values=labels_of(result))
            return result

        return following

    def make(original):
        def start(loader):
            if not recorder.is_on():
                return original(loader)
            number = numbers.setdefault(id(loader), len(numbers))
            if number == len(epochs):
                epochs[number] = 0
                recorder.loaders_kept.append(loader)  # so that no other loader gets its id
            epochs[number] += 1
            recorder.flush_indices()
            recorder.write(
                "epoch",
                loader=number,
                epoch=epochs[number],
                random=recorder.random_states()["torch"],
                **_description(loader),
            )
            chooser = loader.batch_sampler
            if chooser is not None:
                batches_of[id(chooser)] = (number, epochs[number])
                _once(ready, type(chooser), "__iter__", noting_indices)
            iterator = original(loader)
            _once(ready, type(iterator), "__next__", timed)
            iterator.examined = number
            iterator.examined_before = False
            return iterator

        return start

    _replace(DataLoader, "__iter__", make)


def labels_of(batch: Any) -> list:
    """Each sample's integers, such as its class: what no noise changes. Empty if a batch has none."""
    tensors = list(digests.tensors_in(batch))
    rows = [each for each in tensors if each.dim() == 1 and each.dtype in (torch.int64, torch.int32)]
    rows = [each for each in rows if each.device.type == "cpu" and len(each) == len(tensors[0])]
    return list(zip(*(each.tolist() for each in rows), strict=True))


def _once(ready: set[type], kind: type, name: str, make: Callable[[Callable], Callable]) -> None:
    """Replace a method of the class that defines it, once; types that Python itself defines stay as they are."""
    owner = next((each for each in kind.__mro__ if name in vars(each)), None)
    if owner is not None and owner not in ready and owner.__module__ != "builtins":
        ready.add(owner)
        _replace(owner, name, make)


def _description(loader: DataLoader) -> dict[str, Any]:
    dataset: Any = loader.dataset
    sampler: Any = loader.sampler
    transform = repr(getattr(dataset, "transform", ""))
    description: dict[str, Any] = {
        "dataset": type(dataset).__name__,
        "samples": len(dataset) if hasattr(dataset, "__len__") else None,
        "batch": loader.batch_size,
        "batches": len(loader) if hasattr(dataset, "__len__") else None,
        "workers": loader.num_workers,
        "sampler": type(sampler).__name__,
        "random_transform": "Random" in transform,
    }
    if isinstance(sampler, DistributedSampler):
        names = ("num_replicas", "rank", "shuffle", "seed", "epoch")
        description["distributed"] = {name: getattr(sampler, name) for name in names}
    return description


def _collectives(recorder: RankRecorder) -> None:
    def make(original):
        name = original.__name__

        def collective(*args, **kwargs):
            if torch.compiler.is_compiling() or recorder.in_collective:
                return original(*args, **kwargs)
            recorder.in_collective = True
            begin_s = time.monotonic()
            tensors = list(digests.tensors_in(args[:1]))
            size = sum(each.numel() * each.element_size() for each in tensors)
            decides = recorder.evaluation is not None and is_decision(tensors)
            recorder.last_collective(name)
            try:
                result = original(*args, **kwargs)
            finally:
                recorder.in_collective = False
                recorder.collective("decision" if decides else name, size, time.monotonic() - begin_s)
            if result is None and name == "all_reduce" and is_whole_number(tensors):
                recorder.current()["counts"].append(tensors[0].item())
            return result

        return collective

    for name in COLLECTIVES:
        _replace(distributed_c10d, name, make)
        # The same function under both names, because PyTorch compares isend and irecv with its own.
        if hasattr(distributed_c10d, name):
            setattr(distributed, name, getattr(distributed_c10d, name))


def is_decision(tensors: list[Tensor]) -> bool:
    """Whether a collective is about a yes or no, such as whether to stop, and not about a result."""
    return is_whole_number(tensors) and tensors[0].item() in (0, 1)


def is_whole_number(tensors: list[Tensor]) -> bool:
    if len(tensors) != 1 or tensors[0].is_meta:
        return False
    return tensors[0].numel() == 1 and not tensors[0].is_floating_point() and not tensors[0].is_complex()


def _wrappers(recorder: RankRecorder) -> None:
    def make_init(original):
        def init(self, module, *args, **kwargs):
            before = digests.of_each(_plain(module.parameters()))
            original(self, module, *args, **kwargs)
            recorder.wrapped[id(module)] = self
            recorder.write(
                "ddp",
                before=before,
                after=digests.of_each(_plain(module.parameters())),
                find_unused=self.find_unused_parameters,
                broadcast_buffers=self.broadcast_buffers,
                group=distributed.get_world_size(self.process_group),
            )

        return init

    _replace(DistributedDataParallel, "__init__", make_init)

    def before_sharding(module, *args, **kwargs):
        named = [(name, each) for name, each in module.named_parameters() if not isinstance(each, DTensor)]
        if named and not any(each.is_meta for _, each in named):
            names = [name for name, _ in named]
            recorder.write("shard", names=names, before=digests.of_each(each for _, each in named))

    _replace(fsdp, "fully_shard", _noting(recorder, before_sharding))

    def sync(module, requires_gradient_sync, *args, **kwargs):
        recorder.fsdp_sync = requires_gradient_sync

    _replace(fsdp.FSDPModule, "set_requires_gradient_sync", _noting(recorder, sync))


def watch_gradients(recorder: RankRecorder) -> None:
    def make(original):
        def clip(parameters, *args, **kwargs):
            norm = original(parameters, *args, **kwargs)
            value = None if isinstance(norm, DTensor) else norm  # a sharded one would need a collective
            recorder.current()["clips"].append([value, recorder.line()])
            return norm

        return clip

    _replace(nn.utils, "clip_grad_norm_", make)

    def make_read(original):
        def read(tensor, *args, **kwargs):
            # What a dataset reads while it loads is on the CPU.
            if torch.compiler.is_compiling() or recorder.in_loader or not recorder.is_called_by_script():
                return original(tensor, *args, **kwargs)
            begin_s = time.monotonic()
            result = original(tensor, *args, **kwargs)
            record = recorder.current()
            record["items"] += 1
            record["items_s"] += time.monotonic() - begin_s
            return result

        return read

    for name in READ_BY_CPU:
        _replace(Tensor, name, make_read)


def _files(recorder: RankRecorder) -> None:
    def opened(event: str, args: tuple) -> None:
        if event not in ("open", "os.rename") or not recorder.is_on():
            return
        path = args[0] if event == "open" else args[1]
        writes = event == "os.rename" or (isinstance(args[1], str) and set(args[1]) & set("wax+"))
        if not writes or not isinstance(path, str | os.PathLike):
            return
        place = os.path.abspath(os.fspath(path))
        if not any(part in place for part in NOT_FILES) and not place.startswith(str(recorder.folder)):
            mode = "replace" if event == "os.rename" else args[1]
            recorder.write("write", path=place, mode=mode, line=recorder.line())

    sys.addaudithook(opened)

    def saved(value, file=None, *args, **kwargs):
        path = os.path.abspath(file) if isinstance(file, str | os.PathLike) else getattr(file, "name", "")
        shares = [each for each in digests.tensors_in(value) if _is_shared_out(each)]
        recorder.write("save", path=str(path), shares=len(shares), line=recorder.line())

    def loading(what: str) -> Callable[..., None]:
        return lambda *args, **kwargs: recorder.write("load", what=what, line=recorder.line())

    _replace(torch, "save", _noting(recorder, saved))
    _replace(torch, "load", _noting(recorder, loading("file")))
    _replace(nn.Module, "load_state_dict", _noting(recorder, loading("model")))
    _replace(torch.optim.Optimizer, "load_state_dict", _noting(recorder, loading("optimizer")))


def watch_devices(recorder: RankRecorder) -> None:
    def choose(device, *args, **kwargs):
        if threading.current_thread() is threading.main_thread():  # the DataLoader's pinning thread calls it, too
            recorder.write("device", device=str(device))

    _replace(torch.cuda, "set_device", _noting(recorder, choose))
    _replace(torch.accelerator, "set_device_index", _noting(recorder, choose))

    def make(original):
        def init(*args, **kwargs):
            result = original(*args, **kwargs)
            recorder.write("group", size=distributed.get_world_size(), backend=distributed.get_backend())
            return result

        return init

    _replace(distributed, "init_process_group", make)
