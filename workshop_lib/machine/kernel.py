"""Whether this process is a notebook's kernel, and whose."""

import os
import sys
from pathlib import Path
from typing import Any


def shell() -> Any:
    """This process's IPython shell; None if it isn't in IPython. IPython isn't imported for it."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    return getattr(shell(), "kernel", None) is not None


def notebook_file() -> Path | None:
    """The notebook file whose kernel this process is; None outside a notebook, or if the front end does not name it."""
    named = os.environ.get("JPY_SESSION_NAME") or getattr(shell(), "user_ns", {}).get("__vsc_ipynb_file__")
    return Path(named) if named else None
