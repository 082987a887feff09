"""MPI ranks for a notebook: start them, run code on them, and never hang.

from workshop_lib import ranks

team = ranks.start(2)
team.run(function, argument, timeout=60)     # one result a rank, in rank order
team.restart()                               # fresh ranks, after any failure
"""

from .cluster import Ranks, attach, current, start, stop
from .errors import RankError

__all__ = ["RankError", "Ranks", "attach", "current", "start", "stop"]
