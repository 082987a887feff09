"""The trainer, which owns the training loop. The loop is the same in one process and on each of many ranks."""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, SupportsFloat

import numpy as np
import torch

from workshop_lib.errors import WorkshopError
from workshop_lib.machine import catalogue
from workshop_lib.machine import world as worlds
from workshop_lib.machine.emulation import session
from workshop_lib.training import KINDS, backends, checkpoint, memory, record, schedules
from workshop_lib.training.backends.base import Backend, CollectiveSpan, StepResult
from workshop_lib.training.callbacks import RunInfo, StepEvent, StepValues, Tracer, methods_of
from workshop_lib.training.data import mnist, shard
from workshop_lib.training.models import torch_cnn, vit
from workshop_lib.training.options import TrainOptions
from workshop_lib.training.record import EpochRow, RunError, RunRecord, cores_in_words

STEPS_BETWEEN_STOP_CHECKS = 8


def train(
    options: TrainOptions, callbacks: Iterable = (), world: worlds.World | None = None, backend: Backend | None = None
) -> RunRecord:
    """Train as one rank; all ranks call it with the same options. Returns the run record.

    Unless given, world and backend follow from the launcher's environment and the options. Raises InputError or one of
    its subclasses (DataError, CheckpointError) for a wrong value or file, LaunchError if the processes were not started
    as the options require, and RunError naming the ranks if the ranks do not end with the same weights. An error on one
    rank during setup makes all ranks raise, so that none waits forever in a collective.
    """
    torch.set_num_threads(worlds.threads())
    memory.keep_freed_memory()
    hooks = methods_of(callbacks)
    with session.emulating(options.machine):
        if backend is not None:
            return Trainer(options, backend, hooks).run()
        for hook in hooks["on_phase"]:
            hook(f"starting the backend {options.backend}")
        world = world or worlds.detect()
        device = worlds.choose_device(options.device, world)
        with contextlib.closing(backends.create(options.backend, world, device, options.comm)) as created:
            return Trainer(options, created, hooks).run()


