"""The exercises of 08_scaling_curves: speed-up and efficiency, and Amdahl's serial fraction.

The functions are judged on made-up numbers.
"""

import copy
from collections.abc import Callable, Iterator

from workshop_lib.exercises.play import Edit, played

NOTEBOOK = "08_scaling_curves"
# Seconds per epoch, {ranks: [run, …]}. The first table's numbers show how an answer has combined epochs and runs.
SECONDS = {
    1: [[20, 9], [31, 10], [24, 15], [40, 8], [26, 12]],
    2: [[13, 5.5], [19, 6.25], [15, 8], [23, 4], [14, 7]],
    4: [[10, 3.5], [15, 4], [12, 8], [17, 3], [11, 5]],
}
LONGER = {
    4: [[30, 3, 5, 7], [22, 2, 4, 6], [25, 4, 6, 8]],
    1: [[60, 14, 16, 18], [44, 10, 12, 14], [50, 18, 20, 22]],
    2: [[40, 11, 12, 13], [35, 9, 10, 11], [30, 8, 9, 10]],
}


def play_scaling_table(scaling_table: Callable, comm) -> Iterator[tuple]:
    table = scaling_table(copy.deepcopy(SECONDS))
    (on_2, efficiency_2), (on_4, efficiency_4) = table[2], table[4]
    yield "speed-up is against 1 rank, from the median run without its first epoch", [on_2, on_4]
    yield "efficiency is right", [efficiency_2, efficiency_4]
    yield "on 1 rank both are 1", table[1]
    longer = scaling_table(copy.deepcopy(LONGER))
    yield "also with more epochs, and when 1 rank isn't first in the dictionary", [*longer[4], *longer[1]]


SPEEDUP = "(typical_s[1] / s, typical_s[1] / s / n)"
scaling_table = played(
    "scaling_table",
    NOTEBOOK,
    play_scaling_table,
    [
        Edit(
            "the first epoch is in it: take the epochs after it, `run[1:]`.",
            ("median(mean(run[1:]) for run in runs)", "median(mean(run) for run in runs)"),
        ),
        Edit(
            "it is upside down: divide the seconds on 1 rank by those on N.",
            (SPEEDUP, "(s / typical_s[1], s / typical_s[1] / n)"),
        ),
        Edit(
            "that is the speed-up again: divide it by the number of ranks.",
            (SPEEDUP, "(typical_s[1] / s, typical_s[1] / s)"),
        ),
    ],
    unknown="Take each run's mean of its epochs after the first, then the runs' median. Efficiency is a fraction.",
    returns="(speed-up, efficiency) for each number of ranks",
    communicates=False,
)

# (speed-up, ranks, what the serial fraction is)
MEASURED = [
    (1 / (0.1 + 0.9 / 8), 8, "is right"),
    (4.0, 4, "is 0 if perfect"),
    (1.0, 3, "is 1 when more ranks gain nothing"),
    (1 / (-0.05 + 1.05 / 4), 4, "is negative above the number of ranks"),
]


def play_serial_fraction(serial_fraction: Callable, comm) -> Iterator[tuple]:
    for speedup, n, text in MEASURED:
        yield f"for a speed-up of {speedup:.3g} on {n} ranks it {text}", serial_fraction(speedup, n)


FRACTION = "(1 / speedup - 1 / n) / (1 - 1 / n)"
serial_fraction = played(
    "serial_fraction",
    NOTEBOOK,
    play_serial_fraction,
    [
        Edit("divide this by 1 - 1/n, because the f in (1 - f)/n counts as well.", (" / (1 - 1 / n)", "")),
        Edit("that is 1 minus the efficiency. Solve 1/S = f + (1 - f)/n for f.", (FRACTION, "1 - speedup / n")),
        Edit(
            "don't clip it at 0: a negative value tells you that something in the measurement is wrong.",
            (FRACTION, f"max(0, {FRACTION})"),
        ),
    ],
    unknown="Take Amdahl's law, in which f is a share of the work on one rank: solve 1/S = f + (1 - f)/n for f.",
    returns="the fraction",
    communicates=False,
)
