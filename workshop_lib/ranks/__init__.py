"""MPI ranks for a notebook: start them, run code on them, and never hang. In a notebook:

    from workshop_lib import ranks

    team = ranks.start(2)
    team.run(function, argument, timeout=60)     # one result per rank, in rank order
    team.restart()                               # fresh ranks, after any failure

The ranks import this package too, so it imports the notebook's side (session.py) only when somebody uses it.
"""

from .faults.rank_errors import RankError

__all__ = ["RankError", "Ranks", "attach", "current", "start", "stop"]


def __getattr__(name: str):
    """Import the notebook's side (session.py) when one of its names is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import session

    return getattr(session, name)
