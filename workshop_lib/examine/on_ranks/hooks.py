"""Where PyTorch tells a recorder what the script does: its global hooks, and notes around public functions.

Nothing here may raise into the script, so all that looks at the script's own values runs in `recorder.attempt`.
"""

import functools
import os
import sys
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
from torch.utils.data import DataLoader, DistributedSampler, Subset, get_worker_info
from torch.utils.data._utils import fetch as fetchers
from torch.utils.hooks import RemovableHandle

from workshop_lib.examine.on_ranks import digests
from workshop_lib.examine.on_ranks.recorder import (
    FETCHES,
    FIRST_STEPS,
    RankRecorder,
    _is_shared_out,
    _plain,
    own_shares,
)
from workshop_lib.examine.records import (
    Clip,
    DdpRecord,
    EpochRecord,
    FetchRecord,
    Forward,
    GroupRecord,
    LabelsRecord,
    LoadRecord,
    SamplerSettings,
    SaveRecord,
    ShardRecord,
    WriteRecord,
)

COLLECTIVES = (
    "all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "gather", "all_gather_object", "gather_object",
    "broadcast", "scatter", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier",
    "monitored_barrier", "broadcast_object_list", "scatter_object_list", "send", "recv", "isend", "irecv",
    "batch_isend_irecv",
)  # fmt: skip
LOSSES = ("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "binary_cross_entropy_with_logits")
COUNTERS = ("epoch", "step", "global_step", "iteration", "iter")  # usual names in a checkpoint
# Files of no interest: Python's own, caches, and those that only look like files.
NOT_FILES = ("/dev/", "/proc/", "/sys/", "/.cache/", "__pycache__", "site-packages", "torchinductor", ".lock")


class StartsItsOwnRanks(SystemExit):
    """The script calls mp.spawn although torchrun has started it as one of several ranks."""


def install(recorder: RankRecorder) -> None:
    """Install all hooks in this process."""
    watch_forward(recorder)
    _backward(recorder)
    _optimizers(recorder)
    _loaders(recorder)
    _collectives(recorder)
    _wrappers(recorder)
    watch_gradients(recorder)
    watch_losses(recorder)
    _files(recorder)
    _group(recorder)
    _launches(recorder)


def _replace(owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """Put a function that `make` creates around the original in its place; does nothing if there is no original."""
    original = getattr(owner, name, None)
    if original is not None:
        wrapper: Any = functools.wraps(original)(make(original))
        wrapper.__prepare_scriptable__ = lambda: original  # what torch.jit.script compiles
        setattr(owner, name, wrapper)


def _noting(recorder: RankRecorder, note: Callable[..., None]) -> Callable[[Callable], Callable]:
    """Make functions that call `note` with the original's arguments first. Compiled code does without the note."""

    def make(original: Callable) -> Callable:
        def call(*args, **kwargs):
            if not torch.compiler.is_compiling() and recorder.is_on():
                recorder.attempt(original.__name__, note, *args, **kwargs)
            return original(*args, **kwargs)

        return call

    return make


def watch_forward(recorder: RankRecorder) -> tuple[RemovableHandle, ...]:
    stack: list[Forward | None] = []  # the record of each module that is running; only the outermost has one

    def before(module, args):
        if torch.compiler.is_compiling() or not recorder.is_on():
            return
        outermost = not stack and not recorder.in_backward and not recorder.in_loader
        stack.append(recorder.attempt("forward passes", recorder.forward_begins, module) if outermost else None)
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
            recorder.attempt("forward passes", recorder.forward_ends, module, forward, (*args, kwargs))

    return (
        modules.register_module_forward_pre_hook(before),
        modules.register_module_forward_hook(after, with_kwargs=True, always_call=True),
    )


def _backward(recorder: RankRecorder) -> None:
    def make(original):
        def backward(*args, **kwargs):
            if torch.compiler.is_compiling() or recorder.in_backward or not recorder.is_on():
                return original(*args, **kwargs)
            recorder.attempt("gradients", recorder.backward_begins, args[:1])
            recorder.in_backward = True
            begin_s = time.monotonic()
            try:
                return original(*args, **kwargs)
            finally:
                recorder.in_backward = False
                recorder.attempt("gradients", recorder.backward, begin_s, time.monotonic() - begin_s)

        return backward

    _replace(torch.autograd, "backward", make)


def _optimizers(recorder: RankRecorder) -> None:
    def begins(optimizer, args, kwargs):
        recorder.in_optimizer = recorder.has_optimizer = True
        recorder.attempt("optimizers", recorder.gradients_are_ready)
        recorder.attempt("optimizers", recorder.shares_are_used)

    def ends(optimizer, args, kwargs):
        recorder.in_optimizer = False
        recorder.attempt("optimizers", recorder.optimizer_stepped, optimizer)

    optimizers.register_optimizer_step_pre_hook(begins)
    optimizers.register_optimizer_step_post_hook(ends)

    def make(original):
        def step(scaler, optimizer, *args, **kwargs):
            recorder.stepped = False
            result = original(scaler, optimizer, *args, **kwargs)
            if not recorder.stepped:
                recorder.attempt("optimizers", recorder.optimizer_stepped, optimizer, skipped=True)
            return result

        return step

    _replace(torch.amp.GradScaler, "step", make)

    def scaling(is_scaled: bool) -> Callable[..., None]:
        def note(scaler, *args, **kwargs):
            recorder.scaled = is_scaled and scaler.is_enabled()

        return note

    _replace(torch.amp.GradScaler, "scale", _noting(recorder, scaling(True)))
    _replace(torch.amp.GradScaler, "unscale_", _noting(recorder, scaling(False)))


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
        for batch in iterator:
            recorder.attempt("the order of samples", recorder.keep_indices, key, batch)
            yield batch

    def timed(original):
        def following(iterator):
            number = getattr(iterator, "examined", None)
            if number is None or not recorder.is_on():
                return original(iterator)
            recorder.in_loader = True
            # The first batch of an epoch may draw the seed of its order, so it doesn't count as a random change.
            looks = iterator.examined_before and recorder.looks_at_randomness()
            before = recorder.attempt("random numbers", recorder.random_states) if looks else None
            begin_s = time.monotonic()
            try:
                result = original(iterator)
            finally:
                record = recorder.current()
                record.data_s += time.monotonic() - begin_s
                recorder.in_loader = False
            after = recorder.attempt("random numbers", recorder.random_states) if before else None
            if before and after:
                record.drew_data = [name for name in after if after[name] != before[name]]
            iterator.examined_before = True
            recorder.loader = number
            if recorder.first_step is not None:
                joined = recorder.attempt("the first step", recorder.first_step.batch, number, result)
                result = result if joined is None else joined
            if recorder.step <= FIRST_STEPS:
                recorder.attempt("labels", note_labels, number, result)
            return result

        return following

    def note_labels(number, batch):
        recorder.write(LabelsRecord(loader=number, epoch=epochs[number], values=labels_of(batch)))

    def begin(loader):
        """Write down an epoch's start; returns the loader's number."""
        number = numbers.setdefault(id(loader), len(numbers))
        if number == len(epochs):
            epochs[number] = 0
            recorder.loaders_kept.append(loader)  # so that no other loader gets its id
        epochs[number] += 1
        recorder.flush_indices()
        epoch = _description(loader, number, epochs[number])
        if recorder.now is not None and not recorder.stepped:
            epoch.open_passes = len(recorder.now.backwards)
        recorder.write(epoch)
        chooser = loader.batch_sampler
        if chooser is not None:
            batches_of[id(chooser)] = (number, epochs[number])
            _once(ready, type(chooser), "__iter__", noting_indices)
        return number

    def follow(iterator, number):
        iterator.examined = number
        iterator.examined_before = False
        _once(ready, type(iterator), "__next__", timed)

    def make(original):
        def start(loader):
            if not recorder.is_on():
                return original(loader)
            number = recorder.attempt("a DataLoader", begin, loader)
            iterator = original(loader)
            if number is not None:
                recorder.attempt("a DataLoader", follow, iterator, number)
            return iterator

        return start

    _replace(DataLoader, "__iter__", make)
    _workers(recorder)


def _workers(recorder: RankRecorder) -> None:
    """In workers, note what the first fetches draw from the random number generators."""

    def make(original):
        def fetch(fetcher, *args, **kwargs):
            worker = get_worker_info()
            if worker is None or recorder.fetches >= FETCHES or recorder.is_on():
                return original(fetcher, *args, **kwargs)
            recorder.fetches += 1
            before = recorder.attempt("workers", recorder.random_states)
            result = original(fetcher, *args, **kwargs)
            if before:
                recorder.attempt("workers", note, worker.id, before)
            return result

        return fetch

    def note(worker, before):
        after = recorder.random_states()
        drew = [name for name in after if after[name] != before[name]]
        recorder.write_in_worker(FetchRecord(worker=worker, random=before, drew=drew))

    for fetcher in (fetchers._MapDatasetFetcher, fetchers._IterableDatasetFetcher):
        _replace(fetcher, "fetch", make)


def labels_of(batch: Any) -> list:
    """Each sample's integers, such as its class: what no noise changes. Empty if a batch has none."""
    tensors = [each for each in digests.tensors_in(batch) if each.dim()]
    rows = [each for each in tensors if each.dim() == 1 and each.dtype in (torch.int64, torch.int32)]
    rows = [each for each in rows if each.device.type == "cpu" and len(each) == len(tensors[0])]
    return list(zip(*(each.tolist() for each in rows), strict=True))


def _once(ready: set[type], kind: type, name: str, make: Callable[[Callable], Callable]) -> None:
    """Replace a method of the class that defines it, once; types that Python itself defines stay as they are."""
    owner = next((each for each in kind.__mro__ if name in vars(each)), None)
    if owner is not None and owner not in ready and owner.__module__ != "builtins":
        ready.add(owner)
        _replace(owner, name, make)


def _description(loader: DataLoader, number: int, epoch: int) -> EpochRecord:
    dataset: Any = loader.dataset
    sampler: Any = loader.sampler
    has_length = hasattr(dataset, "__len__")
    settings = None
    if isinstance(sampler, DistributedSampler):
        settings = SamplerSettings(sampler.num_replicas, sampler.rank, sampler.shuffle, sampler.seed, sampler.epoch)
    return EpochRecord(
        loader=number,
        epoch=epoch,
        dataset=type(dataset).__name__,
        samples=len(dataset) if has_length else None,
        batch=loader.batch_size,
        batches=len(loader) if has_length else None,
        sampler=type(sampler).__name__,
        subset=digests.of_bytes(repr(list(dataset.indices)).encode()) if isinstance(dataset, Subset) else None,
        distributed=settings,
    )


def _collectives(recorder: RankRecorder) -> None:
    def make(original):
        name = original.__name__

        def collective(*args, **kwargs):
            if torch.compiler.is_compiling() or recorder.in_collective:
                return original(*args, **kwargs)
            recorder.in_collective = True
            begin_s = time.monotonic()
            about = recorder.attempt("collectives", begin, name, args)
            try:
                return original(*args, **kwargs)
            finally:
                recorder.in_collective = False
                if about:
                    recorder.attempt("collectives", recorder.collective, *about, time.monotonic() - begin_s)

        return collective

    def begin(name, args):
        """Write the collective down before it begins; returns what it is called and its bytes."""
        tensors = list(digests.tensors_in(args[:1]))
        size = sum(each.numel() * each.element_size() for each in tensors)
        decides = recorder.evaluation is not None and is_decision(tensors)
        recorder.last_collective(name)
        return "decision" if decides else name, size

    for name in COLLECTIVES:
        _replace(distributed_c10d, name, make)
        # The same function under both names, because PyTorch compares isend and irecv with its own.
        if hasattr(distributed_c10d, name):
            setattr(distributed, name, getattr(distributed_c10d, name))


def is_decision(tensors: list[Tensor]) -> bool:
    """Whether a collective is about a yes or no, such as whether to stop, and not about a result."""
    if len(tensors) != 1 or tensors[0].numel() != 1 or tensors[0].is_floating_point() or tensors[0].is_complex():
        return False
    return tensors[0].item() in (0, 1)


def _wrappers(recorder: RankRecorder) -> None:
    def make_init(original):
        def init(self, module, *args, **kwargs):
            before = recorder.attempt("DDP", digests_of, module)
            original(self, module, *args, **kwargs)
            recorder.wrapped[id(module)] = self
            recorder.attempt("DDP", wrapped, self, module, before)

        return init

    def digests_of(module):
        return digests.of_each(_plain(module.parameters()))

    def wrapped(ddp, module, before):
        record = DdpRecord(
            before=before,
            after=digests_of(module),
            broadcast_buffers=ddp.broadcast_buffers,
            group=distributed.get_world_size(ddp.process_group),
        )
        recorder.write(record)

    _replace(DistributedDataParallel, "__init__", make_init)

    def before_sharding(module, *args, **kwargs):
        named = [(name, each) for name, each in module.named_parameters() if not isinstance(each, DTensor)]
        if named and not any(each.is_meta for _, each in named):
            names = [name for name, _ in named]
            recorder.write(ShardRecord(names=names, before=digests.of_each(each for _, each in named)))

    _replace(fsdp, "fully_shard", _noting(recorder, before_sharding))

    def sync(module, requires_gradient_sync, *args, **kwargs):
        recorder.fsdp_sync = requires_gradient_sync

    _replace(fsdp.FSDPModule, "set_requires_gradient_sync", _noting(recorder, sync))


def watch_gradients(recorder: RankRecorder) -> None:
    def make(original):
        def clip(parameters, *args, **kwargs):
            recorder.attempt("gradients", recorder.gradients_are_ready)
            norm = original(parameters, *args, **kwargs)
            recorder.attempt("gradients", clipped, norm)
            return norm

        return clip

    def clipped(norm):
        value = None if isinstance(norm, DTensor) else norm  # a sharded one would need a collective
        recorder.current().clips.append(Clip(value, recorder.line(), recorder.scaled))

    _replace(nn.utils, "clip_grad_norm_", make)


def _files(recorder: RankRecorder) -> None:
    def opened(event: str, args: tuple) -> None:
        if event in ("open", "os.rename") and recorder.is_on():
            recorder.attempt("files", note, event, args)

    def note(event: str, args: tuple) -> None:
        path = args[0] if event == "open" else args[1]
        writes = event == "os.rename" or (isinstance(args[1], str) and set(args[1]) & set("wax+"))
        if not writes or not isinstance(path, str | os.PathLike):
            return
        place = os.path.abspath(os.fsdecode(path))
        if not any(part in place for part in NOT_FILES) and not place.startswith(str(recorder.folder)):
            mode = "replace" if event == "os.rename" else args[1]
            recorder.write(WriteRecord(path=place, mode=mode, line=recorder.line()))

    sys.addaudithook(opened)

    def saved(value, file=None, *args, **kwargs):
        path = os.path.abspath(file) if isinstance(file, str | os.PathLike) else getattr(file, "name", "")
        parameters = [each for model in recorder.models.values() for each in model.module.parameters()]
        own = {each.data_ptr() for each in own_shares(parameters)}
        shares = [each for each in digests.tensors_in(value) if _is_shared_out(each) or each.data_ptr() in own]
        recorder.write(SaveRecord(path=str(path), shares=len(shares), line=recorder.line()))

    def loading(what: str) -> Callable[..., None]:
        return lambda *args, **kwargs: recorder.write(LoadRecord(what=what, line=recorder.line()))

    _replace(torch, "save", _noting(recorder, saved))

    def make_load(original):
        def load(*args, **kwargs):
            value = original(*args, **kwargs)
            recorder.attempt("files", read, value)
            return value

        return load

    def read(value):
        record = LoadRecord(what="file", line=recorder.line(), optimizer=holds_optimizer(value))
        if isinstance(value, dict):
            record.counter = next((name for name in COUNTERS if isinstance(value.get(name), int) and value[name]), "")
        recorder.write(record)

    _replace(torch, "load", make_load)
    _replace(nn.Module, "load_state_dict", _noting(recorder, loading("model")))
    _replace(torch.optim.Optimizer, "load_state_dict", _noting(recorder, loading("optimizer")))


def holds_optimizer(value: Any) -> bool:
    """Whether a checkpoint holds the state of an optimizer that has stepped."""
    if not isinstance(value, dict):
        return False
    if {"state", "param_groups"} <= value.keys():
        return bool(value["state"])
    return any(holds_optimizer(each) for each in value.values() if isinstance(each, dict))


def watch_losses(recorder: RankRecorder) -> None:
    """Note how much each sample or token of a loss counts in what the backward pass begins with."""

    def make(original):
        def loss(*args, **kwargs):
            value = original(*args, **kwargs)
            if not torch.compiler.is_compiling() and recorder.looks_at_losses():
                recorder.attempt("losses", note, original.__name__, value, args, kwargs)
            return value

        return loss

    def note(name, value, args, kwargs):
        found = targets_of_loss(name, *args, **kwargs)
        if found is not None and value.requires_grad:
            part = recorder.loss(name, *found)
            part.value = value.detach()
            value.register_hook(functools.partial(setattr, part, "weight"))

    for name in LOSSES:
        _replace(nn.functional, name, make)


def targets_of_loss(name: str, *args: Any, **kwargs: Any) -> tuple[Tensor | int, str] | None:
    """Over how many samples, tokens or values a loss goes, and whether it's their "mean" or "sum"; None if unclear."""
    values, target = (*args[:2], *(kwargs[each] for each in ("input", "target") if each in kwargs))
    reduction = kwargs.get("reduction", "mean")
    weighted = any(kwargs.get(each) is not None for each in ("weight", "size_average", "reduce"))
    if len(args) > 2 or weighted or reduction not in ("mean", "sum"):
        return None
    if name not in ("cross_entropy", "nll_loss"):
        return values.numel(), reduction
    if target.is_floating_point():  # the probabilities of the classes
        return target.numel() // target.shape[-1 if target.dim() == 1 else 1], reduction
    return (target != kwargs.get("ignore_index", -100)).sum(), reduction


def _group(recorder: RankRecorder) -> None:
    def make(original):
        def init(*args, **kwargs):
            result = original(*args, **kwargs)
            recorder.attempt("the group", note)
            return result

        return init

    def note():
        recorder.write(GroupRecord(size=distributed.get_world_size()))

    _replace(distributed, "init_process_group", make)


def _launches(recorder: RankRecorder) -> None:
    """End a script that starts the ranks itself, because nothing watches those."""

    def make(original):
        def start_processes(function, args=(), nprocs=1, *more, **kwargs):
            if nprocs > 1 and not distributed.is_initialized():
                raise StartsItsOwnRanks(f"{recorder.line()} starts {nprocs} processes of its own: {function.__name__}")
            return original(function, args, nprocs, *more, **kwargs)

        return start_processes

    # The module: torch.multiprocessing.spawn is the function in it.
    _replace(sys.modules["torch.multiprocessing.spawn"], "start_processes", make)
