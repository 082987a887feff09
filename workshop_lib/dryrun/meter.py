"""Measure what one rank of a plain training script holds, sends and computes in a step, while the script runs.

    METER="python -m workshop_lib.dryrun.meter"
    $METER --out FOLDER SCRIPT …                   a real rank, under torchrun
    $METER --out FOLDER --pretend 3/1024 SCRIPT …  rank 3 of 1,024 that don't exist

Every report in 12_thousand_ranks comes from here, through dry_run.py. The script runs until its optimizer has taken
two steps. The report covers the second step, from the end of the first, and the memory before the first forward
pass. FOLDER/RANK.json has the Report
(step_report.py) of a real rank, or the error that ended the script. For pretended worlds, the files are FOLDER/0.json,
FOLDER/1.json and so on, in the order of the worlds.
"""

import argparse
import contextlib
import json
import linecache
import os
import runpy
import sys
import time
import traceback
import warnings
import weakref
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode

from workshop_lib.dryrun import pretend
from workshop_lib.dryrun.step_report import Report, Shard
from workshop_lib.dryrun.timed import StepClock
from workshop_lib.forecast.forecast import Collective
from workshop_lib.machine import catalogue
from workshop_lib.machine.emulation.device import FORMULAS
from workshop_lib.machine.pretended_gpu import pretended_gpu
from workshop_lib.training import KINDS, memory
from workshop_lib.training.collectives.traffic import NAMES

STEPS = 2  # in the first step, the optimizer creates its state


class EnoughSteps(BaseException):
    """Ends a script that has taken its steps. It is no Exception, because a script might catch that."""


