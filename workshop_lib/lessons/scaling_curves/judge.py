"""The exercises of 08_scaling_curves: speed-up and efficiency, and Amdahl's serial fraction.

The functions are judged on made-up numbers.
"""

import copy
from collections.abc import Callable, Iterator
from statistics import mean, median

from workshop_lib.judge import Exercise, Mistake, Property, close, is_number, shown

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


def observe_tables(comm, function: Callable) -> list:
    """Return what `function` returns for SECONDS and for LONGER."""
    return [function(copy.deepcopy(seconds)) for seconds in (SECONDS, LONGER)]


def tables_properties(observations: list) -> Iterator[Property]:
    table, longer = observations[0]
    pairs = all(isinstance(of, dict) and all(map(_is_pair, of.values())) for of in (table, longer))
    hint = "it returned nothing: `return` the table." if table is None else f"it returned {shown(table)}."
    yield Property("it returns a dictionary of pairs (speed-up, efficiency)", pairs, hint)
    hint = f"its keys are {shown(list(table))}. `seconds` has 1, 2 and 4: make an entry for each of them, 1 included."
    yield Property("with each number of ranks as a key", set(table) == set(longer) == set(SECONDS), hint)
    (on_2, efficiency_2), (on_4, efficiency_4) = table[2], table[4]
    yield _right("speed-up is against 1 rank, from the median run without its first epoch", [on_2, on_4], [1.6, 2.5])
    yield _right("efficiency is right", [efficiency_2, efficiency_4], [0.8, 0.625])
    hint = f"on 1 rank it says {table[1]!r}."
    yield Property("on 1 rank both are 1", close(table[1], (1, 1)), hint)
    text = "also with more epochs, and when 1 rank isn't first in the dictionary"
    yield _right(text, [*longer[4], *longer[1]], [3.2, 0.8, 1, 1])


def _right(text: str, values: list, right: list) -> Property:
    """Return a property that holds if the values are right. If not, they show which known mistake produced them."""
    expected, got = (", ".join(f"{value:.4g}" for value in them) for them in (right, values))
    return Property(text, close(values, right, 1e-4), evidence=values, observed=f"it should be {expected}, not {got}:")


def _is_pair(value) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(map(is_number, value))


def _after_first(run: list) -> float:
    return mean(run[1:])


def _table(
    hint: str,
    typical: Callable = lambda runs: median(map(_after_first, runs)),
    speedup: Callable = lambda s, n: s[1] / s[n],
    efficiency: Callable = lambda speedup, n: speedup / n,
) -> Mistake:
    """Make a wrong `scaling_table`: `typical` gives one time for the runs on n ranks; the others compute the table."""

    def scaling_table(seconds: dict) -> dict:
        typical_s = {n: typical(runs) for n, runs in seconds.items()}
        speedups = {n: speedup(typical_s, n) for n in typical_s}
        return {n: (speedups[n], efficiency(speedups[n], n)) for n in typical_s}

    return Mistake(scaling_table, hint)


