"""Writes down what one rank does, one record per line (examine/records.py)."""

import contextlib
import faulthandler
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from workshop_lib.examine.on_ranks import digests
from workshop_lib.examine.on_ranks.first_step import FirstStep
from workshop_lib.examine.records import (
    Backward,
    CollectiveCalls,
    CollectiveRecord,
    EndRecord,
    ErrorRecord,
    EvaluationRecord,
    FetchRecord,
    Forward,
    IndicesRecord,
    LossPart,
    ModelRecord,
    OptimizerStep,
    ParameterRecord,
    Record,
    StartRecord,
    StepRecord,
    UnseenRecord,
    as_json,
    plain,
)
from workshop_lib.machine.pretended_gpu import ChosenGpu
from workshop_lib.ranks.faults import whereabouts

BUDGET = 0.03  # of the time: when looking at the weights takes more than that, they are looked at less often
FIRST_STEPS = 30  # these are looked at closely, however long that takes
FETCHES = 2  # of each loading worker; in these, its random numbers are looked at
UNIFORM = 1e-3  # of the largest of several factors, which count as one
Found = TypeVar("Found")
TRANSFORM = torch._C._functorch.peek_interpreter_stack  # of torch.func; None outside of it
IN_TRAINING = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)  # they work differently in training
MOST_WHOLE = 500_000_000  # elements of a model; the last weights of a larger one are compared by their sampled values


class TrackedModel:
    """A module that the script calls from outside of any other module, under the number by which records name it."""

    def __init__(self, number: int, module: nn.Module):
        self.number = number
        self.module = module
        self.trained = False


