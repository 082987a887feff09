"""Folders that belong to one process: each holds its owner's mark, which is locked for as long as the owner lives.

Containers may share a folder and a host name, but not see each other's processes. So a process in one container learns
from the lock whether an owner in a different container lives: the kernel releases the lock when the owner ends, no
matter how it ends. Where a file system has no locks, such an owner counts as alive.
"""

import contextlib
import fcntl
import shutil
import socket
from pathlib import Path
from typing import TextIO

from workshop_lib.paths import replacing

from .launch import processes

OWNER = "owner"
_LOCKED: dict[Path, TextIO] = {}  # the open marks in this process's folders: closing one releases its lock


def claim(folder: Path, set_id: str) -> None:
    """Write this process's mark for this set into its folder, and lock the mark. Raises OSError."""
    with replacing(folder / OWNER) as temporary:  # nobody sees the mark before it is complete and locked
        temporary.write_text(processes.mark(set_id))
        file = open(temporary, "r+")  # noqa: SIM115, it stays open until the folder is removed
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _LOCKED[folder] = file


def remove(folder: Path) -> None:
    """Remove a folder. The mark is closed first, because shared disks keep open files, and so their folder."""
    file = _LOCKED.pop(folder, None)
    if file is not None:
        file.close()
    shutil.rmtree(folder, ignore_errors=True)


def is_dead(folder: Path) -> bool:
    """Whether the owner of a folder ran on this host and is gone. False for owners on other hosts."""
    with contextlib.suppress(OSError), open(folder / OWNER) as file:
        owner = processes.owner_of(file.read())
        if owner is None or owner.host != socket.gethostname():
            return False
        if owner.can_be_seen():
            return owner.is_gone()
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # raises OSError if the owner holds the lock
        return True
    return False
