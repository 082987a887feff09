"""Rank side of the exercises in 08b_where_the_time_goes: plain functions, there so that an endless loop ends.

SHARES are made-up shares of the ranks' time; RUNS is what `fair_speedups` is called with.
"""

import copy

KINDS = ("computing", "waiting", "communicating")
SHARES = {
    "one is late": [(0.30, 0.60, 0.10), (0.28, 0.58, 0.14), (0.91, 0.01, 0.08), (0.35, 0.57, 0.08)],
    "another": [(0.50, 0.02, 0.48), (0.55, 0.25, 0.20)],
    "none": [(0.90, 0.04, 0.06), (0.85, 0.09, 0.06), (0.91, 0.03, 0.06)],
}
STRAGGLERS = {"one is late": 2, "another": 0, "none": None}

NAMES = ("ranks", "threads", "cores", "samples_per_s")
RUNS = [
    (4, 1, 1, 14000.0), (1, 1, 2, 4000.0), (2, 1, 2, 7600.0), (1, 2, 2, 6000.0), (2, 2, 4, 9000.0),
    (1, 2, 1, 500.0), (2, 2, 1, 1500.0),
]  # fmt: skip
SPEEDUPS = {(4, 1): 3.5, (1, 1): 1.0, (2, 1): 1.9, (1, 2): 1.0, (2, 2): 1.5}


def straggler(comm, function) -> dict:
    """What `function` returns for each of SHARES."""
    as_shares = {
        name: [dict(zip(KINDS, of_rank, strict=True)) for of_rank in rows] for name, rows in SHARES.items()
    }
    return {name: function(shares) for name, shares in as_shares.items()}


def fair_speedups(comm, function):
    """What `function` returns for RUNS."""
    return function([dict(zip(NAMES, run, strict=True)) for run in copy.deepcopy(RUNS)])
