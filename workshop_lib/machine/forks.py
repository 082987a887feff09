"""What a fork of a process must leave alone: everything that the process itself will tidy up."""

import os
from collections.abc import Callable


def unless_forked(function: Callable, *arguments) -> Callable[[], None]:
    """Return a call of `function(*arguments)` that does nothing in forks of this process.

    A fork inherits whatever its parent has registered to run at exit, or when an object is no longer needed.
    """
    pid = os.getpid()

    def call() -> None:
        if os.getpid() == pid:
            function(*arguments)

    return call