class StepMeter(TorchDispatchMode):
    """Counts collectives, arithmetic and live memory by looking at each PyTorch operator that this thread calls."""

    def __init__(self, clock: StepClock | None = None):
        super().__init__()
        self.clock = clock
        self.steps_to_take = STEPS
        self.live_bytes = 0
        self.building_peak_bytes = 0
        self._sizes: dict[int, int] = {}  # bytes of each storage that is alive
        self._models: dict[int, torch.nn.Module] = {}  # modules in the order of their first call, outer ones first
        self.report: Report | None = None
        self.names: dict[str, str] = {}  # the mesh dimension of each process group
        self.evaluated: dict[tuple, Any] | None = None  # outputs by module and shapes, if those without values will do
        self._start_step()

    def _start_step(self) -> None:
        self.flops = 0
        self.peak_bytes = self.live_bytes
        self.collectives: dict[tuple, Collective] = {}
        if self.clock is not None:
            self.clock.start_step()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # DTensor calls operators on plain tensors next, and these are counted
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and pretend.is_fake(args[0]):
            return _pretended_value(args[0])
        indices = pretend.are_indices(list(memory.tensors([list(args), kwargs])))
        output = (pretend.with_values(func) if indices else func)(*args, **kwargs)
        self._count(func, args, kwargs, output)
        for tensor in memory.tensors([output]):
            self._see(tensor)
        return output

    def _count(self, func, args: tuple, kwargs: dict, output) -> None:
        formula = FORMULAS.get(func._overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=output)
        name = NAMES.get(func._opname) if func.namespace in ("c10d", "_c10d_functional") else None
        if name:
            group = pretend.group_of((*args, *kwargs.values()))
            key = (name, self.names.get(group.group_name, "world"), group.size())
            seen = self.collectives.setdefault(key, Collective(*key))
            seen.calls += 1
            nbytes = max(tensor.nbytes for tensor in memory.tensors([list(args), output]))
            seen.handed_bytes += nbytes
            if self.clock is not None:
                self.clock.collective(name, group, nbytes, output)
        elif self.clock is not None and func._opname == "wait_tensor":
            self.clock.wait_for(args[0])

    def _see(self, tensor: torch.Tensor) -> None:
        if tensor.is_meta:
            return  # takes no memory in a real run, either
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            weakref.finalize(storage, self._change, key, None)
            self._change(key, storage.nbytes())

    def _change(self, key: int, nbytes: int | None) -> None:
        """Record that a storage now has this size, or no longer exists (None)."""
        self.live_bytes += (nbytes or 0) - self._sizes.pop(key, 0)
        if nbytes is not None:
            self._sizes[key] = nbytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    @contextlib.contextmanager
    def watching(self):
        """Turn on this mode, and watch what it can't see: resized storages (FSDP), called modules, ended steps."""
        resize = torch.UntypedStorage.resize_

        def resize_(storage, nbytes):
            resized = resize(storage, nbytes)
            if storage._cdata in self._sizes:
                self._change(storage._cdata, storage.nbytes())
            return resized

        hooks = [
            register_module_forward_pre_hook(self._called),
            register_optimizer_step_post_hook(lambda optimizer, *_: self._step_ended(optimizer)),
        ]
        try:
            with (
                pretend.names_of_groups() as self.names,
                mock.patch.object(torch.UntypedStorage, "resize_", resize_),
                mock.patch.object(torch.nn.Module, "__call__", self._evaluates_once(torch.nn.Module.__call__)),
                self,
            ):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _evaluates_once(self, plain: Callable) -> Callable:
        """Module calls that evaluate each batch once per shape before the first step, whose work isn't reported."""

        def call(module, *args, **kwargs):
            if self.evaluated is None or module.training or torch.is_grad_enabled():
                return plain(module, *args, **kwargs)
            key = (id(module), *(tensor.shape for tensor in memory.tensors([list(args), kwargs])))
            if key not in self.evaluated:
                evaluated, self.evaluated = self.evaluated, None  # the modules in this one keep no outputs
                try:
                    evaluated[key] = plain(module, *args, **kwargs)
                finally:
                    self.evaluated = evaluated
            return self.evaluated[key]

        return call

    def _called(self, module: torch.nn.Module, inputs) -> None:
        if not self._models:
            self.building_peak_bytes = self.peak_bytes
        self._models.setdefault(id(module), module)

    def _step_ended(self, optimizer: torch.optim.Optimizer) -> None:
        self.steps_to_take -= 1
        self.evaluated = None
        if self.steps_to_take:
            self._start_step()
            return
        trained = [p for group in optimizer.param_groups for p in group["params"]]
        wanted = {id(p) for p in trained}
        models = [model for model in self._models.values() if wanted <= {id(p) for p in model.parameters()}]
        names = {id(p): name for name, p in models[-1].named_parameters()} if models else {}
        states = [trained, [p.grad for p in trained], list(optimizer.state.values())]
        sizes = (sum(tensor.nbytes for tensor in memory.tensors(state)) for state in states)
        self.report = Report(
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
            shards=[_shard(names.get(id(p), f"parameter {at}"), p) for at, p in enumerate(trained)],
            state_bytes=dict(zip(KINDS, sizes, strict=True)),
            peak_bytes=self.peak_bytes,
            flops=self.flops,
            collectives=[each for each in self.collectives.values() if each.ranks > 1],
            building_peak_bytes=self.building_peak_bytes,
        )
        if self.clock is not None:
            self.report.step_s, self.report.compute_s = self.clock.took_s()
        raise EnoughSteps


def _pretended_value(scalar: torch.Tensor) -> float | int | bool:
    """The value that loss.item() gets from a tensor without values: 1, or False for a Boolean such as isnan's."""
    if scalar.is_floating_point():
        return 1.0
    if scalar.dtype == torch.bool:
        return False
    return 1


def _shard(name: str, parameter: torch.Tensor) -> Shard:
    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    placements = [str(each) for each in parameter.placements] if isinstance(parameter, DTensor) else []
    return Shard(name, list(parameter.shape), list(local.shape), placements)


class Watcher(Protocol):
    """What looks at a script while it runs, and ends it with EnoughSteps."""

    clock: StepClock | None

    def watching(self) -> contextlib.AbstractContextManager: ...


