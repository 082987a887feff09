"""Rank side of the exercises in 08_scaling_curves: plain functions, run there so that an endless loop ends.

TABLES are made-up seconds of epochs, {ranks: [run, …]}, as is FRACTIONS: (speed-up, ranks) by the share of
the work that was not shared out. BATCHES are what `smallest_batch` is called with.
"""

import copy

TABLES = {
    "short": {
        1: [[20, 9], [31, 10], [24, 15], [40, 8], [26, 12]],
        2: [[13, 5.5], [19, 6.25], [15, 8], [23, 4], [14, 7]],
        4: [[10, 3.5], [15, 4], [12, 8], [17, 3], [11, 5]],
    },
    "longer": {
        4: [[30, 3, 5, 7], [22, 2, 4, 6], [25, 4, 6, 8]],
        1: [[60, 14, 16, 18], [44, 10, 12, 14], [50, 18, 20, 22]],
        2: [[40, 11, 12, 13], [35, 9, 10, 11], [30, 8, 9, 10]],
    },
}
FRACTIONS = {0.1: (1 / (0.1 + 0.9 / 8), 8), 0.0: (4.0, 4), 1.0: (1.0, 3), -0.05: (1 / (-0.05 + 1.05 / 4), 4)}

NUMBERS = ("share", "message_bytes", "t0_s", "t1_s", "latency_s", "s_per_byte")
BATCHES = {
    "some": dict(zip(NUMBERS, (0.2, 1500, 1e-3, 2.9e-4, 1e-3, 1e-6), strict=True)),
    "other": dict(zip(NUMBERS, (0.4, 4000, 1e-4, 3.1e-5, 1e-5, 1.1e-7), strict=True)),
    "one": dict(zip(NUMBERS, (0.5, 4000, 2e-3, 3.1e-5, 1e-5, 1e-7), strict=True)),
}


def scaling_table(comm, function) -> dict:
    """What `function` returns for each of TABLES."""
    return {name: function(copy.deepcopy(seconds)) for name, seconds in TABLES.items()}


def serial_fraction(comm, function) -> dict:
    """What `function` returns for each of FRACTIONS."""
    return {fraction: function(*measured) for fraction, measured in FRACTIONS.items()}


def smallest_batch(comm, function) -> dict:
    """What `function` returns for each of BATCHES."""
    return {name: function(**numbers) for name, numbers in BATCHES.items()}
