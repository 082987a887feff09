"""What the set-up has installed in this Python's environment, and why something is missing.

The set-up writes notes beside the packages. `workshop doctor` and the notebooks' first cells read them here. Standard
library only, and syntax that an old Python can read, because the set-up uses this file before anything is installed.
"""

import json
import os
import sys

# In the order of preference: the first is the one that is tested most.
PYTHONS = ((3, 11), (3, 12), (3, 13))
NOT_YET = {(3, 14): "tensorflow-cpu and h5py have no wheels for it"}
# The extras: what is installed after the core, in this order, and who needs it.
NEEDED_BY = {"deepspeed": "Notebook 06b needs it", "horovod": "Notebooks 03 and 04 need it"}
TITLES = {"deepspeed": "DeepSpeed", "horovod": "Horovod"}
CORE, EXTRAS = "workshop-setup", "workshop-extras"
INSTALLED, FAILED, UNDER_WAY = "installed", "failed", "under way"


def pythons_in_words():
    """ "3.11, 3.12 or 3.13"."""
    versions = [f"{major}.{minor}" for major, minor in PYTHONS]
    return ", ".join(versions[:-1]) + " or " + versions[-1]


def read_notes(name, prefix=sys.prefix):
    """The set-up's notes of this name on the environment in the folder `prefix`; empty where there are none.

    "workshop-setup": "settings", "root", "torch", and "done" once the core is whole. "workshop-extras": for each
    extra that was begun, "state", and "reason" or "pid" where there is one.
    """
    try:
        with open(os.path.join(prefix, name)) as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def write_notes(name, notes, prefix=sys.prefix):
    """Replace them in one move."""
    path = os.path.join(prefix, name)
    with open(path + ".tmp", "w") as file:
        json.dump(notes, file)
    os.replace(path + ".tmp", path)


def why_this_pytorch(prefix=sys.prefix):
    """Which build of PyTorch the set-up chose, and why, in a sentence; empty for an environment of another kind."""
    return read_notes(CORE, prefix).get("torch", "")


def why_missing(name, prefix=sys.prefix):
    """Why an extra is not there and what to do, in a sentence or two; empty when the set-up knows of no reason."""
    note = read_notes(EXTRAS, prefix).get(name, {})
    title = TITLES[name]
    if note.get("state") == FAILED:
        reason = note["reason"].rstrip(".")
        where = note["log"]
        return f"{title} could not be installed: {reason} ({where}). {NEEDED_BY[name]}; `make extras` tries again."
    if note.get("state") == UNDER_WAY:
        if is_alive(note.get("pid")):
            return f"{title} is still being installed in the background, as build/extras.log shows: wait a few minutes."
        return f"{title} is not there yet, because its installation was interrupted: `make setup` continues it."
    return ""


def is_alive(pid):
    """Whether a process of this number runs on this machine."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, TypeError):
        return False
    return True