class RankRecorder:
    """The state of one rank's observation. All times are seconds of a clock that the ranks of one host share."""

    def __init__(self, folder: Path, rank: int, most_steps: int, folder_of_script: str):
        self.rank = rank
        self.most_steps = most_steps
        self.folder_of_script = folder_of_script
        self.folder = folder
        self.is_worker = False
        self.fetches = 0  # what this process, if it's a worker, has loaded
        self.first_step: FirstStep | None = None  # where the first step is kept or repeated, if it is
        self.pretended_gpu: ChosenGpu | None = None  # what the script asked for, if there is no GPU
        self.file = open(folder / f"rank.{rank}.jsonl", "w", buffering=1)  # noqa: SIM115 - open until the rank ends
        self.stacks = open(folder / f"stack.{rank}.txt", "a")  # noqa: SIM115 - faulthandler writes to it at any time
        whereabouts.answer(folder, rank)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # from when Python shuts down, and faulthandler with it
        # Not of all threads: their frames change while faulthandler reads them, which may crash the script.
        faulthandler.register(signal.SIGUSR1, self.stacks, all_threads=False)
        os.register_at_fork(after_in_child=self._leave)
        self.models: dict[int, TrackedModel] = {}  # by the id of a module, or of its first parameter
        self.wrapped: dict[int, nn.Module] = {}  # the DDP wrapper of a module, by the module's id
        self.active: TrackedModel | None = None  # the first model of this step
        self.step = 0
        self.now: StepRecord | None = None  # the record of this step
        self.evaluation: EvaluationRecord | None = None
        self.stepped = False
        self.in_backward = False
        self.in_forward = False
        self.in_loader = False
        self.in_collective = False
        self.in_optimizer = False
        self.has_optimizer = False
        self.scaled = False  # whether the gradients are still those of a loss that a GradScaler has scaled
        self.ddp_sync: bool | None = None  # whether DDP's last forward pass prepared to send; None without DDP
        self.fsdp_sync = True
        self.unseen: set[str] = set()
        self.loaders_kept: list[Any] = []
        self.loader: int | None = None  # the loader that gave a batch last
        self.indices: dict[tuple[int, int], list[int]] = {}  # not written yet, by loader and epoch
        self.indexed: set[int] = set()  # the loaders whose indices are written down
        self.before: Tensor | None = None  # digests of the gradients when a backward pass begins
        self.share_norms: list[float] = []  # of this rank's shares of the gradients, after the last backward pass
        self.used: dict[int, Tensor | None] = {}  # digests of the last step's gradients, by a model's number
        self.every = 1
        self.spent_s = 0.0
        self.first_step_s = 0.0
        self.between = StepRecord()  # the next step's record: what happens before that step begins counts as its own
        self.write(StartRecord(pid=os.getpid(), main_thread=threading.main_thread().ident or 0))

    def write(self, record: Record) -> None:
        if self.is_on():
            began_s = time.monotonic()
            record.step = self.step
            self.file.write(json.dumps(as_json(record), default=plain) + "\n")
            self.spent_s += time.monotonic() - began_s

    def attempt(self, what: str, look: Callable[..., Found], *args: Any, **kwargs: Any) -> Found | None:
        """What `look` returns. If it fails, None: the script goes on, and the report says what couldn't be seen."""
        try:
            return look(*args, **kwargs)
        except Exception as error:
            if what not in self.unseen:
                self.unseen.add(what)
                with contextlib.suppress(Exception):
                    text = f"{type(error).__name__}: {error}"[:200]
                    self.write(UnseenRecord(what=what, text=text, line=self.line()))
            return None

    def write_in_worker(self, record: FetchRecord) -> None:
        """Write down what a process has seen that loads data for this rank."""
        with open(self.folder / f"worker.{self.rank}.{record.worker}.jsonl", "a") as file:
            file.write(json.dumps(as_json(record), default=plain) + "\n")

    def is_on(self) -> bool:
        """Whether this process is the rank, not a worker that loads its data, and not inside of vmap."""
        return not self.is_worker and TRANSFORM() is None

    def _leave(self) -> None:
        self.is_worker = True
        faulthandler.unregister(signal.SIGUSR1)

    # ---- the script's place

    def line(self) -> str:
        """The innermost line of the script, or of a file beside it, that is running; empty if there is none."""
        frame = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            if self._is_of_script(file):
                return f"{file[len(self.folder_of_script) :].lstrip(os.sep)}:{frame.f_lineno}"
            frame = frame.f_back  # type: ignore[assignment]
        return ""

    def _is_of_script(self, file: str) -> bool:
        """Whether this file is the script, or lies beside it."""
        return file.startswith(self.folder_of_script) and "site-packages" not in file

    # ---- forward passes

    def model_of(self, module: nn.Module) -> TrackedModel | None:
        """The model that this module is; None for modules without parameters, such as losses and transforms."""
        if id(module) in self.models:
            return self.models[id(module)]
        first = next(module.parameters(), None)
        if first is None:
            return None
        inner = module.module if isinstance(module, DistributedDataParallel) else module
        same = self.models.get(id(inner)) or self.models.get(id(first))
        model = same or TrackedModel(len({each.number for each in self.models.values()}), module)
        for key in (id(module), id(inner), id(first)):
            self.models.setdefault(key, model)
        return model

    def forward_begins(self, module: nn.Module) -> Forward | None:
        """Note the start of an outermost forward pass; returns its record."""
        model = self.model_of(module)
        if model is None:
            return None
        began_s = time.monotonic()
        # Some libraries set the mode of the wrapped module alone.
        in_training = module.training or (isinstance(module, DistributedDataParallel) and module.module.training)
        trains = torch.is_grad_enabled() and in_training
        trains = trains and (model.trained or any(parameter.requires_grad for parameter in module.parameters()))
        if trains:
            self._close_evaluation()
            if self.stepped or self.now is None or self._has_stepped_by_hand():
                self._next_step(began_s)
            if not model.trained:
                model.trained = True
                model.module = module
                self._describe(model, module)
                if self.first_step is not None and self.step == 1 and not any(map(_is_shared_out, module.parameters())):
                    self.first_step.begin(module)
            self._look_at_weights(model)
        elif self._is_within_step():
            return None  # such as that of a teacher, or of a metric
        elif self.evaluation is None:
            self._flush_step()
            self.evaluation = EvaluationRecord(line=self.line())
        if self.evaluation is not None and model.trained:
            on = {type(each).__name__ for each in module.modules() if each.training and isinstance(each, IN_TRAINING)}
            self.evaluation.on = sorted(on)
        if self.evaluation is not None and not model.trained:
            others = self.evaluation.others
            if str(model.number) not in others:
                others[str(model.number)] = digests.of_each(_plain(module.parameters()))
        forward = Forward(model.number, self.loader, in_training, closure=self.in_optimizer)
        if self.looks_at_randomness():
            forward.random = self.random_states(module)
        if isinstance(module, DistributedDataParallel):
            self.ddp_sync = module.require_backward_grad_sync
        else:
            self.ddp_sync = None
            forward.around_ddp = id(module) in self.wrapped
        forward.begin_s = time.monotonic()
        self.spent_s += forward.begin_s - began_s
        return forward

    def _is_within_step(self) -> bool:
        """Whether a trained forward pass of this step still waits for its backward pass."""
        return self.now is not None and not self.stepped and len(self.now.forwards) > len(self.now.backwards)

    def _has_stepped_by_hand(self) -> bool:
        """Whether the script, which has no optimizer, has changed the weights since this step began."""
        if self.has_optimizer or self.now is None or self.active is None or not self.now.backwards:
            return False
        before = self.now.weights
        after = digests.of_each(_plain(self.active.module.parameters()))
        if before is None or after is None or torch.equal(before, after):
            return False
        self.now.optimizers.append(OptimizerStep("by hand", []))
        self.gradients_are_ready()
        self._look_at_gradients(list(self.active.module.named_parameters()))
        return True

    def _look_at_gradients(self, named: list[tuple[str, nn.Parameter]]) -> None:
        assert self.now is not None and self.active is not None
        if self.step <= FIRST_STEPS:
            self.used[self.active.number] = self._own_gradients(self.active.module)
        self.now.gradients = digests.of_each(_plain(each.grad for _, each in named if each.grad is not None))
        self.now.gradients_of = [name for name, each in named if each.grad is not None]

    def forward_ends(self, module: nn.Module, forward: Forward, inputs: Any) -> None:
        end_s = time.monotonic()
        forward.seconds = end_s - forward.begin_s
        if forward.random is not None:
            forward.drew = self._torch_state(module) != forward.random["torch"]
        tensors = [tensor for tensor in digests.tensors_in(inputs) if tensor.dim() and not tensor.is_meta]
        tensors = [tensor for tensor in tensors if not isinstance(tensor, DTensor)]
        count = tensors[0].shape[0] if tensors else 0
        tensors = [tensor for tensor in tensors if tensor.shape[0] == count]
        forward.size = count
        if count and self.looks_at_samples():
            forward.samples = digests.samples(tensors, count)
        trains = self.evaluation is None
        if trains and self.now is not None:
            self.now.forwards.append(forward)
        elif self.evaluation is not None:
            if self.evaluation.buffers is None and self.models[id(module)].trained:
                self.evaluation.buffers = digests.of_each(_plain(module.buffers()))
            if forward.samples is not None:
                forward.samples = forward.samples.tolist()
            self.evaluation.forwards.append(forward)
        self.spent_s += time.monotonic() - end_s

    def looks_at_samples(self) -> bool:
        """Whether to look at the samples of this forward pass: always, unless their indices say which ones they are."""
        if self.evaluation is not None:
            return len(self.evaluation.forwards) < FIRST_STEPS
        if self.loader not in self.indexed or self.step <= FIRST_STEPS:
            return True
        return self.now is not None and self.now.weights is not None

    def looks_at_randomness(self) -> bool:
        """Whether to look at the random number generators in this step: in the first ones, then now and then."""
        return self.step <= FIRST_STEPS or self.step % FIRST_STEPS < 2

    def random_states(self, module: nn.Module | None = None) -> dict[str, Any]:
        """Digests of the states of the global random number generators."""
        states: dict[str, Any] = {"torch": self._torch_state(module), "python": hash(random.getstate()[1])}
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            name, key, position, *_ = numpy.random.get_state()
            states["numpy"] = f"{digests.of_bytes(key.tobytes())}{position}"
        return states

    @staticmethod
    def _torch_state(module: nn.Module | None) -> str:
        """A digest of PyTorch's generator of the CPU, and of the module's device if that is another one."""
        digest = digests.of_bytes(torch.get_rng_state().numpy().tobytes())
        parameter = next(module.parameters(), None) if module is not None else None
        if parameter is not None and parameter.device.type not in ("cpu", "meta"):
            state = torch.get_device_module(parameter.device).get_rng_state()
            digest += digests.of_bytes(state.numpy().tobytes())
        return digest

    # ---- steps

    def _next_step(self, time_s: float) -> None:
        self._flush_step()
        self.stepped = False
        self.step += 1
        if self.step == 1:
            self.first_step_s = time_s
        if self.most_steps and self.step > self.most_steps:
            self.end()
            sys.stdout.flush()
            os._exit(0)
        self.now = self.between
        self.now.time = time_s
        self.between = StepRecord()

    def _look_at_weights(self, model: TrackedModel) -> None:
        now = self.now
        assert now is not None
        if now.weights is not None or now.forwards:
            return
        self.active = model
        elapsed_s = time.monotonic() - self.first_step_s
        if self.step > 10 and self.spent_s > BUDGET * elapsed_s and (self.step - 1) % self.every == 0:
            self.every *= 2
        # Ranks that average every 2^n steps are equal again before these steps. A step by hand is known by its weights.
        if (self.step - 1) % self.every == 0 or not self.has_optimizer:
            parameters = list(model.module.parameters())
            now.weights = digests.of_each(_plain(parameters))
            now.weights_model = model.number
            if any(_is_shared_out(each) for each in parameters):
                own = [each.to_local() if isinstance(each, DTensor) else each for each in parameters]
                now.own = digests.of_each(own) if any(each.numel() for each in own) else None

    def current(self) -> StepRecord:
        """The record that counts, items and the like belong to at this moment."""
        if self.evaluation is not None:
            return self.between
        return self.between if self.now is None or self.stepped else self.now

    def backward_begins(self, roots: Any) -> None:
        """Note what the backward pass begins with: losses, and gradients that it adds to."""
        if self.now is None or self.active is None or self.step > FIRST_STEPS:
            return
        self.before = self._own_gradients(self.active.module)
        if self.before is None or not self.before.any():
            self.now.anew += 1
        self.now.roots.extend(root.detach() for root in digests.tensors_in(roots) if root.numel() == 1)

    @staticmethod
    def _own_gradients(module: nn.Module) -> Tensor | None:
        """Digests of this rank's gradients, or of its part of them."""
        gradients = [each.grad for each in module.parameters() if each.grad is not None and not each.grad.is_sparse]
        return digests.of_each(each.to_local() if isinstance(each, DTensor) else each for each in gradients)

    def backward(self, begin_s: float, seconds: float) -> None:
        if self.now is None:
            return
        sync = self.ddp_sync
        if sync is None:  # FSDP decides when a backward pass ends; FullyShardedDataParallel has a flag of its own
            sync = getattr(self.active and self.active.module, "_sync_gradients", self.fsdp_sync)
        self.now.backwards.append(Backward(begin_s, seconds, sync))
        if self.active is None or self.step > FIRST_STEPS:
            return
        self.now.after_backward = self._projection(self.active.module)
        self.share_norms = self._share_norms(self.active.module)
        after = self._own_gradients(self.active.module)
        if self.before is None or after is None or not torch.equal(self.before, after):
            # A pass that leaves these gradients alone belongs to another model, such as a critic.
            used = self.used.pop(self.active.number, None)
            if used is not None:
                kept = self.before is not None and torch.equal(used, self.before)
                self.now.kept = kept and bool(used.any())

    def gradients_are_ready(self) -> None:
        """Note the gradients as they are before they are clipped, or else before the optimizer uses them."""
        if self.now is None or self.active is None or self.step > FIRST_STEPS or self.now.ready is not None:
            return
        self.now.ready = self._projection(self.active.module)
        if self.first_step is not None and self.step == 1 and self.now.ready is not None:
            self.first_step.end(self.active.module)

    def shares_are_used(self) -> None:
        """Note how the optimizer's gradients differ in size from those of the backward pass, where they're sharded."""
        if self.now is None or self.active is None or self.step > FIRST_STEPS or self.now.share_scale is not None:
            return
        used = self._share_norms(self.active.module)
        pairs = zip(self.share_norms, used, strict=False)
        factors = [after / before for before, after in pairs if before]
        if factors and len(used) == len(self.share_norms) and max(factors) - min(factors) <= UNIFORM * max(factors):
            self.now.share_scale = factors[0]

    @staticmethod
    def _share_norms(module: nn.Module) -> list[float]:
        """The norms of this rank's shares of the gradients."""
        return [each.norm().item() for each in own_shares(parameter.grad for parameter in module.parameters())]

    @staticmethod
    def _projection(module: nn.Module) -> float | None:
        """The gradients' product with a fixed vector: one number that averages as the gradients do. None if sharded."""
        total = 0.0
        for number, parameter in enumerate(module.parameters()):
            if _is_shared_out(parameter):
                return None
            gradient = _local(parameter.grad)
            if gradient is not None:
                total += digests.projection(gradient, number)
        return total

    def looks_at_losses(self) -> bool:
        """Whether a loss that is computed now is part of a step that is looked at closely."""
        return self.is_on() and self.now is not None and not self.stepped and self.step <= FIRST_STEPS

    def loss(self, name: str, count: Tensor | int, reduction: str) -> LossPart:
        """Note a loss over `count` samples; returns its record, to which its weight and value are added."""
        assert self.now is not None
        part = LossPart(self.line(), count, reduction, name)
        self.now.losses.append(part)
        return part

    def keep_indices(self, key: tuple[int, int], batch: Any) -> None:
        """Keep the indices of a batch, if they are whole numbers. Samplers may yield anything that a dataset takes."""
        loader, _ = key
        indices = list(batch)
        if all(isinstance(each, int) or hasattr(each, "__index__") for each in indices):
            self.indices.setdefault(key, []).extend(map(int, indices))
            self.indexed.add(loader)
        else:
            self.indexed.discard(loader)  # such a loader's samples are compared themselves

    def optimizer_stepped(self, optimizer: torch.optim.Optimizer, skipped: bool = False) -> None:
        if self.now is None:
            return
        began_s = time.monotonic()
        now = self.now
        self.stepped = True
        if skipped:
            now.skipped = True
            return
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        now.optimizers.append(OptimizerStep(type(optimizer).__name__, rates))
        model = self.active
        if model is not None and (now.weights is not None or self.step <= 2):
            named = list(model.module.named_parameters())
            own = {id(parameter) for parameter in parameters}
            if any(id(parameter) in own for _, parameter in named):
                # A share may be empty, and has no gradient then.
                without = [name for name, each in named if each.requires_grad and each.grad is None and each.numel()]
                if now.without_gradient is not None:  # an optimizer stepped earlier in this step
                    without = [name for name in without if name in now.without_gradient]
                now.without_gradient = without
                self._look_at_gradients(named)
            known = set(now.stepped_names or [])
            now.stepped_names = [name for name, each in named if name in known or id(each) in own]
            others = own - {id(each) for _, each in named}
            if others:
                now.outside.extend(self._outside([each for each in parameters if id(each) in others]))
        self.spent_s += time.monotonic() - began_s
        now.end_s = time.monotonic()

    def _outside(self, parameters: list[nn.Parameter]) -> list[tuple[str, int]]:
        """Name and digest of the parameters that the optimizer updates and the trained model lacks."""
        names = {
            id(each): f"{type(model.module).__name__}.{name}"
            for model in self.models.values()
            for name, each in model.module.named_parameters()
        }
        plain = [each for each in parameters if _local(each) is not None and each.grad is not None]
        found = digests.of_each(_plain(plain))
        named = [names.get(id(each), f"a parameter of shape {tuple(each.shape)}") for each in plain]
        return [] if found is None else list(zip(named, found.tolist(), strict=True))

    def _flush_step(self) -> None:
        if self.now is not None:
            self.now.threads = torch.get_num_threads()
            self.write(self.now)
            self.now = None
            self.stepped = False
        self.flush_indices()

    def _close_evaluation(self) -> None:
        if self.evaluation is not None:
            self.write(self.evaluation)
            self.evaluation = None

    def flush_indices(self) -> None:
        for (loader, epoch), values in self.indices.items():
            if values:
                self.write(IndicesRecord(loader=loader, epoch=epoch, values=values))
                self.indices[loader, epoch] = []

    # ---- collectives that the script itself calls

    def last_collective(self, name: str) -> None:
        """Write down a collective before it begins, so that one that never ends is known."""
        if self.in_forward or self.in_backward:
            return
        self.write(CollectiveRecord(name=name, line=self.line()))

    def collective(self, name: str, size: int, seconds: float) -> None:
        phase = "between"
        if self.in_backward:
            phase = "backward"
        if self.in_forward:
            phase = "forward"
        record = self.evaluation if self.evaluation is not None else self.current()
        calls = record.collectives.setdefault(f"{name} {phase}", CollectiveCalls())
        calls.count += 1
        calls.bytes += size
        calls.seconds += seconds

    # ---- what the script is made of

    def _describe(self, model: TrackedModel, module: nn.Module) -> None:
        named = list(module.named_parameters())
        ddp = isinstance(module, DistributedDataParallel)
        sharded = [each for _, each in named if isinstance(each, DTensor)]
        kinds = {type(each).__name__ for each in module.modules()}
        device = named[0][1].device
        fsdp = any(kind.startswith("FSDP") or kind == "FullyShardedDataParallel" for kind in kinds)
        meshes = {tuple(each.device_mesh.shape) for each in sharded if not (fsdp and _is_hybrid(each))}
        record = ModelRecord(
            model=model.number,
            ddp=ddp,
            fsdp=fsdp,
            around_ddp=id(module) in self.wrapped,
            normalizes=any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in module.modules()),
            parameters=[
                ParameterRecord(name, list(each.shape), each.requires_grad, _is_shared_out(each))
                for name, each in named
            ],
            buffers=[name for name, each in module.named_buffers()],
            meshes=[list(mesh) for mesh in meshes],
            device=self.pretended_gpu.name() if self.pretended_gpu else str(device),
            joined_by=[name for name in ("mpi4py", "horovod") if name in sys.modules],
            accelerators=torch.accelerator.device_count() if torch.accelerator.is_available() else 0,
            pretended_gpu=self.pretended_gpu is not None,
        )
        self.write(record)

    # ---- the end

    def failed(self, error: BaseException) -> None:
        trace = traceback.extract_tb(error.__traceback__)
        own = [(each.filename, each.lineno or 0, each.name) for each in trace if self._is_of_script(each.filename)]
        text = f"exit code {error.code}" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
        if isinstance(error, SystemExit) and isinstance(error.code, str):
            text = error.code
        self._finish()
        kind = type(error).__name__
        place = own[-1] if own else None
        self.write(ErrorRecord(error=kind, text=text[:2000], place=place, time=time.monotonic()))
        (self.folder / f"failed.{self.rank}").touch()

    def end(self) -> None:
        last = self.active
        weights = buffers = None
        if last is not None:
            parameters = _plain(last.module.parameters())
            whole = sum(each.numel() for each in parameters) <= MOST_WHOLE
            weights = digests.of_each(parameters, whole)
            buffers = digests.of_each(_plain(last.module.buffers()), whole)
        self._finish()
        self.write(EndRecord(weights=weights, buffers=buffers, collectives=self.between.collectives))

    def _finish(self) -> None:
        self._flush_step()
        self._close_evaluation()


