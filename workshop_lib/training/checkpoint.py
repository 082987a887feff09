"""Checkpoints: one file, written whole or not at all, read by rank 0 for every rank."""

import io
import os
from pathlib import Path
from typing import Any, TypedDict

import torch

from workshop_lib.errors import InputError
from workshop_lib.paths import replacing

# A run that continues must agree on these. On as many ranks it then goes on bit for bit, on more or fewer
# up to rounding.
MUST_MATCH = (
    "epochs",
    "global_batch",
    "peak_lr",
    "network",
    "warmup",
    "warmup_epochs",
    "decay",
    "optimizer",
    "momentum",
    "nesterov",
    "label_smoothing",
    "seed",
    "data_dir",
    "train_samples",
    "train_size",
    "precision",
    "framework",
)


class State(TypedDict):
    """What a checkpoint holds. All tensors are whole, so that any number of ranks can go on from it."""

    epoch: int  # counted from 1
    step: int  # done in this epoch
    epoch_seconds: float
    total_seconds: float
    must_match: dict[str, Any]
    record: dict[str, Any]  # "epochs" and "seconds_to_99" of the run record
    ranks: list[dict[str, Any]]  # what belongs to each rank (Learner.own_state)
    model: dict[str, torch.Tensor]  # by the parameter's name
    optimizer: Any  # by the parameter's name; a list for TensorFlow


class CheckpointError(InputError):
    """A checkpoint that cannot be read or written, or does not fit; the text says what to do."""


def write(path: str | Path, state: State) -> None:
    """Write `state` so that a crash at any moment leaves the old file or the new, never a part.

    Raises CheckpointError naming the path and the cause.
    """
    try:
        with replacing(path) as temporary, open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"{path}: the checkpoint could not be written ({error}); choose another place with --checkpoint"
        ) from error


def read(path: str | Path, wanted: dict) -> State:
    """The state in `path`, after comparing its options with `wanted` (of MUST_MATCH).

    Raises CheckpointError naming the file and what is wrong with it.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{path}: no checkpoint to resume from ({error.strerror}); start without --resume"
        ) from error
    try:
        state = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
        written_with = {"label_smoothing": 0.0} | state["must_match"]  # earlier files have none
    except Exception as error:  # torch raises many kinds for a damaged file
        raise CheckpointError(
            f"{path}: not a readable checkpoint of this workshop ({type(error).__name__}); "
            "delete it and start without --resume"
        ) from error
    different = [name for name in MUST_MATCH if written_with.get(name) != wanted[name]]
    if different:
        listed = ", ".join(f"{name} {written_with.get(name)!r} (now {wanted[name]!r})" for name in different)
        raise CheckpointError(f"{path}: written with {listed}; resume with the same, or start without --resume")
    return state
