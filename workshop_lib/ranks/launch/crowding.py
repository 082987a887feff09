"""More ranks than this machine has room for: refused before it's too busy to end them again, or noted if it works."""

import math
import os
import sys
from typing import TextIO

from workshop_lib.errors import InputError
from workshop_lib.machine import cgroups, cores
from workshop_lib.machine.kernel import in_notebook

from . import allocation

INSIST = "WORKSHOP_OVERSUBSCRIBE"  # if set to anything but 0, any number of ranks is tried
ALWAYS_FINE = 64
RANKS_PER_CORE = 32
UNNOTED_RANKS_PER_CORE = 4  # with more, a run takes so long that one wonders why
RANK_BYTES = 40e6  # of a rank that computes nothing yet


def check(n: int) -> None:
    """Raise InputError if `n` ranks are far too many for the cores or the memory here.

    Ranks on other hosts aren't counted: the scheduler has given them their room.
    """
    if os.environ.get(INSIST, "0") != "0" or _are_elsewhere():
        return
    memory = cgroups.memory_bytes()
    fine = min(max(ALWAYS_FINE, RANKS_PER_CORE * cores.usable_cores()), max(2, math.floor(memory / RANK_BYTES)))
    if n > fine:
        raise InputError(
            f"{n:,} ranks are far too many for this machine, which has {cores.here()} and {memory / 1e9:.0f} GB of "
            f"memory. Start at most {fine}. To try it all the same, set {INSIST}=1 first (in a notebook: "
            f"`%env {INSIST}=1`)."
        )


def note(n: int) -> None:
    """Print what to expect if many ranks have to share each core here."""
    usable = cores.usable_cores()
    if n > UNNOTED_RANKS_PER_CORE * usable and not _are_elsewhere():
        print(
            f"{n:,} ranks take turns on {cores.here()}: whatever they compute takes {n / usable:.0f} times as "
            "long as with a core for each, so don't compare its times.",
            file=notes_to(),
        )


def notes_to() -> TextIO:
    """Where notes on ranks go: a notebook shows stderr in red; elsewhere, stdout is for a program's results."""
    return sys.stdout if in_notebook() else sys.stderr


def _are_elsewhere() -> bool:
    """Whether some of the ranks run on other hosts, for which the scheduler has given them room."""
    job = allocation.find()
    return job is not None and job.elsewhere
