"""How 08b_where_the_time_goes checks its exercises: who makes the others wait, and speed-ups with a fair baseline."""

from collections.abc import Callable, Iterator

from workshop_lib.judge import Exercise, Mistake, Property, is_number, shown

KINDS = ("computing", "waiting", "communicating")
# Made-up shares of each rank's time, one row per rank. The others wait for rank 2 in LATE and for rank 0 in LATE_0.
LATE = [(0.30, 0.60, 0.10), (0.28, 0.58, 0.14), (0.91, 0.01, 0.08), (0.35, 0.57, 0.08)]
LATE_0 = [(0.50, 0.02, 0.48), (0.55, 0.25, 0.20)]
NOBODY_LATE = [(0.90, 0.04, 0.06), (0.85, 0.09, 0.06), (0.91, 0.03, 0.06)]

COLUMNS = ("ranks", "threads", "cores", "samples_per_s")
RUNS = [
    (4, 1, 1, 14000.0),
    (1, 1, 2, 4000.0),
    (2, 1, 2, 7600.0),
    (1, 2, 2, 6000.0),
    (2, 2, 4, 9000.0),
    (1, 2, 1, 500.0),
    (2, 2, 1, 1500.0),
]
SPEEDUPS = {(4, 1): 3.5, (1, 1): 1.0, (2, 1): 1.9, (1, 2): 1.0, (2, 2): 1.5}


def observe_straggler(comm, function: Callable) -> list:
    """What `function` returns for LATE, LATE_0 and NOBODY_LATE."""
    return [
        function([dict(zip(KINDS, of_rank, strict=True)) for of_rank in rows]) for rows in (LATE, LATE_0, NOBODY_LATE)
    ]


def straggler_properties(observations: list) -> Iterator[Property]:
    late, late_0, nobody = observations[0]
    whole = all(is_number(rank) and rank == int(rank) for rank in (late, late_0))
    hint = f"where one of the ranks is late it returned {shown(late)}: return that rank's number."
    yield Property("it returns the number of a rank", whole, hint)
    stragglers = (int(late), int(late_0))
    yield Property("it is the rank that the others wait for", stragglers == (2, 0), evidence=stragglers)
    hint = f"it says {shown(nobody)} where no rank waits for more than a tenth of its time."
    yield Property("None where nobody is late", nobody is None, hint)


def _most(kind: str) -> Callable:
    return lambda shares: max(range(len(shares)), key=lambda rank: shares[rank][kind])


straggler = Exercise(
    "straggler",
    observe_straggler,
    straggler_properties,
    [
        Mistake(_most("waiting"), "that rank waits longest, so it waits *for* somebody. Who does not wait?"),
        Mistake(_most("communicating"), "that rank communicates longest, which says nothing: look at who waits."),
        Mistake(
            _most("computing"), "the rank that computes longest is often the one, but in the second case it waits, too."
        ),
        Mistake(lambda shares: len(shares) - 1, "it isn't always the last rank."),
    ],
    communicates=False,
)


def observe_speedups(comm, function: Callable):
    """What `function` returns for RUNS."""
    return function([dict(zip(COLUMNS, run, strict=True)) for run in RUNS])


def speedups_properties(observations: list) -> Iterator[Property]:
    returned = observations[0]
    numbers = isinstance(returned, dict) and all(map(is_number, returned.values()))
    yield Property("it returns a dictionary of numbers", numbers, f"it returned {shown(returned)}.")
    hint = f"its keys are {shown(sorted(returned, key=str))}; they should be {shown(sorted(SPEEDUPS))}."
    yield Property("with (ranks, threads) as keys", set(returned) == set(SPEEDUPS), hint)
    right = all(round(float(returned[key]), 3) == SPEEDUPS[key] for key in SPEEDUPS)
    text = "against 1 rank with the same number of threads, where each thread has a core"
    yield Property(text, right, evidence=returned[2, 2])


def _speedups(hint: str, speedup: Callable, is_used: Callable = lambda run: run["cores"] >= run["threads"]) -> Mistake:
    """A wrong `fair_speedups` and its hint: `speedup(speeds, ranks, threads)` from the runs that `is_used` accepts."""

    def fair_speedups(runs: list[dict]) -> dict:
        speeds = {(run["ranks"], run["threads"]): run["samples_per_s"] for run in runs if is_used(run)}
        return {(n, threads): speedup(speeds, n, threads) for n, threads in speeds}

    return Mistake(fair_speedups, hint)


def _fair(speeds: dict, n: int, threads: int) -> float:
    return speeds[n, threads] / speeds[1, threads]


fair_speedups = Exercise(
    "fair_speedups",
    observe_speedups,
    speedups_properties,
    [
        _speedups("the run with two threads on one core is in it: leave it out.", _fair, lambda run: True),
        _speedups(
            "the baseline has two threads on one core: leave that run out.",
            _fair,
            lambda run: run["cores"] >= run["threads"] or run["ranks"] == 1,
        ),
        _speedups("the baseline has a different number of threads.", lambda s, n, threads: s[n, threads] / s[1, 1]),
        _speedups("it is upside down.", lambda speeds, n, threads: 1 / _fair(speeds, n, threads)),
        _speedups("that is the efficiency: don't divide by the ranks.", lambda s, n, t: _fair(s, n, t) / n),
        _speedups("those are samples per second: divide by the baseline's.", lambda s, n, t: s[n, t]),
    ],
    communicates=False,
)