def run(script: str, options: list[str], meter: Watcher, pretended: tuple[int, int] | None, fake: bool) -> None:
    """Run the script as a program under `meter`, which knows the results afterwards."""
    patches: list = [mock.patch.object(sys, "argv", [script, *options])]
    # Python looks for a script's imports in the script's folder first.
    patches.append(mock.patch.object(sys, "path", [os.path.dirname(os.path.abspath(script)), *sys.path]))
    if pretended:
        rank, size = pretended
        place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        os.environ |= {name: str(value) for name, value in place.items()}
        pretend.join_fake_group(rank, size)
        patches += [mock.patch.object(dist, name) for name in ("init_process_group", "destroy_process_group")]
        new_group = dist.new_group  # scripts may ask for a backend that needs real ranks, such as gloo

        def fake_group(*ranks, **how):
            return new_group(*ranks, **how | {"backend": "fake"})

        patches.append(mock.patch.object(dist, "new_group", fake_group))
    with contextlib.ExitStack() as stack, contextlib.suppress(EnoughSteps):
        for patch in patches:
            stack.enter_context(patch)
        if pretended:
            stack.enter_context(pretend.ddp_without_futures())
            stack.enter_context(pretended_gpu(values=False))
        if fake:
            stack.enter_context(pretend.fake_tensors())
        if meter.clock is not None:
            stack.enter_context(meter.clock.running())
        stack.enter_context(meter.watching())
        runpy.run_path(script, run_name="__main__")


def metered(
    script: str, options: list[str], pretended: tuple[int, int] | None, fake: bool, machine: str | None = None
) -> dict:
    """Run the script, and return its Report as plain data, or {"error": …} with what went wrong."""
    clock = StepClock(catalogue.emulated_machine(machine), pretended[1]) if machine and pretended else None
    meter = StepMeter(clock)
    meter.evaluated = {} if fake else None
    result = dict[str, Any]()
    try:
        run(script, options, meter, pretended, fake)
        if meter.report is None:
            taken = STEPS - meter.steps_to_take
            result = {"error": f"it ended after {taken} steps of its optimizer, and a dry run reads step {STEPS}"}
    except SystemExit as error:
        result = {"error": ended_itself(error)}
    except Exception as error:  # a script may raise anything, and whoever started the dry run gets to read it
        result = {"error": sentence(error, script), "raised": True}
    if meter.report is not None:
        meter.report.fake_tensors = fake
        meter.report.resident_bytes = memory.peak_resident_bytes()
        result = asdict(meter.report)
    return {"peak_bytes": meter.peak_bytes} | result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pretend", action="append", default=[], help="rank/ranks, or rank/ranks@mesh")
    parser.add_argument("--machine", help="the machine whose time a step takes")
    parser.add_argument("--fake", action="store_true", help="tensors without values")
    parser.add_argument("script")
    parser.add_argument("options", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")  # an ordinary run of the script shows warnings
    for number, world in enumerate(args.pretend):
        place, _, mesh = world.partition("@")
        start = time.perf_counter()
        rank, size = map(int, place.split("/"))
        options = [*args.options, "--mesh", mesh] if mesh else args.options
        result = metered(args.script, options, (rank, size), args.fake, args.machine)
        result["seconds"] = time.perf_counter() - start
        (args.out / f"{number}.json").write_text(json.dumps(result), encoding="utf-8")
        dist.destroy_process_group()
        if "error" in result:
            break
    if not args.pretend:
        result = metered(args.script, args.options, None, False)
        (args.out / f"{os.environ['RANK']}.json").write_text(json.dumps(result), encoding="utf-8")
        if dist.is_initialized():
            dist.barrier()  # a rank that exits early would cut off ranks that are still receiving
            dist.destroy_process_group()


def ended_itself(error: SystemExit) -> str:
    reason = f": {error.code}" if isinstance(error.code, str) else f", with exit code {error.code}"
    return f"it ended itself{reason}"


def sentence(error: Exception, script: str) -> str:
    """The error as text, with the line of the script that it came from."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == script]
    where = f" in line {lines[-1]}, `{linecache.getline(script, lines[-1] or 0).strip()}`" if lines else ""
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}{where}: {first[0] if first else 'no message'}"


if __name__ == "__main__":
    main()
