"""The training loop: the same on one process and on every rank of many."""

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from workshop_lib import paths
from workshop_lib.data import mnist, shard, stage
from workshop_lib.training import KINDS, backends, checkpoint, device, memory, metrics, record, schedules
from workshop_lib.training import world as worlds
from workshop_lib.training.backends.base import Backend
from workshop_lib.training.callbacks import StepEvent, methods_of
from workshop_lib.training.options import TrainOptions
from workshop_lib.training.stamps import Stamps

STEPS_BETWEEN_STOP_CHECKS = 8
PROGRESS = ("epoch", "step", "epoch_seconds", "total_seconds")


def train(
    options: TrainOptions, callbacks: Iterable = (), world: worlds.World | None = None, backend: Backend | None = None
) -> dict:
    """Train as one rank; all ranks call it with the same options. Returns the run record.

    world and backend are found from the launcher's environment and the options when not given.
    Raises ValueError or one of its kinds (DataError, CheckpointError) for what is asked,
    LaunchError for the way it was started, and RuntimeError naming the ranks when the ranks do
    not end with the same weights. A fault of one rank during set-up is raised on all of them,
    so that none waits for ever in a collective.
    """
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    device.keep_freed_memory()
    if backend is not None:
        return _Run(options, backend, methods_of(callbacks)).run()
    world = world or worlds.detect()
    backend = backends.create(options.backend, world, device.choose(options.device, world))
    try:
        return _Run(options, backend, methods_of(callbacks)).run()
    finally:
        backend.close()


