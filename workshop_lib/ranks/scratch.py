"""Folders for what ranks leave on this host: temporary files, and Open MPI's segments of shared memory.

The folders are removed together with the ranks. If their owner was killed, the next start on this host removes them.
Each folder carries its owner's mark, so nobody else's folders are touched.
"""

import os
import shutil
import tempfile
from pathlib import Path

from . import processes, stub

PREFIX = "workshop-"
SHARED_MEMORY = Path("/dev/shm")
SEGMENTS = "OMPI_MCA_btl_sm_backing_directory"


def temporary_folder() -> Path:
    """Where temporary folders are created: the user's choice, unless paths of sockets in it would be too long."""
    return Path(stub.temporary_folder())


class Scratch:
    """The folders of one set of ranks. If one cannot be created, the ranks use the same folder as everybody else.

    settings: the environment variables that send ranks to these folders. Both are empty unless one_host.
    """

    def __init__(self, set_id: str, one_host: bool = True):
        self.folders: list[Path] = []
        self.settings: dict[str, str] = {}
        if not one_host:  # the other hosts would not have these folders
            return
        if temporary := self._make(temporary_folder(), set_id):
            self.settings |= {"TMPDIR": str(temporary), "KERAS_HOME": str(temporary / "keras")}
        if SEGMENTS not in os.environ and (segments := self._make(SHARED_MEMORY, set_id)):
            self.settings[SEGMENTS] = str(segments)

    def _make(self, parent: Path, set_id: str) -> Path | None:
        """Create a folder in `parent` that only its owner can read; None if that fails."""
        try:
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            self.folders.append(folder)
            (folder / "owner").write_text(processes.mark(set_id))
        except OSError:
            return None
        return folder

    def remove(self) -> None:
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Remove the folders that killed processes of this user left behind on this host."""
    for parent in (temporary_folder(), SHARED_MEMORY):
        for folder in parent.glob(f"{PREFIX}*"):
            if _is_ours(folder) and processes.is_dead(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_ours(folder: Path) -> bool:
    """Whether a folder belongs to this user and is not a link to somewhere else."""
    try:
        return not folder.is_symlink() and folder.stat().st_uid == os.getuid()
    except OSError:
        return False
