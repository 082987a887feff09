"""The exercises of 08_scaling_curves: speed-up and efficiency, and Amdahl's serial fraction.

The functions are judged on made-up numbers.
"""

import copy
from collections.abc import Callable, Iterator

from workshop_lib.judge.play import Edit, played

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


FIRST = "the first epoch is in it: take the epochs after it, `run[1:]`."
TYPICAL = "median(mean(run[1:]) for run in runs)"
SPEEDUP = "(typical_s[1] / s, typical_s[1] / s / n)"
TABLE = f"{{n: {SPEEDUP} for n, s in typical_s.items()}}"


def _speedup(of_n: str) -> tuple[str, str]:
    """Another speed-up in the solution, and the efficiency that follows from it."""
    return SPEEDUP, f"({of_n}, ({of_n}) / n)"


def _efficiency(of_n: str) -> tuple[str, str]:
    """Another efficiency in the solution, from the speed-up `typical_s[1] / s`."""
    return SPEEDUP, f"(typical_s[1] / s, {of_n})"


scaling_table = played(
    "scaling_table",
    NOTEBOOK,
    play_scaling_table,
    [
        Edit(FIRST, (TYPICAL, "median(mean(run) for run in runs)")),
        Edit(FIRST, (TYPICAL, "median(s for run in runs for s in run)")),
        Edit("leave out the first epoch, and take the median, not the mean.", (TYPICAL, "mean(map(mean, runs))")),
        Edit("leave out the first epoch, and take the median, not the fastest.", (TYPICAL, "min(map(mean, runs))")),
        Edit("it uses only the first epochs. Leave those out: `run[1:]`.", (TYPICAL, "median(run[0] for run in runs)")),
        Edit(
            "chance can make a run fast as well as slow: take the median.",
            (TYPICAL, "min(mean(run[1:]) for run in runs)"),
        ),
        Edit(
            "it uses the slowest run, or the one in the middle without sorting them first: take the median.",
            (TYPICAL, "max(mean(run[1:]) for run in runs)"),
        ),
        Edit("a single slow run can spoil a mean: take the median.", (TYPICAL, "mean(mean(run[1:]) for run in runs)")),
        Edit("it uses only the first run: take the median of all.", (TYPICAL, "mean(runs[0][1:])")),
        Edit("it uses only the last run: take the median of all.", (TYPICAL, "mean(runs[-1][1:])")),
        Edit("it uses only the second epoch: take all after the first.", (TYPICAL, "median(run[1] for run in runs)")),
        Edit("it uses only the last epoch: take all after the first.", (TYPICAL, "median(run[-1] for run in runs)")),
        Edit("it is upside down: divide the seconds on 1 rank by those on N.", _speedup("s / typical_s[1]")),
        Edit(
            "each is compared with the number of ranks before it, but the baseline is always 1 rank.",
            _speedup("typical_s[max(1, n // 2)] / s"),
        ),
        Edit("the baseline is 1 rank, not the largest number of ranks.", _speedup("typical_s[4] / s")),
        Edit(
            "the baseline is 1 rank, wherever it stands, not whatever comes first in the dictionary.",
            _speedup("next(iter(typical_s.values())) / s"),
        ),
        Edit("those are seconds: divide the seconds on 1 rank by them.", _speedup("s")),
        Edit("that is the efficiency, but the speed-up comes first.", _speedup("typical_s[1] / s / n")),
        Edit(
            "that says how many percent faster it is. Speed-up is a ratio: seconds on 1 rank / seconds on N.",
            _speedup("100 * (typical_s[1] / s - 1)"),
        ),
        Edit("that is the speed-up again: divide it by the number of ranks.", _efficiency("typical_s[1] / s")),
        Edit("divide by the number of ranks, don't multiply.", _efficiency("typical_s[1] / s * n")),
        Edit("give it as a fraction, where 1 is perfect.", _efficiency("100 * typical_s[1] / s / n")),
        Edit("it is upside down: speed-up divided by ranks.", _efficiency("n / (typical_s[1] / s)")),
        Edit("divide each by its own number of ranks, not by the largest.", _efficiency("typical_s[1] / s / 4")),
        Edit("on 2 ranks it isn't divided by 2.", _efficiency("typical_s[1] / s / (n if n > 2 else 1)")),
        Edit(
            "`seconds` has 1, 2 and 4: make an entry for each of them, 1 included.",
            (TABLE, TABLE.replace("items()", "items() if n > 1")),
        ),
    ],
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
SOLVE = "Solve 1/S = f + (1 - f)/n for f."
serial_fraction = played(
    "serial_fraction",
    NOTEBOOK,
    play_serial_fraction,
    [
        Edit("divide this by 1 - 1/n, because the f in (1 - f)/n counts as well.", (" / (1 - 1 / n)", "")),
        Edit(f"that is 1/S (if you divided with `1 // n`: that is 0). {SOLVE}", (FRACTION, "1 / speedup")),
        Edit(f"that is the efficiency. {SOLVE}", (FRACTION, "speedup / n")),
        Edit(f"that is 1 minus the efficiency. {SOLVE}", (FRACTION, "1 - speedup / n")),
        Edit(
            f"that is Amdahl's law with the speed-up in place of f. {SOLVE}",
            (FRACTION, "1 / (speedup + (1 - speedup) / n)"),
        ),
        Edit("that is the part that the ranks divide up: f is 1 minus that.", (FRACTION, f"1 - {FRACTION}")),
        Edit("the sign is the wrong way round.", (FRACTION, f"-{FRACTION}")),
        Edit(
            "that is Gustafson's s, a share of the time on n ranks. Amdahl's f is a share of the time on 1 rank.",
            (FRACTION, "(n - speedup) / (n - 1)"),
        ),
        Edit("give it as a fraction, not in percent.", (FRACTION, f"100 * {FRACTION}")),
        Edit(
            "don't clip it at 0: a negative value tells you that something in the measurement is wrong.",
            (FRACTION, f"max(0, {FRACTION})"),
        ),
    ],
    returns="the fraction",
    communicates=False,
)
