"""The exercises of 08_scaling_curves: speed-up and efficiency, Amdahl's serial fraction, and how large a batch
has to be. All numbers are made up."""

import copy
import math
from collections.abc import Callable, Iterator
from statistics import mean, median

from workshop_lib.exercises import ENDLESS_HINT, Exercise, Mistake, Property, close, is_number, shown

# Seconds per epoch, {ranks: [run, …]}. Those of the first table tell how the epochs of all runs were put together.
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
    """What `function` returns for SECONDS and for LONGER."""
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
    text = "also for more epochs, and 1 rank not first in the dictionary"
    yield _right(text, [*longer[4], *longer[1]], [3.2, 0.8, 1, 1])


def _right(text: str, values: list, right: list) -> Property:
    """That the values are right. If they aren't, they tell which of the known mistakes made them."""
    holds = close(values, right, 1e-4)
    if not holds:
        text += f": {_listed(right)}, not {_listed(values)}"
    return Property(text, holds, evidence=values)


def _listed(values: list) -> str:
    return ", ".join(f"{value:.4g}" for value in values)


def _is_pair(value) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(map(is_number, value))


def _typical_s(run: list) -> float:
    return mean(run[1:])


def _table(
    typical_s: Callable = lambda runs: median(map(_typical_s, runs)),
    speedup: Callable = lambda seconds, n: seconds[1] / seconds[n],
    efficiency: Callable = lambda speedup, n, table: speedup / n,
) -> Callable:
    """A wrong `scaling_table`, from the seconds of a number of ranks, and what it makes of them."""

    def scaling_table(runs_by_n: dict) -> dict:
        seconds = {n: typical_s(runs) for n, runs in runs_by_n.items()}
        speedups = {n: speedup(seconds, n) for n in seconds}
        return {n: (speedups[n], efficiency(speedups[n], n, seconds)) for n in seconds}

    return scaling_table


