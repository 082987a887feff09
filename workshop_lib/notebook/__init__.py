"""What belongs to the learner's notebook: the `%%ranks` magic, live progress, plots.

Importing this inside a notebook registers the magic and, where widgets work, the live view. Set
WORKSHOP_WIDGETS=0 for plain text.
"""

import os
import sys


def _shell():
    ipython = sys.modules.get("IPython")
    return ipython and ipython.get_ipython()


def has_widgets() -> bool:
    """Whether this is a notebook's kernel, and widgets are not switched off."""
    return getattr(_shell(), "kernel", None) is not None and os.environ.get("WORKSHOP_WIDGETS") != "0"


def _setup() -> None:
    shell = _shell()
    if not shell:
        return
    import mpi4py

    from . import magics

    # This kernel is not a rank: some systems end a process that starts MPI outside their launcher.
    mpi4py.rc.initialize = False
    shell.register_magics(magics.RanksMagics)
    if not has_widgets():
        return
    from workshop_lib.ranks import Ranks

    from .live import LiveView

    Ranks.view = LiveView


_setup()
