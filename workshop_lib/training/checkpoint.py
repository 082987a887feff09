"""Checkpoints: one file, written whole or not at all, read by rank 0 for every rank.

The file is what torch.save writes. PyTorch is imported only when it is used, because programs that start ranks check
the checkpoint first, and must be quick.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from workshop_lib.errors import InputError, cause
from workshop_lib.paths import replacing, require_writable
from workshop_lib.training import schedules
from workshop_lib.training.options import RESUME, TrainOptions, must_be_same

if TYPE_CHECKING:
    import torch


class State(TypedDict):
    """The content of a checkpoint. All tensors are whole, so that any number of ranks can continue from it."""

    epoch: int  # counted from 1
    step: int  # number of steps done in this epoch
    epoch_seconds: float
    total_seconds: float
    must_match: dict[str, Any]
    record: dict[str, Any]  # "epochs" and "seconds_to_99" of the run record
    ranks: list[dict[str, Any]]  # each rank's own state (Replica.own_state)
    model: dict[str, torch.Tensor]  # by parameter name
    optimizer: Any  # a dict by parameter name for PyTorch, a list for TensorFlow


class CheckpointError(InputError):
    """A checkpoint cannot be read or written, or does not fit the run; the message says what to do."""


def must_match(options: TrainOptions, world_size: int, train_size: int, framework: str) -> dict[str, Any]:
    """Return what a run that resumes must have in common with the run that wrote the checkpoint, by name.

    On the same number of ranks, the run then continues bit for bit, and on more or fewer ranks up to rounding.
    """
    return {name: getattr(options, name) for name in must_be_same(RESUME)} | {
        "global_batch": options.global_batch(world_size),
        "peak_lr": schedules.scale_lr(options.lr, options.lr_scaling, options.workers(world_size)),
        "train_size": train_size,
        "framework": framework,
    }


def require_place(path: str | Path) -> None:
    """Raise CheckpointError, naming the path and the cause, if no checkpoint can be written there."""
    try:
        require_writable(path)
        require_writable(Path(path).with_suffix(".tmp"))  # the new file is written beside the old one
    except OSError as error:
        raise _not_written(path, error) from error


def write(path: str | Path, state: State) -> None:
    """Write `state` so that a crash at any moment leaves either the old file or the new one, never a part of it.

    Raises CheckpointError naming the path and the cause.
    """
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    try:
        with replacing(path) as temporary, open(temporary, "wb") as file:
            file.write(buffer.getvalue())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _not_written(path, error) from error


def _not_written(path: str | Path, error: OSError) -> CheckpointError:
    remedy = "choose another place with --checkpoint"
    return CheckpointError(f"{path}: the checkpoint cannot be written, because {cause(error)}; {remedy}")


def read(path: str | Path, wanted: dict) -> State:
    """Return the state in `path`, after comparing what it was written with to `wanted`, the result of `must_match`.

    Raises CheckpointError naming the file and what is wrong with it.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{path}: no checkpoint to resume from ({cause(error)}); name another with --checkpoint, or start "
            "without --resume"
        ) from error
    import torch

    try:
        state = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
        written_with = state["must_match"]
    except Exception as error:  # torch raises many kinds of errors for a damaged file
        raise CheckpointError(
            f"{path}: this is not a checkpoint of this workshop, or it was damaged after it was written; "
            "use a copy of it if you have one, else delete it and start without --resume"
        ) from error
    different = [name for name in wanted if written_with.get(name) != wanted[name]]
    if different:
        listed = ", ".join(f"{name} {written_with.get(name)!r} (now {wanted[name]!r})" for name in different)
        raise CheckpointError(f"{path}: written with {listed}; resume with the same, or start without --resume")
    return state