_FIRST_EPOCH = "the first epoch is in it. Take the epochs after it, `run[1:]`."
_TYPICAL = [
    Mistake(_table(lambda runs: median(map(mean, runs))), _FIRST_EPOCH),
    Mistake(_table(lambda runs: median(s for run in runs for s in run)), _FIRST_EPOCH),
    Mistake(
        _table(lambda runs: mean(map(mean, runs))),
        "the first epoch is in it, so take `run[1:]`. And take the median of the runs, not their mean.",
    ),
    Mistake(
        _table(lambda runs: min(map(mean, runs))),
        "the first epoch is in it, so take `run[1:]`. And take the median run, not the fastest.",
    ),
    Mistake(
        _table(lambda runs: median(run[0] for run in runs)),
        "it uses only the first epochs. Those are the ones to leave out: `run[1:]`.",
    ),
    Mistake(
        _table(lambda runs: min(map(_typical_s, runs))),
        "it uses the fastest run, but chance can make a run fast as well as slow. Take the median.",
    ),
    Mistake(
        _table(lambda runs: max(map(_typical_s, runs))),
        "it uses the slowest run, or the one in the middle without sorting them first. Take the median.",
    ),
    Mistake(
        _table(lambda runs: mean(map(_typical_s, runs))),
        "it uses the mean of the runs, which a single slow run can spoil. Take the median.",
    ),
    Mistake(_table(lambda runs: _typical_s(runs[0])), "it uses only the first run. Take the median of all of them."),
    Mistake(_table(lambda runs: _typical_s(runs[-1])), "it uses only the last run. Take the median of all of them."),
    Mistake(
        _table(lambda runs: median(run[1] for run in runs)),
        "it uses only the second epoch of each run. Take all after the first, `run[1:]`.",
    ),
    Mistake(
        _table(lambda runs: median(run[-1] for run in runs)),
        "it uses only the last epoch of each run. Take all after the first, `run[1:]`.",
    ),
]
_SPEEDUPS = [
    Mistake(
        _table(speedup=lambda seconds, n: seconds[n] / seconds[1]),
        "it is upside down: divide the seconds on 1 rank by those on N.",
    ),
    Mistake(
        _table(speedup=lambda seconds, n: seconds[max(1, n // 2)] / seconds[n]),
        "each is compared with the number of ranks before it. The baseline is always 1 rank.",
    ),
    Mistake(
        _table(speedup=lambda seconds, n: seconds[4] / seconds[n]),
        "each is compared with the largest number of ranks. The baseline is 1 rank, `seconds[1]`.",
    ),
    Mistake(
        _table(speedup=lambda seconds, n: next(iter(seconds.values())) / seconds[n]),
        "each is compared with whatever comes first in the dictionary. The baseline is 1 rank, wherever that is.",
    ),
    Mistake(_table(speedup=lambda seconds, n: seconds[n]), "those are seconds: divide the seconds on 1 rank by them."),
    Mistake(
        _table(speedup=lambda seconds, n: seconds[1] / seconds[n] / n),
        "that is the efficiency. Speed-up comes first, and isn't divided by the number of ranks.",
    ),
    Mistake(
        _table(speedup=lambda seconds, n: 100 * (seconds[1] / seconds[n] - 1)),
        "that is by how many per cent it is faster. Speed-up is a ratio: seconds on 1 rank / seconds on N.",
    ),
]
_EFFICIENCIES = [
    Mistake(
        _table(efficiency=lambda speedup, n, table: speedup),
        "that is the speed-up again. Efficiency is speed-up divided by the number of ranks.",
    ),
    Mistake(
        _table(efficiency=lambda speedup, n, table: speedup * n),
        "the speed-up is multiplied by the number of ranks: divide it.",
    ),
    Mistake(
        _table(efficiency=lambda speedup, n, table: 100 * speedup / n),
        "that is in per cent. Give it as a fraction, where 1 is perfect.",
    ),
    Mistake(
        _table(efficiency=lambda speedup, n, table: n / speedup),
        "it is upside down: divide the speed-up by the number of ranks.",
    ),
    Mistake(
        _table(efficiency=lambda speedup, n, table: speedup / max(table)),
        "every speed-up is divided by the largest number of ranks: divide each by its own.",
    ),
    Mistake(
        _table(efficiency=lambda speedup, n, table: speedup / (n if n > 2 else 1)),
        "on 2 ranks it isn't divided by 2: divide each speed-up by its own number of ranks.",
    ),
]
scaling_table = Exercise(
    "scaling_table",
    observe_tables,
    tables_properties,
    [*_TYPICAL, *_SPEEDUPS, *_EFFICIENCIES],
    communicates=False,
    stuck=ENDLESS_HINT,
)

# (speed-up, ranks, the share of the work that was not shared out)
MEASURED = [(1 / (0.1 + 0.9 / 8), 8, 0.1), (4.0, 4, 0.0), (1.0, 3, 1.0), (1 / (-0.05 + 1.05 / 4), 4, -0.05)]


def observe_fractions(comm, function: Callable) -> list:
    """What `function` returns for each of MEASURED."""
    return [function(speedup, n) for speedup, n, _ in MEASURED]


def fractions_properties(observations: list) -> Iterator[Property]:
    fractions = observations[0]
    hint = f"it returned {shown(fractions[0])}: `return` the fraction."
    yield Property("it returns a number", all(map(is_number, fractions)), hint)
    texts = [
        "is right",
        "is 0 if perfect",
        "is 1 when more ranks bring nothing",
        "is negative above the number of ranks",
    ]
    for text, (speedup, n, right), fraction in zip(texts, MEASURED, fractions, strict=True):
        holds = abs(fraction - right) < 1e-4
        text = f"for a speed-up of {speedup:.3g} on {n} ranks it {text}"
        otherwise = "" if holds else f": {right:g}, not {fraction:.3g}"
        yield Property(text + otherwise, holds, evidence=fraction)


def _solved(speedup: float, n: int) -> float:
    return (1 / speedup - 1 / n) / (1 - 1 / n)


_SOLVE = "Solve 1/S = f + (1 - f)/n for f."
serial_fraction = Exercise(
    "serial_fraction",
    observe_fractions,
    fractions_properties,
    [
        Mistake(
            lambda speedup, n: 1 / speedup - 1 / n, "divide this by 1 - 1/n, because the f in (1 - f)/n counts as well."
        ),
        Mistake(lambda speedup, n: 1 / speedup, f"that is 1/S (if you divided with `1 // n`: that is 0). {_SOLVE}"),
        Mistake(lambda speedup, n: speedup / n, f"that is the efficiency. {_SOLVE}"),
        Mistake(lambda speedup, n: 1 - speedup / n, f"that is 1 minus the efficiency. {_SOLVE}"),
        Mistake(
            lambda speedup, n: 1 / (speedup + (1 - speedup) / n),
            f"that is Amdahl's law with the speed-up in place of f. {_SOLVE}",
        ),
        Mistake(
            lambda speedup, n: 1 - _solved(speedup, n),
            "that is the share of the work that the ranks share out. The serial fraction is 1 minus it.",
        ),
        Mistake(lambda speedup, n: -_solved(speedup, n), "the sign is the wrong way round."),
        Mistake(
            lambda speedup, n: (n - speedup) / (n - 1),
            "that is Gustafson's s, a share of the time on n ranks. Amdahl's f is a share of the time on 1 rank.",
        ),
        Mistake(lambda speedup, n: 100 * _solved(speedup, n), "give it as a fraction, not in per cent."),
        Mistake(
            lambda speedup, n: max(0, _solved(speedup, n)),
            "don't cut it off: a value below 0 says that something is wrong with the measurement.",
        ),
    ],
    communicates=False,
    stuck=ENDLESS_HINT,
)

NUMBERS = ("share", "message_bytes", "t0_s", "t1_s", "latency_s", "s_per_byte")
# What `smallest_batch` is called with, and the batch that is right.
BATCHES = [
    ("it is the smallest batch with that share, or less", (0.2, 1500, 1e-3, 2.9e-4, 1e-3, 1e-6), 32),
    ("also for other numbers", (0.4, 4000, 1e-4, 3.1e-5, 1e-5, 1.1e-7), 19),
    ("1 where any batch will do", (0.5, 4000, 2e-3, 3.1e-5, 1e-5, 1e-7), 1),
]


def observe_batches(comm, function: Callable) -> list:
    """What `function` returns for each of BATCHES."""
    return [function(**dict(zip(NUMBERS, numbers, strict=True))) for _, numbers, _ in BATCHES]


def batches_properties(observations: list) -> Iterator[Property]:
    batches = observations[0]
    hint = f"it returned {shown(batches[0])}: `return` the number of samples."
    yield Property("it returns a number", all(map(is_number, batches)), hint)
    for (text, numbers, right), batch in zip(BATCHES, batches, strict=True):
        holds = batch == right
        if not holds:
            given = ", ".join(f"{name} = {number:g}" for name, number in zip(NUMBERS, numbers, strict=True))
            text += f": for {given} it is {right}, not {batch:g}"
        yield Property(text, holds, evidence=batch)


def _batch(
    communication_s: Callable = lambda message_bytes, latency_s, s_per_byte: latency_s + s_per_byte * message_bytes,
    computing_s: Callable = lambda communication_s, share: communication_s * (1 - share) / share,
    samples_s: Callable = lambda computing_s, t0_s: computing_s - t0_s,
    whole: Callable = lambda samples: max(1, math.ceil(samples)),
) -> Callable:
    """A wrong `smallest_batch`: how long a step communicates and computes, how much of that the samples have to
    fill, and how their number is made a whole one."""

    def smallest_batch(share, message_bytes, t0_s, t1_s, latency_s, s_per_byte):
        computing = computing_s(communication_s(message_bytes, latency_s, s_per_byte), share)
        return whole(samples_s(computing, t0_s) / t1_s)

    return smallest_batch


_NO_SAMPLE = "there is no batch smaller than one sample: `max(1, …)`."
smallest_batch = Exercise(
    "smallest_batch",
    observe_batches,
    batches_properties,
    [
        Mistake(
            _batch(whole=lambda samples: max(1, math.floor(samples))),
            "with one sample less than needed, communication takes a little more than that share. Round up, with "
            "`math.ceil`.",
        ),
        Mistake(
            _batch(computing_s=lambda communication_s, share: communication_s / share),
            "that makes communication a share of *computing*. The step is both, T_comm + T_compute.",
        ),
        Mistake(
            _batch(samples_s=lambda computing_s, t0_s: computing_s),
            "a step computes for t0 + t1 B, and it takes t0 even without any sample.",
        ),
        Mistake(
            _batch(samples_s=lambda computing_s, t0_s: computing_s + t0_s),
            "a step computes for t0 + t1 B, so take t0 off what the samples have to fill.",
        ),
        Mistake(
            _batch(lambda message_bytes, latency_s, s_per_byte: s_per_byte * message_bytes),
            "the latency is missing: an allreduce takes latency + bytes × seconds per byte.",
        ),
        Mistake(
            _batch(lambda message_bytes, latency_s, s_per_byte: latency_s),
            "the bytes are missing: an allreduce takes latency + bytes × seconds per byte.",
        ),
        Mistake(
            _batch(lambda message_bytes, latency_s, s_per_byte: latency_s + 4 * s_per_byte * message_bytes),
            "`message_bytes` are bytes already, so leave out the factor of 4.",
        ),
        Mistake(
            _batch(computing_s=lambda communication_s, share: communication_s * share / (1 - share)),
            "that is the batch with which *computing* takes that share of the step.",
        ),
        Mistake(
            _batch(computing_s=lambda communication_s, share: communication_s * (1 - share)),
            "communication is `share` of the step and computing the rest, (1 - share)/share times as long.",
        ),
        Mistake(
            _batch(computing_s=lambda communication_s, share: communication_s * 4),
            "that is right only for a share of 20 %: use the argument `share`.",
        ),
        Mistake(_batch(whole=math.ceil), _NO_SAMPLE),
        Mistake(_batch(whole=lambda samples: max(0, math.ceil(samples))), _NO_SAMPLE),
        Mistake(
            _batch(whole=lambda samples: max(2, math.ceil(samples))), "a batch of one sample is large enough here."
        ),
    ],
    communicates=False,
    stuck=ENDLESS_HINT,
)
