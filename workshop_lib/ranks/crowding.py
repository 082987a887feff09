"""Refuse far more ranks than this machine has room for, before it's too busy to end them again."""

import math
import os

from workshop_lib.errors import InputError
from workshop_lib.machine import cgroups, cores

from . import allocation

INSIST = "WORKSHOP_OVERSUBSCRIBE"  # if set to anything but 0, any number of ranks is tried
ALWAYS_FINE = 64
RANKS_PER_CORE = 32
RANK_BYTES = 40e6  # of a rank that computes nothing yet


def check(n: int) -> None:
    """Raise InputError if `n` ranks are far too many for the cores or the memory here.

    Ranks on other hosts aren't counted: the scheduler has given them their room.
    """
    job = allocation.find()
    if os.environ.get(INSIST, "0") != "0" or (job is not None and job.elsewhere):
        return
    memory = cgroups.memory_bytes()
    fine = min(max(ALWAYS_FINE, RANKS_PER_CORE * cores.usable_cores()), max(2, math.floor(memory / RANK_BYTES)))
    if n > fine:
        raise InputError(
            f"{n:,} ranks are far too many for this machine, which has {cores.here()} and {memory / 1e9:.0f} GB of "
            f"memory. Start at most {fine}. To try it all the same, set {INSIST}=1 first (in a notebook: "
            f"`%env {INSIST}=1`)."
        )
