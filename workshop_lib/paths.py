"""Where things are in the checkout."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
SCRIPTS = ROOT / "notebooks" / "scripts"  # to take home
SHIPPED_MNIST = ROOT / "assets" / "mnist"
# Another data set in the same format, for all notebooks at once: Fashion-MNIST, or a part of MNIST in the tests.
MNIST = Path(os.environ.get("WORKSHOP_MNIST", SHIPPED_MNIST))
# What learner.py keeps: beside the notebooks, where the learner sees it, and not under version control.
LEARNER = Path(os.environ.get("WORKSHOP_LEARNER_FILE") or ROOT / "notebooks" / "progress.jsonl")


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """The name of a file to write, which takes the place of `path` at the end, and goes away on an error.

    So a reader, or a crash, meets the old file or the new one, never a part. The folder is made if needed.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, because a rename is atomic only within one file system.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def keeps_secrets(folder: str | os.PathLike) -> bool:
    """Whether only its owner can read a key that's written there; makes the folder if needed.

    On a disk without modes, such as one of Windows (/mnt/c under WSL, CIFS), everybody could. False, too, where nothing
    can be written.
    """
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=Path(folder)) as file:
            return not os.stat(file.name).st_mode & 0o077
    except OSError:
        return False


def require_writable(path: str | os.PathLike) -> None:
    """Raise the OSError that appending to `path` would meet. The folder is made if needed, the file is not."""
    path = Path(path)
    if path.exists():
        with open(path, "ab"):
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent):
        pass
