"""Errors that a user can cause and fix. Only their text is shown, without frames of this library."""

import errno
import os

CAUSES = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "your quota on this disk is used up",
    errno.EFBIG: "it would be larger than files may be here (`ulimit -f`)",
    errno.EACCES: "you have no permission",
    errno.EPERM: "you have no permission",
    errno.EROFS: "this disk can only be read",
    errno.EISDIR: "it is a folder",
    errno.ENOTDIR: "part of the path is a file",
    errno.EEXIST: "part of the path is a file",
    errno.ENOENT: "there is no such file or folder",
}


def cause(error: OSError) -> str:
    """Why a file could not be read or written, in everyday words."""
    number = error.errno or 0
    return CAUSES.get(number) or (os.strerror(number) if number else str(error))


class WorkshopError(Exception):
    """An error whose text says what happened, to what, and what to do next, in one or a few sentences."""

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython shows in place of a traceback."""
        return f"{type(self).__name__}: {self}".splitlines()


class InputError(WorkshopError, ValueError):
    """A value that was typed, passed or read from a file cannot be used."""