class _Run:
    """One run on one rank. Its progress: the epoch (1-based) and the steps done in it."""

    def __init__(self, options: TrainOptions, backend: Backend, hooks: dict):
        self.options, self.backend, self.hooks = options, backend, hooks
        self.world, self.device = backend.world, backend.device
        self.record = record.start(options, backend)
        memory.reset_peak(self.device)
        self.data_dir = options.data_dir
        if os.environ.get(stage.VARIABLE):  # as on every rank
            self.all_succeed(self.stage_data)
        self.all_succeed(self.load_data)
        self.plan_steps()
        self.learner = backend.learner(options, *self.splits)
        self.total_seconds = 0.0  # training and evaluation, of the slowest rank
        self.start_epoch(1)
        if options.resume:
            self.resume()
        self.stop_is_possible = any(backend.allgather(bool(hooks["should_stop"])))

    def all_succeed(self, action: Callable[[], None]) -> None:
        """Run `action` on this rank; raise on every rank if it failed on any."""
        error = None
        try:
            action()
        except Exception as caught:  # raised below, once all ranks know of it
            error = caught
        errors = self.backend.allgather(error and f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        for rank, text in enumerate(errors):
            if text is not None:
                raise RuntimeError(f"rank {rank} could not go on: {text}")

    def stage_data(self) -> None:
        """Have one rank of each node copy the data to the node's own disk; read it from there."""
        source = Path(self.options.data_dir or paths.MNIST).expanduser().absolute()
        staged = stage.folder_for(source)
        if staged is not None and self.world.local_rank == 0:
            stage.copy(source, staged)
        self.data_dir = staged or self.options.data_dir

    def load_data(self) -> None:
        options, world = self.options, self.world
        train_split = mnist.load("train", self.data_dir)
        test_split = mnist.load("test", self.data_dir, world.rank, world.world_size)
        size = options.train_samples or train_split.total
        if size > train_split.total:
            raise ValueError(f"train_samples {size}: there are only {train_split.total}")
        self.train_size, self.test_size = size, test_split.total
        kept = {"images": train_split.images[:size], "labels": train_split.labels[:size]}
        self.splits = replace(train_split, **kept), test_split

    def plan_steps(self) -> None:
        options, world_size = self.options, self.world.world_size
        self.global_batch = options.global_batch(world_size)
        self.samples_a_step = self.global_batch // world_size  # of this rank, also for those it emulates
        self.steps_per_epoch = shard.steps_per_epoch(self.train_size, self.samples_a_step, world_size)
        self.peak_lr = schedules.scale_lr(options.lr, options.lr_scaling, options.workers(world_size))
        self.warmup_steps = options.warmup_steps(self.steps_per_epoch)
        self.warmup_lr = options.lr if options.warmup == "constant" else None

    def start_epoch(self, epoch: int) -> None:
        self.epoch, self.step, self.epoch_seconds = epoch, 0, 0.0
        self.learner.reset_sums()

    @property
    def steps_done(self) -> int:
        return (self.epoch - 1) * self.steps_per_epoch + self.step

    @property
    def steps_left(self) -> int:
        whole = self.options.epochs * self.steps_per_epoch
        return min(whole, self.options.max_steps or whole) - self.steps_done

    def run(self) -> dict:
        self.stamps = Stamps(self.backend)
        self.call_hooks("on_start", self.info())
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
        digests = self.backend.allgather(record.weights_sha256(self.learner.weights()))
        record.check_identical(digests)
        return self.record | {
            "memory": self.memory(),
            "weights_sha256": digests,
            "ranks_identical": True,
            "stopped": stopped,
        }

    def memory(self) -> dict:
        """Bytes on each rank, by rank: of the model's states, if the learner knows them, and the peak."""
        own = {"peak": memory.peak_bytes(self.device)} | (self.learner.live_bytes or {})
        ranks = self.backend.allgather(own)
        return {f"{kind}_bytes": [rank.get(kind) for rank in ranks] for kind in ("peak", *KINDS)}

    def info(self) -> dict:
        return {
            "world_size": self.world.world_size,
            "rank": self.world.rank,
            "epochs": self.options.epochs,
            "steps_per_epoch": self.steps_per_epoch,
            "global_batch": self.global_batch,
            "backend": self.backend.name,
            "oversubscribed": self.record["what"]["oversubscribed"],
            "clock_origin_s": self.stamps.clock_origin_s,
        }

    def call_hooks(self, name: str, value: dict) -> None:
        for hook in self.hooks[name]:
            hook(value)

    def train_epoch(self) -> bool:
        """Train to the end of this epoch, or to max_steps; True when a callback cut the run short."""
        if self.backend.communication_s is not None:
            self.backend.communication_s = 0.0
        self.backend.allgather(None)  # a barrier, so that all ranks' clocks start together
        start = step_start = time.perf_counter()
        samples, stopped = 0, False

        def after_step(n_local: int, n_global: int, lr: float, loss_sum: Callable[[], float]) -> bool:
            nonlocal samples, stopped, step_start
            self.step += 1
            self.lr = lr
            samples += n_global
            span = self.backend.averaging_span
            meetings = [] if span is None else [span]
            if self.hooks["on_step"]:
                self.report_step(loss_sum, n_local, samples / (time.perf_counter() - start))
            stopped = self.stop_is_possible and self.ranks_agree_to_stop(meetings) and self.steps_left > 0
            step_start = self.stamps.add(self.steps_done, step_start, meetings)
            return stopped or self.steps_left <= 0

        self.learner.train(self.steps(), after_step)
        seconds = max(self.backend.allgather(time.perf_counter() - start))
        self.epoch_seconds += seconds
        self.total_seconds += seconds
        return stopped

    def steps(self) -> Iterator[tuple[np.ndarray, int, float]]:
        """This rank's samples (indices), the size of the global batch and the learning rate of each step that
        is left in this epoch."""
        options, world = self.options, self.world
        total, done = options.epochs * self.steps_per_epoch, self.steps_done
        batches = shard.epoch_batches(
            self.train_size, self.samples_a_step, world.rank, world.world_size, options.seed, self.epoch, self.step
        )
        for step, (indices, n_global) in enumerate(batches, start=done):
            yield (
                indices,
                n_global,
                schedules.lr_at(step, total, self.peak_lr, self.warmup_steps, options.decay, self.warmup_lr),
            )

    def report_step(self, loss_sum: Callable[[], float], n_local: int, samples_per_s: float) -> None:
        values = {
            "epoch": self.epoch,
            "step": self.step,
            "steps_per_epoch": self.steps_per_epoch,
            "lr": self.lr,
            "samples_per_s": samples_per_s,
        }
        later = {
            "loss": lambda: loss_sum() / n_local if n_local else None,
            "sums": lambda: self.learner.sums().tolist(),
            "stamps": lambda: list(self.stamps.last),
        }
        self.call_hooks("on_step", StepEvent(values, later))

    def ranks_agree_to_stop(self, meetings: list[tuple[float, float]]) -> bool:
        if self.step % STEPS_BETWEEN_STOP_CHECKS and self.step != self.steps_per_epoch:
            return False
        asked = any(hook() for hook in self.hooks["should_stop"])
        start = time.perf_counter()
        agreed = bool(self.backend.sum(np.array([asked], dtype=np.int64))[0])
        if meetings:  # else the backend's own meetings are unknown, and this one alone would mislead
            meetings.append((start, time.perf_counter()))
        return agreed

    def finish_epoch(self) -> None:
        """Add the epoch's row to the record, with metrics over all samples of all ranks."""
        start = time.perf_counter()
        whole = self.train_size if self.step >= self.steps_per_epoch else None
        loss, accuracy, samples = metrics.over_ranks("training", self.learner.sums(), whole, self.backend)
        test_loss, test_accuracy, _ = metrics.over_ranks("test", self.learner.evaluate(), self.test_size, self.backend)
        communication_s = None
        if self.backend.communication_s is not None:
            communication_s = float(np.mean(self.backend.allgather(self.backend.communication_s)))
        self.total_seconds += max(self.backend.allgather(time.perf_counter() - start))
        row = {
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
        """Rank 0 writes the checkpoint, with what each rank holds of its own."""
        if self.options.checkpoint is None:
            return
        state = {name: getattr(self, name) for name in PROGRESS} | {
            "must_match": self.must_match(),
            "record": {name: self.record[name] for name in ("epochs", "seconds_to_99")},
            "ranks": self.backend.allgather(self.learner.own_state()),
            **self.learner.state(),
        }
        if self.world.rank == 0:
            self.all_succeed(lambda: checkpoint.write(self.options.checkpoint, state))
        else:
            self.all_succeed(lambda: None)

    def resume(self) -> None:
        """Go on where the checkpoint was written; rank 0 reads it for all."""
        loaded = []
        path, wanted = self.options.checkpoint, self.must_match()
        self.all_succeed(lambda: loaded.append(checkpoint.read(path, wanted) if self.world.rank == 0 else None))
        state = self.backend.allgather(loaded[0])[0]
        for name in PROGRESS:
            setattr(self, name, state[name])
        self.record.update(state["record"])
        self.learner.load_state(state)
        if len(state["ranks"]) == self.world.world_size:
            self.learner.load_own_state(state["ranks"][self.world.rank])
        elif self.world.rank == 0:  # written on another number of ranks: what they had summed is kept once
            self.learner.load_sums(sum(own["sums"] for own in state["ranks"]))

    def must_match(self) -> dict:
        all_names = self.options.as_dict() | {
            "global_batch": self.global_batch,
            "peak_lr": self.peak_lr,
            "train_size": self.train_size,
            "framework": self.backend.framework,
        }
        return {name: all_names[name] for name in checkpoint.MUST_MATCH}


def finite(loss: float) -> float | None:
    """None for the loss of a run that diverged: JSON, and so the record, has neither NaN nor infinity."""
    return loss if math.isfinite(loss) else None
