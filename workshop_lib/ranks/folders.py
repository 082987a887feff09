"""The folder of a set of ranks: connection files, logs, and what ranks write down about themselves."""

import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import ipyparallel as ipp

from workshop_lib.paths import BUILD

from . import processes
from .errors import RankError


def create(set_id: str) -> Path:
    """A new folder, marked as this process's; in the checkout, which all nodes of a cluster see."""
    parent = BUILD / "ranks"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = parent / set_id
        folder.mkdir(mode=0o700)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix=f"workshop-{set_id}-"))
    (folder / "owner").write_text(processes.mark(set_id))
    return folder


def _is_dead(folder: Path) -> bool:
    try:
        return processes.owner_is_gone((folder / "owner").read_text())
    except (OSError, ValueError):
        return False


def remove_dead() -> None:
    """Remove the folders that killed notebooks left."""
    for folder in (BUILD / "ranks").glob("*"):
        if _is_dead(folder):
            shutil.rmtree(folder, ignore_errors=True)


def find(folder: str | os.PathLike | None = None) -> Path:
    """The given folder, or that of the ranks started last. Raises RankError when nobody holds ranks there."""
    parents = (BUILD / "ranks").glob("*") if folder is None else [Path(folder)]
    found = [path for path in parents if (path / "security").is_dir() and not _is_dead(path)]
    if not found:
        where = "" if folder is None else f" in {folder}"
        raise RankError(f"No running ranks were found{where}. Start some with `workshop engines --ranks 2`.")
    return max(found, key=lambda path: (path / "security").stat().st_mtime)


def connect(folder: Path, deadline: float, leashes: list = ()) -> ipp.Client:
    """Connect to the controller whose files are in `folder`, once it has written them.

    Raises RankError when the controller has ended or does not answer before the deadline.
    """
    files = [folder / "security" / f"ipcontroller-{side}.json" for side in ("engine", "client")]
    while not all(_is_json(file) for file in files):
        if leashes and leashes[0].poll() is not None:
            raise RankError(f"the controller ended with exit code {leashes[0].returncode}.")
        if time.monotonic() > deadline:
            raise RankError(f"no controller's connection file {files[1]} appeared.")
        time.sleep(0.02)
    try:
        return ipp.Client(str(files[1]), timeout=max(1.0, deadline - time.monotonic()))
    except OSError as error:  # TimeoutError is one
        raise RankError(f"the controller of {files[1]} does not answer ({error}).") from None


def _is_json(file: Path) -> bool:
    """Whether the file is there and whole: the controller does not write it in one go."""
    try:
        return bool(json.loads(file.read_text()))
    except (OSError, ValueError):
        return False
