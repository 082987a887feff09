"""Folders for what ranks leave on this host: temporary files, and Open MPI's segments of shared memory.

The folders are removed together with the ranks. If their owner was killed, the next start on this host removes them.
Each folder carries its owner's mark, so nobody else's folders are touched.
"""

import contextlib
import os
import tempfile
from pathlib import Path

from workshop_lib.paths import BUILD
from workshop_lib.ranks import owned

from . import stub

PREFIX = "workshop-"
SHARED_MEMORY = Path("/dev/shm")
SEGMENTS = "OMPI_MCA_btl_sm_backing_directory"
# Open MPI's mpiexec names its folder by its process id alone, and leaves the folder behind when it is killed. In a
# shared place, the next mpiexec with the same process id would refuse to start.
MPIEXECS_PLACE = "PRTE_MCA_prte_local_tmpdir_base"


def temporary_folder() -> Path:
    """Where temporary folders are created: the user's choice, unless paths of sockets in it would be too long."""
    return Path(stub.temporary_folder())


def make(parent: Path, set_id: str) -> Path:
    """Create a folder in `parent` that only its owner can read, with the mark of this set. Raises OSError."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    owned.claim(folder, set_id)
    return folder


class Scratch:
    """The folders of one set of ranks. If one cannot be created, the ranks use the same folder as everybody else.

    settings: the environment variables that send ranks to these folders. Other hosts do not have the folders, so unless
    one_host, only mpiexec gets one.
    """

    def __init__(self, set_id: str, one_host: bool = True):
        self.folders: list[Path] = []
        self.settings: dict[str, str] = {}
        with contextlib.suppress(OSError):
            temporary = make(temporary_folder(), set_id)
            self.folders.append(temporary)
            if not {MPIEXECS_PLACE, "PRTE_MCA_prte_tmpdir_base"} & os.environ.keys():  # the site has chosen no place
                self.settings[MPIEXECS_PLACE] = str(temporary)
            if one_host:
                self.settings |= {"TMPDIR": str(temporary), "KERAS_HOME": str(temporary / "keras")}
        with contextlib.suppress(OSError):
            if one_host and SEGMENTS not in os.environ:
                segments = make(SHARED_MEMORY, set_id)
                self.folders.append(segments)
                self.settings[SEGMENTS] = str(segments)

    def remove(self) -> None:
        for folder in self.folders:
            owned.remove(folder)


def sweep() -> None:
    """Remove what killed processes of this user left behind: these folders, and those of sets of ranks (folders.py)."""
    left = [folder for parent in (temporary_folder(), SHARED_MEMORY) for folder in parent.glob(f"{PREFIX}*")]
    for folder in [*left, *(BUILD / "ranks").glob("*")]:
        if _is_ours(folder) and owned.is_dead(folder):
            owned.remove(folder)


def _is_ours(folder: Path) -> bool:
    """Whether a folder belongs to this user and is not a link to somewhere else."""
    try:
        return not folder.is_symlink() and folder.stat().st_uid == os.getuid()
    except OSError:
        return False
