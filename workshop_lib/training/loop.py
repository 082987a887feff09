"""The training loop: the same on one process and on every rank of many."""

import math
import os
import time
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch.nn import functional

from workshop_lib.data import mnist, shard
from workshop_lib.models import torch_cnn
from workshop_lib.training import backends, checkpoint, device, metrics, record, schedules
from workshop_lib.training import world as worlds
from workshop_lib.training.backends.base import Backend
from workshop_lib.training.callbacks import StepEvent, methods_of
from workshop_lib.training.options import TrainOptions
from workshop_lib.training.stamps import Stamps

STEPS_BETWEEN_STOP_CHECKS = 8
MOMENTUM = 0.9
PROGRESS = ("epoch", "step", "epoch_seconds", "total_seconds")


def train(
    options: TrainOptions,
    callbacks: Iterable = (),
    world: worlds.World | None = None,
    backend: Backend | None = None,
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
    if backend is None:
        world = world or worlds.detect()
        backend = backends.create(options.backend, world, device.choose(options.device, world))
    return _Run(options, backend, methods_of(callbacks)).run()


class _Run:
    """One run on one rank. Its progress: the epoch (1-based) and the steps done in it."""

    def __init__(self, options: TrainOptions, backend: Backend, hooks: dict):
        self.options, self.backend, self.hooks = options, backend, hooks
        self.world, self.device = backend.world, backend.device
        self.record = record.start(options, backend)
        self.all_succeed(self.load_data)
        self.build_model()
        torch.manual_seed(options.seed + self.world.rank)
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

    def load_data(self) -> None:
        options, world = self.options, self.world
        train_split = mnist.load("train", options.data_dir)
        test_split = mnist.load("test", options.data_dir, world.rank, world.world_size)
        size = options.train_samples or train_split.total
        if size > train_split.total:
            raise ValueError(f"train_samples {size}: there are only {train_split.total}")
        self.train_size, self.test_size = size, test_split.total
        self.images = torch.tensor(train_split.images[:size], device=self.device)
        self.labels = torch.tensor(train_split.labels[:size], device=self.device)
        self.test_images = torch.tensor(test_split.images, device=self.device)
        self.test_labels = torch.tensor(test_split.labels, device=self.device)

    def build_model(self) -> None:
        options, world_size = self.options, self.world.world_size
        self.steps_per_epoch = shard.steps_per_epoch(self.train_size, options.batch_size, world_size)
        self.peak_lr = schedules.scale_lr(options.lr, options.lr_scaling, world_size)
        self.warmup_steps = round(options.warmup_epochs * self.steps_per_epoch)
        self.model = torch_cnn.build(options.seed).to(self.device)
        self.forward = self.backend.prepare(self.model)
        parameters = self.model.parameters()
        if options.optimizer == "adam":
            self.optimizer = torch.optim.Adam(parameters, fused=True)
        else:
            self.optimizer = torch.optim.SGD(parameters, momentum=MOMENTUM, nesterov=True, fused=True)

    def start_epoch(self, epoch: int) -> None:
        self.epoch, self.step, self.epoch_seconds = epoch, 0, 0.0
        self.sums = torch.zeros(3, dtype=torch.float64, device=self.device)  # see metrics.py

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
        digests = self.backend.allgather(record.weights_sha256(self.model))
        record.check_identical(digests)
        return self.record | {
            "weights_sha256": digests,
            "ranks_identical": True,
            "stopped": stopped,
        }

    def info(self) -> dict:
        return {
            "world_size": self.world.world_size,
            "rank": self.world.rank,
            "epochs": self.options.epochs,
            "steps_per_epoch": self.steps_per_epoch,
            "global_batch": self.options.batch_size * self.world.world_size,
            "backend": self.backend.name,
            "oversubscribed": self.record["what"]["oversubscribed"],
            "clock_origin_s": self.stamps.clock_origin_s,
        }

    def call_hooks(self, name: str, value: dict) -> None:
        for hook in self.hooks[name]:
            hook(value)

    def train_epoch(self) -> bool:
        """Train to the end of this epoch, or to max_steps; True when a callback cut the run short."""
        options, world = self.options, self.world
        batches = shard.epoch_batches(
            self.train_size,
            options.batch_size,
            world.rank,
            world.world_size,
            options.seed,
            self.epoch,
            self.step,
        )
        if self.backend.communication_s is not None:
            self.backend.communication_s = 0.0
        self.backend.allgather(None)  # a barrier, so that all ranks' clocks start together
        start = step_start = time.perf_counter()
        samples, stopped = 0, False
        for indices, n_global in batches:
            loss = self.train_step(torch.from_numpy(indices).to(self.device), n_global)
            self.step += 1
            samples += n_global
            span = self.backend.averaging_span
            meetings = [] if span is None else [span]
            if self.hooks["on_step"]:
                self.report_step(loss, len(indices), samples / (time.perf_counter() - start))
            stopped = self.stop_is_possible and self.ranks_agree_to_stop(meetings) and self.steps_left > 0
            step_start = self.stamps.add(self.steps_done, step_start, meetings)
            if stopped or self.steps_left <= 0:
                break
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        seconds = max(self.backend.allgather(time.perf_counter() - start))
        self.epoch_seconds += seconds
        self.total_seconds += seconds
        return stopped

    def train_step(self, indices: torch.Tensor, n_global: int) -> torch.Tensor:
        """One optimizer step on the mean loss over the global batch of n_global samples, of
        which `indices` are this rank's. Returns their summed loss."""
        self.lr = schedules.lr_at(
            self.steps_done,
            self.options.epochs * self.steps_per_epoch,
            self.peak_lr,
            self.warmup_steps,
            self.options.decay,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr
        labels = self.labels[indices].long()
        self.optimizer.zero_grad(set_to_none=False)  # a backend's buffer holds the gradients
        logits = self.forward(torch_cnn.normalise(self.images[indices]))  # [n_local, 10]
        loss = functional.cross_entropy(logits, labels, reduction="sum")
        # The backend takes the mean over ranks, so world_size cancels: see backends/base.py.
        (loss * (self.world.world_size / n_global)).backward()
        self.backend.average_gradients()
        self.optimizer.step()
        self.sums += metrics.metric_sums(loss.detach(), logits.detach(), labels)
        return loss.detach()

    def report_step(self, loss: torch.Tensor, n_local: int, samples_per_s: float) -> None:
        values = {
            "epoch": self.epoch,
            "step": self.step,
            "steps_per_epoch": self.steps_per_epoch,
            "lr": self.lr,
            "samples_per_s": samples_per_s,
        }
        later = {
            "loss": lambda: loss.item() / n_local if n_local else None,
            "sums": self.sums.tolist,
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
        loss, correct, samples = self.backend.sum(self.sums.cpu().numpy()).tolist()
        if self.step >= self.steps_per_epoch:
            metrics.check_all_seen("training", int(samples), self.train_size)
        test_loss, test_accuracy = metrics.evaluate(
            self.model, self.test_images, self.test_labels, self.test_size, self.backend
        )
        communication_s = None
        if self.backend.communication_s is not None:
            communication_s = float(np.mean(self.backend.allgather(self.backend.communication_s)))
        self.total_seconds += max(self.backend.allgather(time.perf_counter() - start))
        row = {
            "epoch": self.epoch,
            "seconds": self.epoch_seconds,
            "samples_per_s": samples / self.epoch_seconds,
            "train_loss": finite(loss / samples),
            "train_accuracy": correct / samples,
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
        own = {
            "sums": self.sums.cpu(),
            "torch_generator": torch.get_rng_state(),
            "cuda_generator": (torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None),
        }
        state = {name: getattr(self, name) for name in PROGRESS} | {
            "must_match": self.must_match(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "record": {name: self.record[name] for name in ("epochs", "seconds_to_99")},
            "ranks": self.backend.allgather(own),
        }
        if self.world.rank == 0:
            self.all_succeed(lambda: checkpoint.write(self.options.checkpoint, state))
        else:
            self.all_succeed(lambda: None)

    def resume(self) -> None:
        """Go on where the checkpoint was written; rank 0 reads it for all."""
        loaded = []
        path, wanted = self.options.checkpoint, self.must_match()
        self.all_succeed(
            lambda: loaded.append(checkpoint.read(path, wanted) if self.world.rank == 0 else None)
        )
        state = self.backend.allgather(loaded[0])[0]
        for name in PROGRESS:
            setattr(self, name, state[name])
        self.record.update(state["record"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        own = state["ranks"][self.world.rank]
        self.sums = own["sums"].to(self.device)
        torch.set_rng_state(own["torch_generator"])
        if own["cuda_generator"] is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(own["cuda_generator"], self.device)

    def must_match(self) -> dict:
        all_names = self.options.as_dict() | {
            "world_size": self.world.world_size,
            "train_size": self.train_size,
        }
        return {name: all_names[name] for name in checkpoint.MUST_MATCH}


def finite(loss: float) -> float | None:
    """None for the loss of a run that diverged: JSON, and so the record, has neither NaN nor infinity."""
    return loss if math.isfinite(loss) else None