class Trainer:
    """One run on one rank. Its progress is in `epoch` (1-based) and `step`, the number of steps done in that epoch."""

    def __init__(self, options: TrainOptions, backend: Backend, hooks: dict):
        self.options = options
        self.backend = backend
        self.hooks = hooks
        self.world = backend.world
        self.device = backend.device
        self.total_seconds = 0.0  # training and evaluation on the slowest rank

    def run(self) -> RunRecord:
        """Train from the beginning, or from a checkpoint; return the record. All ranks call it, and it blocks."""
        self.set_up()
        if self.options.resume:
            self.resume()
        self.start()
        stopped = False
        while self.steps_left > 0 and not stopped:
            stopped = self.train_epoch()
            complete = self.step >= self.steps_per_epoch
            if not complete:
                self.save()
            if complete or not stopped:
                self.finish_epoch()
            if complete:
                self.start_epoch(self.epoch + 1)
                self.save()
        self.finish(stopped)
        return self.record

    def set_up(self) -> None:
        """Begin the record, load the data, plan the steps, and create the replica, with the weights of rank 0."""
        options = self.options
        self.record = record.begin_record(options, self.backend)
        self.call_hooks("on_phase", "reading MNIST")
        self.all_succeed(self.load_data)
        self.plan_steps()
        self.must_match = checkpoint.must_match(options, self.world.world_size, self.train_size, self.backend.framework)
        if options.checkpoint is not None:
            self.on_rank_0(checkpoint.require_place, options.checkpoint)
        if options.stands_for is not None:
            self.declare(catalogue.model(options.stands_for))
        self.replica = self.backend.replica(options, *self.splits)
        self.start_epoch(1)

    def declare(self, model: catalogue.Model) -> None:
        """Let the network stand for a large one on the emulated machine."""
        network = torch_cnn.build(0, self.options.network)
        cut_among = self.world.world_size if self.backend.name == "fsdp" else 1
        session.current().declare(model, self.samples_per_step, network, torch.zeros(1, 1, *vit.MNIST), cut_among)

    def start(self) -> None:
        """Tell the callbacks what begins, and find out whether one of them may stop the run."""
        self.stop_is_possible = any(self.backend.allgather(bool(self.hooks["should_stop"])))
        self.call_hooks("on_phase", "taking the first step")
        self.tracer = Tracer(self.backend)
        self.call_hooks("on_start", self.info())

    def finish(self, stopped: bool) -> None:
        """Complete the record with what is known at the end. Raises RunError if the ranks' weights differ."""
        digests = self.backend.allgather(record.weights_sha256(self.replica.weights()))
        record.check_identical(digests)
        self.record |= {"weights_sha256": digests, "ranks_identical": True, "stopped": stopped, "memory": self.memory()}

    def all_succeed(self, action: Callable, *arguments) -> list:
        """Call `action` with these arguments on this rank; return the results of all ranks, in rank order.

        All ranks call it, and it blocks. If the action fails on any rank, every rank raises: its own error where the
        action failed, else RunError. A WorkshopError of rank 0 is raised on all ranks as it is.
        """
        result = None
        error: Exception | None = None
        told: Exception | None = None  # what the other ranks raise
        try:
            result = action(*arguments)
        except Exception as caught:  # raised below, once all ranks know of it
            error = told = caught
            if self.world.rank > 0 or not isinstance(caught, WorkshopError):
                told = RunError(f"rank {self.world.rank} could not go on: {type(caught).__name__}: {caught}")
        results, all_told = zip(*self.backend.allgather((result, told)), strict=True)
        if failure := error or next(filter(None, all_told), None):
            raise failure
        return list(results)

    def on_rank_0(self, action: Callable, *arguments) -> Any:
        """Call `action` with these arguments on rank 0, and return its result on every rank; see all_succeed."""
        if self.world.rank > 0:
            return self.all_succeed(lambda: None)[0]
        return self.all_succeed(action, *arguments)[0]

    def load_data(self) -> None:
        options = self.options
        world = self.world
        train_split = mnist.load("train", options.data_dir)
        test_split = mnist.load("test", options.data_dir, world.rank, world.world_size)
        size = options.train_size(train_split.total)
        self.train_size = size
        self.test_size = test_split.total
        kept = {"images": train_split.images[:size], "labels": train_split.labels[:size]}
        self.splits = replace(train_split, **kept), test_split

    def plan_steps(self) -> None:
        options = self.options
        world_size = self.world.world_size
        self.global_batch = options.global_batch(world_size)
        self.samples_per_step = self.global_batch // world_size  # on this rank, including workers that it emulates
        self.steps_per_epoch = shard.steps_per_epoch(self.train_size, self.samples_per_step, world_size)
        self.peak_lr = schedules.scale_lr(options.lr, options.lr_scaling, options.workers(world_size))
        self.warmup_steps = options.warmup_steps(self.steps_per_epoch)
        self.warmup_lr = options.lr if options.warmup == "constant" else None

    def start_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.step = 0
        self.epoch_seconds = 0.0
        self.replica.reset_sums()

    @property
    def steps_done(self) -> int:
        return (self.epoch - 1) * self.steps_per_epoch + self.step

    @property
    def steps_left(self) -> int:
        whole = self.options.epochs * self.steps_per_epoch
        return min(whole, self.options.max_steps or whole) - self.steps_done

    def memory(self) -> dict[str, list[int | None]]:
        """Return the bytes of the model's states on each rank, by rank, if the replica knows them."""
        ranks = self.backend.allgather(self.replica.live_bytes or {})
        return {f"{kind}_bytes": [rank.get(kind) for rank in ranks] for kind in KINDS}

    def info(self) -> RunInfo:
        return {
            "world_size": self.world.world_size,
            "rank": self.world.rank,
            "epochs": self.options.epochs,
            "steps_per_epoch": self.steps_per_epoch,
            "global_batch": self.global_batch,
            "backend": self.backend.name,
            "cores": cores_in_words(self.record["where"]),
            "oversubscribed": self.record["what"]["oversubscribed"],
            "machine": self.record["what"]["machine"],
            "clock_origin_s": self.tracer.clock_origin_s,
        }

    def call_hooks(self, name: str, value) -> None:
        for hook in self.hooks[name]:
            hook(value)

    def train_epoch(self) -> bool:
        """Train to the end of this epoch or to max_steps. Returns True if a callback ended the run early."""
        self.communication_s: float | None = None
        self.samples = 0
        stopped = False
        self.backend.allgather(None)  # a barrier, so that all ranks' clocks start together
        self.epoch_start = self.step_start = time.perf_counter()
        for indices, n_global, lr in self.steps():
            result = self.replica.step(indices, n_global, lr)  # forward, backward, average, update
            stopped = self.after_step(result, len(indices), n_global, lr)  # callbacks, stop button, trace
            if stopped:
                break
        self.replica.sums()  # waits until a GPU has done all steps
        seconds = max(self.backend.allgather(time.perf_counter() - self.epoch_start))
        self.epoch_seconds += seconds
        self.total_seconds += seconds
        return stopped

    def steps(self) -> Iterator[tuple[np.ndarray, int, float]]:
        """Yield the arguments of the replica's step() for each step that is left in this epoch.

        They are this rank's samples (indices), the size of the global batch and the learning rate.
        """
        options = self.options
        world = self.world
        total = options.epochs * self.steps_per_epoch
        batches = shard.epoch_batches(
            self.train_size, self.samples_per_step, world.rank, world.world_size, options.seed, self.epoch, self.step
        )
        for step, (indices, n_global) in enumerate(batches, start=self.steps_done):
            if self.steps_left <= 0:
                return
            yield (
                indices,
                n_global,
                schedules.lr_at(step, total, self.peak_lr, self.warmup_steps, options.decay, self.warmup_lr),
            )

    def after_step(self, result: StepResult, n_local: int, n_global: int, lr: float) -> bool:
        """Count the step and report it. Returns whether the ranks agree to stop before the run's end."""
        self.step += 1
        self.lr = lr
        self.samples += n_global
        collectives = []
        if result.averaging is not None:
            collectives.append(result.averaging)
            start, end = result.averaging
            self.communication_s = (self.communication_s or 0.0) + end - start
        if self.hooks["on_step"]:
            self.report_step(result.loss_sum, n_local)
        stop = self.stop_is_possible and self.ranks_agree_to_stop(collectives) and self.steps_left > 0
        self.step_start = self.tracer.add(self.steps_done, self.step_start, collectives)
        return stop

    def report_step(self, loss: SupportsFloat, n_local: int) -> None:
        values: StepValues = {
            "epoch": self.epoch,
            "step": self.step,
            "steps_per_epoch": self.steps_per_epoch,
            "lr": self.lr,
            "samples_per_s": self.samples / (time.perf_counter() - self.epoch_start),
        }
        later = {
            "loss": lambda: float(loss) / n_local if n_local else None,
            "sums": lambda: self.replica.sums().tolist(),
            "trace": lambda: list(self.tracer.last),
        }
        self.call_hooks("on_step", StepEvent(values, later))

    def ranks_agree_to_stop(self, collectives: list[CollectiveSpan]) -> bool:
        if self.step % STEPS_BETWEEN_STOP_CHECKS and self.step != self.steps_per_epoch:
            return False
        asked = any(hook() for hook in self.hooks["should_stop"])
        start = time.perf_counter()
        agreed = bool(self.backend.sum(np.array([asked], dtype=np.int64))[0])
        if collectives:  # otherwise the backend's own are unknown, and showing this one alone would mislead
            collectives.append((start, time.perf_counter()))
        return agreed

    def finish_epoch(self) -> None:
        """Add the epoch's row to the record, with metrics over all samples of all ranks."""
        start = time.perf_counter()
        whole = self.train_size if self.step >= self.steps_per_epoch else None
        loss, accuracy, samples = record.over_ranks("training", self.replica.sums(), whole, self.backend)
        test_loss, test_accuracy, _ = record.over_ranks("test", self.replica.evaluate(), self.test_size, self.backend)
        communication_s = None
        if self.communication_s is not None:
            communication_s = float(np.mean(self.backend.allgather(self.communication_s)))
        self.total_seconds += max(self.backend.allgather(time.perf_counter() - start))
        row: EpochRow = {
            "epoch": self.epoch,
            "seconds": self.epoch_seconds,
            "samples_per_s": samples / self.epoch_seconds,
            "train_loss": finite(loss),
            "train_accuracy": accuracy,
            "test_loss": finite(test_loss),
            "test_accuracy": test_accuracy,
            "lr": self.lr,
            "communication_s": communication_s,
        }
        self.record["epochs"].append(row)
        if self.record["seconds_to_99"] is None and test_accuracy >= record.TARGET_ACCURACY:
            self.record["seconds_to_99"] = self.total_seconds
        self.call_hooks("on_epoch", row)

    def save(self) -> None:
        """Have rank 0 write the checkpoint, which includes each rank's own state. All ranks call it."""
        path = self.options.checkpoint
        if path is None:
            return
        shared = self.replica.state()
        state: checkpoint.State = {
            "epoch": self.epoch,
            "step": self.step,
            "epoch_seconds": self.epoch_seconds,
            "total_seconds": self.total_seconds,
            "must_match": self.must_match,
            "record": {"epochs": self.record["epochs"], "seconds_to_99": self.record["seconds_to_99"]},
            "ranks": self.backend.allgather(self.replica.own_state()),
            "model": shared["model"],
            "optimizer": shared["optimizer"],
        }
        self.on_rank_0(checkpoint.write, path, state)

    def resume(self) -> None:
        """Continue from where the checkpoint was written. Rank 0 reads it for all ranks."""
        path = str(self.options.checkpoint)
        state = self.on_rank_0(checkpoint.read, path, self.must_match)
        self.epoch = state["epoch"]
        self.step = state["step"]
        self.epoch_seconds = state["epoch_seconds"]
        self.total_seconds = state["total_seconds"]
        self.record["epochs"] = state["record"]["epochs"]
        self.record["seconds_to_99"] = state["record"]["seconds_to_99"]
        self.replica.load_state(state)
        if len(state["ranks"]) == self.world.world_size:
            self.replica.load_own_state(state["ranks"][self.world.rank])
        elif self.world.rank == 0:  # written on a different number of ranks: rank 0 takes over all of their sums
            self.replica.load_own_state({"sums": sum(own["sums"] for own in state["ranks"])})


def finite(loss: float) -> float | None:
    """Return the loss, or None if the run diverged: JSON, and so the record, has neither NaN nor infinity."""
    return loss if math.isfinite(loss) else None
