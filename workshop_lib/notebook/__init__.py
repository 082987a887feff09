"""What belongs to the learner's notebook: the `%%ranks` magic, live progress, plots.

Importing this inside a notebook registers the magic and, where widgets work, the live view. Set
WORKSHOP_WIDGETS=0 for plain text.
"""

import os
import sys


def _setup() -> None:
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    if not shell:
        return
    from . import magics

    shell.register_magics(magics.RanksMagics)
    if getattr(shell, "kernel", None) is None or os.environ.get("WORKSHOP_WIDGETS") == "0":
        return
    from workshop_lib.ranks import Ranks

    from .live import LiveView

    Ranks.view = LiveView


_setup()
