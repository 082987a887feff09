"""The parts of the set-up that may fail, or take their time, without costing anyone the rest of the workshop.

The set-up writes down what became of each; whoever needs one reads it here. Standard library only, and syntax that
an old Python can read, because the set-up uses this file before anything is installed.
"""

import json
import os
import sys

# What is installed after the core, in this order, and who needs it.
NEEDED_BY = {"deepspeed": "Notebook 06b needs it", "horovod": "Notebooks 03 and 04 need it"}
TITLES = {"deepspeed": "DeepSpeed", "horovod": "Horovod"}
INSTALLED, FAILED, UNDER_WAY = "installed", "failed", "under way"


def file_of(prefix=sys.prefix):
    """The set-up's notes on the extras of the Python environment in this folder."""
    return os.path.join(prefix, "workshop-extras")


def read(prefix=sys.prefix):
    """The note on each extra that the set-up has begun: "state", and "reason" or "pid" where there is one."""
    try:
        with open(file_of(prefix)) as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def write(notes, prefix=sys.prefix):
    """Replace the notes in one move."""
    path = file_of(prefix)
    with open(path + ".tmp", "w") as file:
        json.dump(notes, file)
    os.replace(path + ".tmp", path)


def why_missing(name, prefix=sys.prefix):
    """Why an extra is not there and what to do, in a sentence or two; empty when the set-up knows of no reason."""
    note = read(prefix).get(name, {})
    title = TITLES[name]
    if note.get("state") == FAILED:
        reason = note["reason"].rstrip(".")
        return f"{title} could not be installed: {reason}. {NEEDED_BY[name]}; `make extras` tries again."
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
