"""Records one backward pass: when each gradient is ready, and when each allreduce is sent and arrives.

05_ddp compares the learner's DDP with averaging after the backward pass, and with PyTorch's DDP. A method can be
recorded if it calls `torch.distributed.all_reduce` from Python: handwritten hooks, one allreduce after the backward
pass, and PyTorch's DDP with the communication hook `allreduce_hook`.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

WARM_UP = 3  # untimed steps, in which memory is allocated and DDP decides on its buckets


@dataclass
class Message:
    """One allreduce of a step: its number of values, and how many gradients were ready when it was sent."""

    values: int
    ready: int
    sent_s: float
    work: dist.Work
    arrived_s: float | None = None
    waits: int = 0  # how often the function that sent it has waited for it


class Handle:
    """The work of an allreduce, as the function has it that sent it. Any call of the work counts as a wait."""

    def __init__(self, message: Message):
        self._message = message

    def __getattr__(self, name: str):
        self._message.waits += 1
        return getattr(self._message.work, name)


class Recorder:
    """Records a model's gradients and messages inside a `with` block, from the start of a backward pass.

    Create the recorder before any other hook is registered on the model: hooks run in the order of their registration,
    so each gradient is counted as ready before its message is sent.
    """

    def __init__(self, model: nn.Module):
        self._send = dist.all_reduce
        self._patch = mock.patch.object(dist, "all_reduce", self._all_reduce)
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(lambda _: self.ready_s.append(time.perf_counter()))
        self.clear()

    def clear(self) -> None:
        """Forget everything recorded so far; a new backward pass starts now."""
        self.start_s = time.perf_counter()
        self.ready_s: list[float] = []
        self.messages: list[Message] = []

    def __enter__(self) -> "Recorder":
        self._patch.start()
        return self

    def __exit__(self, *_) -> None:
        self._patch.stop()

    def _all_reduce(self, tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        sent_s = time.perf_counter()
        work = self._send(tensor, op, group, async_op=True)
        message = Message(tensor.numel(), len(self.ready_s), sent_s, work)
        self.messages.append(message)

        def arrived(_):
            message.arrived_s = time.perf_counter()

        if not hasattr(work, "end_s"):  # the future of a work over MPI would block; `end_s` says when it arrived
            work.get_future().then(arrived)
        if async_op:
            return Handle(message)
        work.wait()
        message.waits += 1
        return None

    def settle(self) -> None:
        """Wait for every message, including those that the observed function does not wait for."""
        for message in self.messages:
            message.work.wait()

    def times_ms(self, end_s: float) -> dict:
        """The recorded step, which ended at `end_s`, as `figures.BackwardTimes` in milliseconds."""

        def ms(moment_s: float) -> float:
            return 1000 * (moment_s - self.start_s)

        for message in self.messages:
            message.arrived_s = message.arrived_s or getattr(message.work, "end_s", None)
        sent = [[ms(each.sent_s), ms(each.arrived_s or end_s)] for each in self.messages]
        ready = [ms(moment_s) for moment_s in self.ready_s]
        return {"backward": ready[-1], "ready": ready, "messages": sent, "end": ms(end_s)}


Way = tuple[nn.Module, Callable[[], None]]  # a model, and the function to call after its backward pass


def averaged_after(model: nn.Module) -> Way:
    """Average all gradients after the backward pass, in one blocking allreduce. All ranks call the returned function.

    Returns the model itself and the function.
    """

    def finish() -> None:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients]) / dist.get_world_size()
        dist.all_reduce(flat)
        for gradient, part in zip(gradients, flat.split([each.numel() for each in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    return model, finish


def pytorch_ddp(model: nn.Module, bucket_cap_mb: float | None = None) -> Way:
    """Wrap the model in PyTorch's DDP, whose backward pass ends with all gradients averaged. All ranks call it."""
    ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_cap_mb)
    ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    return ddp, lambda: None


def compare(
    ways: Mapping[str, Way], inputs: torch.Tensor, labels: torch.Tensor, turns: int = 15
) -> list[dict[str, dict]]:
    """Time one step of each way in each of `turns` turns; return `figures.BackwardTimes` as [turn][title].

    The ways alternate, so that a slow moment of the machine affects all of them. All ranks call it, and it blocks.
    """
    recorders = {title: Recorder(model) for title, (model, _) in ways.items()}
    taken = []
    for _ in range(WARM_UP + turns):
        taken.append({title: _step(*ways[title], recorders[title], inputs, labels) for title in ways})
    return taken[WARM_UP:]


def timed_step(model: nn.Module, accumulate: Callable, *arguments) -> tuple[float, int]:
    """Milliseconds and messages of a step in which `accumulate(model, *arguments)` leaves the averaged gradients.

    All ranks call it, and it blocks.
    """
    recorder = Recorder(model)
    for _ in range(WARM_UP + 1):
        model.zero_grad()
        dist.barrier()
        recorder.clear()
        with recorder:
            accumulate(model, *arguments)
        taken_s = time.perf_counter() - recorder.start_s
    return 1000 * taken_s, len(recorder.messages)


def _step(model, finish, recorder: Recorder, inputs, labels) -> dict:
    model.zero_grad()
    loss = cross_entropy(model(inputs), labels)
    dist.barrier()
    recorder.clear()
    with recorder:
        loss.backward()
        finish()
        return recorder.times_ms(time.perf_counter())
