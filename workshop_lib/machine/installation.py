"""What the set-up has installed in this Python's environment, and why something is missing.

The set-up writes notes beside the packages. `workshop doctor` and the notebooks' first cells read the notes with this
module. It uses the standard library only, and syntax that an old Python can read, because the set-up uses this file
before anything is installed.
"""

import errno
import fcntl
import json
import os
import sys

# The supported Pythons in order of preference. The first one is tested the most.
PYTHONS = ((3, 11), (3, 12), (3, 13))
# The extras, which are installed after the core in this order, and the notebooks that need each of them.
NEEDED_BY = {"deepspeed": "Notebook 06b needs it", "horovod": "Notebooks 03 and 04 need it"}
TITLES = {"deepspeed": "DeepSpeed", "horovod": "Horovod", "book": "what makes the book"}
CORE = "workshop-setup"
EXTRAS = "workshop-extras"
INSTALLED = "installed"
FAILED = "failed"
UNDER_WAY = "under way"
LOCKED = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)  # the errors of a lock that another process holds


def pythons_in_words():
    """The supported versions of Python in words, such as "3.11, 3.12 or 3.13"."""
    versions = [f"{major}.{minor}" for major, minor in PYTHONS]
    return ", ".join(versions[:-1]) + " or " + versions[-1]


def read_notes(name, prefix=sys.prefix):
    """The set-up's notes of this name about the environment in the folder `prefix`; empty if there are none.

    The notes "workshop-setup" have "settings", "root" and "torch", and "done" once the core is complete. The notes
    "workshop-extras" have, for each extra whose installation was begun, "state", and "reason" if known.
    """
    try:
        with open(os.path.join(prefix, name)) as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def write_notes(name, notes, prefix=sys.prefix):
    """Replace the notes of this name in the folder `prefix`, in one atomic move."""
    path = os.path.join(prefix, name)
    with open(path + ".tmp", "w") as file:
        json.dump(notes, file)
    os.replace(path + ".tmp", path)


def why_missing(name, prefix=sys.prefix):
    """Why an extra is missing and what to do about it, in a sentence or two; empty if the set-up knows no reason."""
    note = read_notes(EXTRAS, prefix).get(name, {})
    title = TITLES[name]
    if note.get("state") == FAILED:
        reason = note["reason"].rstrip(".")
        where = note["log"]
        who = f"{NEEDED_BY[name]}; `make extras`" if name in NEEDED_BY else "`make book`"
        return f"{title} could not be installed: {reason} ({where}). {who} tries again."
    if note.get("state") == UNDER_WAY:
        if is_under_way(note, prefix):
            return f"{title} is still being installed in the background, as build/extras.log shows: wait a few minutes."
        return f"{title} is not there yet, because its installation was interrupted: `make setup` continues it."
    return ""


def is_under_way(note, prefix=sys.prefix):
    """Whether the installation that this note is about goes on: it holds the set-up's lock."""
    if note.get("state") != UNDER_WAY:
        return False
    try:
        with open(os.path.join(os.path.dirname(prefix), "build", "setup.lock")) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError as error:
        return error.errno in LOCKED
