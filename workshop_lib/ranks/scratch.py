"""Folders for what ranks leave on this host: temporary files, and Open MPI's segments of shared memory.

They go away with the ranks. Those of a process that was killed are removed by the next start on this host: a folder
has the mark of its owner, so nobody else's is touched.
"""

import os
import shutil
import tempfile
from pathlib import Path

from . import processes

PREFIX = "workshop-"
SHARED_MEMORY = Path("/dev/shm")
SEGMENTS = "OMPI_MCA_btl_sm_backing_directory"
# A socket's path has at most 107 characters, and Python's names for sockets in here have up to 40.
LONGEST_PATH = 50


def temporary_folder() -> Path:
    """Where temporary folders are made: the user's place, unless sockets in it would have too long a path."""
    short = Path("/tmp")
    try:
        place = Path(tempfile.gettempdir())
    except OSError:  # no folder can be written
        return short
    return place if len(str(place)) <= LONGEST_PATH else short


class Scratch:
    """The folders of one set of ranks. Where none can be made, the ranks use what everybody uses.

    settings: the variables that lead ranks there.
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
        """A folder in there that only its owner can read."""
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
    """Remove the folders that killed processes of this user left on this host."""
    for parent in (temporary_folder(), SHARED_MEMORY):
        for folder in parent.glob(f"{PREFIX}*"):
            if _is_ours(folder) and processes.is_dead(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_ours(folder: Path) -> bool:
    """Whether it's a folder of this user's, and not a link to somewhere else."""
    try:
        return not folder.is_symlink() and folder.stat().st_uid == os.getuid()
    except OSError:
        return False
