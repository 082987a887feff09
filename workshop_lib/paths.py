"""Where things are: in the checkout, or, where only the library is installed, in a cache folder."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

LIBRARY = Path(__file__).resolve().parent
ROOT = LIBRARY.parent  # the checkout, or the site-packages that the library was installed into
IS_CHECKOUT = (ROOT / "notebooks" / "source").is_dir()
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "distributed-dl-workshop")
WRITTEN = ROOT if IS_CHECKOUT else CACHE  # nothing is ever written into site-packages
BUILD = WRITTEN / "build"
SOURCES = ROOT / "notebooks" / "source"  # what the notebooks are generated from
SCRIPTS = ROOT / "notebooks" / "scripts"  # scripts that learners take home
# WORKSHOP_MNIST gives all notebooks a different data set in the same format, such as Fashion-MNIST. The tests give them
# a part of MNIST.
MNIST = Path(os.environ.get("WORKSHOP_MNIST", ROOT / "assets" / "mnist"))
# The learner's log, which learner.py writes. Beside it is what they chose to share. Neither file is under version
# control.
LEARNER = Path(os.environ.get("WORKSHOP_LEARNER_FILE") or WRITTEN / "progress" / "progress.jsonl")


def library_alone(folder: Path) -> str:
    """Make this folder, in which a Python finds this library and no other package; return its path for PYTHONPATH.

    A different environment's Python can then import the library without this environment's packages.
    """
    folder.mkdir()
    (folder / LIBRARY.name).symlink_to(LIBRARY)
    return str(folder)


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Yield the name of a temporary file to write. It replaces `path` at the end, and is removed on an error.

    So a reader finds either the old file or the new one, never a part of it, even after a crash. The folder is
    created if needed.
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
    """Whether only the owner can read a key that is written to this folder; creates the folder if needed.

    On a disk that keeps no file modes, such as a Windows disk (/mnt/c under WSL, CIFS), everybody could read the key.
    Also False if nothing can be written there.
    """
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=Path(folder)) as file:
            return not os.stat(file.name).st_mode & 0o077
    except OSError:
        return False


def require_writable(path: str | os.PathLike) -> None:
    """Raise the OSError that appending to `path` would raise. Creates the folder if needed, but not the file."""
    path = Path(path)
    if path.exists():
        with open(path, "ab"):
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent):
        pass
