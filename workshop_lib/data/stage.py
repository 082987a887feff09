"""A copy of the data on each node's own disk, so that many ranks do not read one shared file system."""

import hashlib
import os
import shutil
import time
import uuid
from pathlib import Path

from workshop_lib.data.mnist import FILES, DataError

VARIABLE = "WORKSHOP_STAGE_DIR"  # a folder such as /local/scratch or $TMPDIR; if unset, nothing is copied
COPY_LIMIT_S = 45.0  # less than other ranks wait in a collective (training/rendezvous.py), so this error comes first
CHUNK_BYTES = 1 << 20


def folder_for(data_dir: Path) -> Path | None:
    """Return the folder of this node's copy of `data_dir`, the same on every rank of the node.

    Returns None if WORKSHOP_STAGE_DIR is not set, or if there are no data files to copy. The folder's name depends on
    the files' paths, sizes and modification times, so that changed data gets a new copy.
    """
    sources = _sources(data_dir)
    if not os.environ.get(VARIABLE) or not sources:
        return None
    versions = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    name = f"workshop-{os.getuid()}-{hashlib.sha256(repr(versions).encode()).hexdigest()[:16]}"
    return Path(os.environ[VARIABLE]) / name


def copy(data_dir: Path, target: Path) -> None:
    """Copy the data files of `data_dir` to `target`, unless it holds them already. Only one rank per node calls it.

    The copy is read back and compared with the original. It gets its name only when it is complete, so no reader sees
    a partial copy. Raises DataError naming the file, also if copying takes longer than COPY_LIMIT_S.
    """
    if _is_whole(target):
        return
    deadline = time.monotonic() + COPY_LIMIT_S
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        temporary.mkdir(mode=0o700, parents=True)
        sums = {path.name: _copy_file(path, temporary / path.name, deadline) for path in _sources(data_dir)}
        lines = "".join(f"{digest}  {name}\n" for name, digest in sums.items())
        (temporary / "SHA256SUMS").write_text(lines)
        if not _is_whole(temporary):
            raise DataError(f"{temporary}: what was copied reads back differently; choose another {VARIABLE}.")
        if not _is_whole(target):  # otherwise another job of this user was faster
            shutil.rmtree(target, ignore_errors=True)
        os.replace(temporary, target)
    except OSError as error:
        if _is_whole(target):
            return
        raise DataError(
            f"{error.filename or target}: the data could not be copied there ({error.strerror}): set "
            f"{VARIABLE} to a folder on the node's own disk that can be written, or unset it."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sources(data_dir: Path) -> list[Path]:
    """Return the data files in a folder, both plain and compressed ones."""
    names = [name for pair in FILES.values() for name in pair]
    paths = [data_dir / f"{name}{end}" for name in names for end in ("", ".gz")]
    return [path for path in paths if path.is_file()]


def _copy_file(source: Path, target: Path, deadline: float) -> str:
    """Copy one file, and return the SHA-256 of what was read. Raises DataError after `deadline`."""
    digest = hashlib.sha256()
    with open(source, "rb") as reader, open(target, "wb") as writer:
        while chunk := reader.read(CHUNK_BYTES):
            if time.monotonic() > deadline:
                raise DataError(f"{source}: not copied to {target} within {COPY_LIMIT_S:.0f} s.")
            digest.update(chunk)
            writer.write(chunk)
    return digest.hexdigest()


def _is_whole(folder: Path) -> bool:
    """Return whether the files of a copy match the checksums stored with them."""
    try:
        rows = [line.split("  ", 1) for line in (folder / "SHA256SUMS").read_text().splitlines()]
        return all(hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest for digest, name in rows)
    except (OSError, ValueError):
        return False