_FIRST = "the first epoch is in it: take the epochs after it, `run[1:]`."
_WRONG_TABLES = [
    _table(_FIRST, lambda runs: median(map(mean, runs))),
    _table(_FIRST, lambda runs: median(s for run in runs for s in run)),
    _table("leave out the first epoch, and take the median, not the mean.", lambda runs: mean(map(mean, runs))),
    _table("leave out the first epoch, and take the median, not the fastest.", lambda runs: min(map(mean, runs))),
    _table("it uses only the first epochs. Leave those out: `run[1:]`.", lambda runs: median(run[0] for run in runs)),
    _table("chance can make a run fast as well as slow: take the median.", lambda runs: min(map(_after_first, runs))),
    _table(
        "it uses the slowest run, or the one in the middle without sorting them first: take the median.",
        lambda runs: max(map(_after_first, runs)),
    ),
    _table("a single slow run can spoil a mean: take the median.", lambda runs: mean(map(_after_first, runs))),
    _table("it uses only the first run: take the median of all.", lambda runs: _after_first(runs[0])),
    _table("it uses only the last run: take the median of all.", lambda runs: _after_first(runs[-1])),
    _table("it uses only the second epoch: take all after the first.", lambda runs: median(run[1] for run in runs)),
    _table("it uses only the last epoch: take all after the first.", lambda runs: median(run[-1] for run in runs)),
    _table("it is upside down: divide the seconds on 1 rank by those on N.", speedup=lambda s, n: s[n] / s[1]),
    _table(
        "each is compared with the number of ranks before it, but the baseline is always 1 rank.",
        speedup=lambda s, n: s[max(1, n // 2)] / s[n],
    ),
    _table("the baseline is 1 rank, not the largest number of ranks.", speedup=lambda s, n: s[4] / s[n]),
    _table(
        "the baseline is 1 rank, wherever it stands, not whatever comes first in the dictionary.",
        speedup=lambda s, n: next(iter(s.values())) / s[n],
    ),
    _table("those are seconds: divide the seconds on 1 rank by them.", speedup=lambda s, n: s[n]),
    _table("that is the efficiency, but the speed-up comes first.", speedup=lambda s, n: s[1] / s[n] / n),
    _table(
        "that says how many per cent faster it is. Speed-up is a ratio: seconds on 1 rank / seconds on N.",
        speedup=lambda s, n: 100 * (s[1] / s[n] - 1),
    ),
    _table("that is the speed-up again: divide it by the number of ranks.", efficiency=lambda speedup, n: speedup),
    _table("divide by the number of ranks, don't multiply.", efficiency=lambda speedup, n: speedup * n),
    _table("give it as a fraction, where 1 is perfect.", efficiency=lambda speedup, n: 100 * speedup / n),
    _table("it is upside down: speed-up divided by ranks.", efficiency=lambda speedup, n: n / speedup),
    _table("divide each by its own number of ranks, not by the largest.", efficiency=lambda speedup, n: speedup / 4),
    _table("on 2 ranks it isn't divided by 2.", efficiency=lambda speedup, n: speedup / (n if n > 2 else 1)),
]
scaling_table = Exercise("scaling_table", observe_tables, tables_properties, _WRONG_TABLES, communicates=False)

# (speed-up, ranks, serial fraction)
MEASURED = [(1 / (0.1 + 0.9 / 8), 8, 0.1), (4.0, 4, 0.0), (1.0, 3, 1.0), (1 / (-0.05 + 1.05 / 4), 4, -0.05)]


def observe_fractions(comm, function: Callable) -> list:
    """Return what `function` returns for each of MEASURED."""
    return [function(speedup, n) for speedup, n, _ in MEASURED]


def fractions_properties(observations: list) -> Iterator[Property]:
    fractions = observations[0]
    hint = f"it returned {shown(fractions[0])}: `return` the fraction."
    yield Property("it returns a number", all(map(is_number, fractions)), hint)
    texts = "is right", "is 0 if perfect", "is 1 when more ranks gain nothing", "is negative above the number of ranks"
    for text, (speedup, n, right), fraction in zip(texts, MEASURED, fractions, strict=True):
        yield _right(f"for a speed-up of {speedup:.3g} on {n} ranks it {text}", [fraction], [right])


def _solved(s: float, n: int) -> float:
    return (1 / s - 1 / n) / (1 - 1 / n)


_SOLVE = "Solve 1/S = f + (1 - f)/n for f."
_WRONG_FRACTIONS = [
    Mistake(lambda s, n: 1 / s - 1 / n, "divide this by 1 - 1/n, because the f in (1 - f)/n counts as well."),
    Mistake(lambda s, n: 1 / s, f"that is 1/S (if you divided with `1 // n`: that is 0). {_SOLVE}"),
    Mistake(lambda s, n: s / n, f"that is the efficiency. {_SOLVE}"),
    Mistake(lambda s, n: 1 - s / n, f"that is 1 minus the efficiency. {_SOLVE}"),
    Mistake(lambda s, n: 1 / (s + (1 - s) / n), f"that is Amdahl's law with the speed-up in place of f. {_SOLVE}"),
    Mistake(lambda s, n: 1 - _solved(s, n), "that is the part that the ranks divide up: f is 1 minus that."),
    Mistake(lambda s, n: -_solved(s, n), "the sign is the wrong way round."),
    Mistake(
        lambda s, n: (n - s) / (n - 1),
        "that is Gustafson's s, a share of the time on n ranks. Amdahl's f is a share of the time on 1 rank.",
    ),
    Mistake(lambda s, n: 100 * _solved(s, n), "give it as a fraction, not in per cent."),
    Mistake(
        lambda s, n: max(0, _solved(s, n)),
        "don't clip it at 0: a negative value tells you that something in the measurement is wrong.",
    ),
]
serial_fraction = Exercise(
    "serial_fraction", observe_fractions, fractions_properties, _WRONG_FRACTIONS, communicates=False
)
