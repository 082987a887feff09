"""Run records on disk: one JSON object per line, so that files can be joined with `cat`."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args

from workshop_lib.errors import InputError, cause
from workshop_lib.paths import require_writable
from workshop_lib.training import SCHEMA
from workshop_lib.training.backends import CHOOSE_TRANSPORT, REGISTRY
from workshop_lib.training.options import ZERO_STAGES, TrainOptions

KINDS = ("train", "steps_to_target", "less_communication", "bench", "search")
NUMBER = int | float
BYTE_ORDER_MARK = "\ufeff"
# Fields, by part, that tables and figures rely on. "what" also has all options of the training.
TRAIN_FIELDS: dict[str, dict[str, type | UnionType]] = {
    "": {"what": dict, "where": dict, "epochs": list, "seconds_to_99": NUMBER | None, "ranks_identical": bool | None},
    "what": {"backend": str, "world_size": int, "batch_size": int, "global_batch": int, "oversubscribed": bool},
    "epochs": {"seconds": NUMBER, "samples_per_s": NUMBER, "test_accuracy": NUMBER},
}


class RecordError(InputError):
    """A record file, or a set of records, that cannot be used; the message says where and why."""


def name_of(what: dict) -> str:
    """The name of a run where backends are compared. Each stage of DeepSpeed's ZeRO has its own name, and so does a
    backend that was told to send over MPI."""
    name = what["backend"]
    stage = what.get("zero_stage")
    if name in CHOOSE_TRANSPORT and what.get("comm") == "mpi":
        return f"{name}-mpi"
    return name if stage is None else f"{name}-{stage}"


def all_names() -> list[str]:
    """Every name that a run can have, in the order used by figures. Names over MPI come last."""
    plain = [
        name_of({"backend": backend, "zero_stage": stage})
        for backend, entry in REGISTRY.items()
        for stage in (ZERO_STAGES if entry.has_zero_stages else [None])
    ]
    return plain + [name_of({"backend": backend, "comm": "mpi"}) for backend in CHOOSE_TRANSPORT]


def require_place(path: str | os.PathLike) -> None:
    """Raise RecordError, naming the path and the cause, if no record can be written to this path."""
    try:
        require_writable(path)
    except OSError as error:
        raise _not_written(path, error) from error


def write(path: str | os.PathLike, record: Mapping[str, Any]) -> None:
    """Append one record to `path`, creating its folder if needed.

    Several processes may write to one file; each record is written completely or not at all. Among ranks, rank 0
    writes. Raises RecordError if the record cannot be written, or contains something that JSON cannot hold (such as
    NaN or infinity).
    """
    try:
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise RecordError(
            f"cannot write a record to {path}: {error}; records hold plain numbers, text, lists and "
            "dicts (use None for a number that is missing)."
        ) from error
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+b", buffering=0) as file:
            _append(file.fileno(), line)
    except OSError as error:
        raise _not_written(path, error) from error


def _append(file: int, line: bytes) -> None:
    """Write `line` at the end of an open file; on an error, such as a full disk, the file stays as it was."""
    with contextlib.suppress(OSError):  # some network file systems have no locks
        fcntl.flock(file, fcntl.LOCK_EX)
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        line = b"\n" + line
    try:
        # If a full disk cuts a write short, writing the rest raises the error.
        while line:
            line = line[os.write(file, line) :]
    except OSError:
        with contextlib.suppress(OSError):  # /dev/stdout, for example, cannot be truncated
            os.ftruncate(file, size)
        raise


def _not_written(path: str | os.PathLike, error: OSError) -> RecordError:
    return RecordError(f"{path}: the record cannot be written, because {cause(error)}; choose another file for it.")


def read(paths: str | os.PathLike | Iterable[str | os.PathLike]) -> list[dict]:
    """All records of one file, or of several, in order. Empty lines are skipped.

    Raises RecordError naming file and line for a line that is not a record (see `check`), and for a missing file.
    """
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    return [record for path in paths for record in _read_file(Path(path))]


def _read_file(path: Path) -> list[dict]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise RecordError(
            f"no record file {path}; `workshop train --out {path}` or `workshop sweep` writes one."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        why = cause(error) if isinstance(error, OSError) else "it is not text"
        raise RecordError(f"{path}: the records cannot be read, because {why}.") from error
    # Some editors put a byte order mark in front of a file. Joined files have it in front of any line.
    lines = [line.lstrip(BYTE_ORDER_MARK) for line in lines]
    return [_parse(line, f"{path}:{n}") for n, line in enumerate(lines, 1) if line.strip()]


def _parse(line: str, where: str) -> dict:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise RecordError(
            f"{where}: not a JSON object ({error.msg} at column {error.colno}); remove this line. If the record was "
            "cut off because its run was killed while it wrote, all other lines are whole."
        ) from error
    if not isinstance(record, dict):
        raise RecordError(f"{where}: a record is a JSON object, found {type(record).__name__}.")
    if record.get("schema") != SCHEMA:
        raise RecordError(
            f"{where}: record schema {record.get('schema')!r}, this version reads {SCHEMA}; measure again."
        )
    check(record, where)
    return record


def check(record: dict, where: str) -> None:
    """Raise RecordError, naming `where`, for an unknown kind of record, and for a training run in which one of
    TRAIN_FIELDS is missing or has the wrong type."""
    if record.get("kind") not in KINDS:
        raise RecordError(f"{where}: record kind {record.get('kind')!r}; this version knows {', '.join(KINDS)}.")
    if record["kind"] == "train":
        _check_fields(record, TRAIN_FIELDS[""], where)
        _check_fields(record["what"], TRAIN_FIELDS["what"], where)
        for option in fields(TrainOptions):
            if option.name not in record["what"]:
                raise RecordError(f"{where} lacks the field {option.name!r}; measure again.")
        for epoch in record["epochs"]:
            _check_fields(epoch, TRAIN_FIELDS["epochs"], where)


def _check_fields(part: Any, kinds_of: dict[str, type | UnionType], where: str) -> None:
    if not isinstance(part, dict):
        raise RecordError(f"{where}: {part!r} stands where named fields belong; measure again.")
    for name, kind in kinds_of.items():
        if name not in part:
            raise RecordError(f"{where} lacks the field {name!r}; measure again.")
        is_stray_bool = isinstance(part[name], bool) and bool not in (get_args(kind) or (kind,))
        if is_stray_bool or not isinstance(part[name], kind):
            expected = getattr(kind, "__name__", kind)
            raise RecordError(f"{where}: the field {name!r} is {part[name]!r}, not {expected}; measure again.")
