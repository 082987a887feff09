"""Where things are in the checkout."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
MNIST = ROOT / "assets" / "mnist"
SCRIPTS = ROOT / "notebooks" / "scripts"  # to take home


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