def _is_shared_out(parameter: Tensor) -> bool:
    """Whether each rank holds another part of this parameter, so that ranks rightly differ."""
    if isinstance(parameter, DTensor):
        return any(placement.is_shard() for placement in parameter.placements)
    # DeepSpeed's ZeRO-3 and FullyShardedDataParallel mark them.
    return hasattr(parameter, "ds_id") or getattr(parameter, "_fsdp_flattened", False)


def _is_hybrid(parameter: DTensor) -> bool:
    """Whether its mesh repeats shares and does nothing else, as in HSDP: every rank then has samples of its own."""
    *repeated, last = parameter.placements
    return last.is_shard() and all(placement.is_replicate() for placement in repeated)


def own_shares(tensors: Iterable[Tensor | None]) -> list[Tensor]:
    """This rank's parts of the tensors that ranks share out, without empty ones."""
    shares = [each for each in tensors if each is not None and _is_shared_out(each)]
    own = [each.to_local() if isinstance(each, DTensor) else each for each in shares]
    return [each for each in own if each.numel()]


def _local(tensor: Tensor | None) -> Tensor | None:
    """The tensor if all ranks should hold the same values in it, else None."""
    if tensor is None or tensor.is_meta or tensor.is_sparse or _is_shared_out(tensor):
        return None
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _plain(tensors: Any) -> list[Tensor]:
    """Tensors to compare between ranks; an empty one stands for each that is shared out."""
    return [found if (found := _local(tensor)) is not None else torch.empty(0) for tensor in tensors]
