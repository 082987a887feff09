"""How 08b_where_the_time_goes checks its exercises: who makes the others wait, and speed-ups with a fair baseline."""

from collections.abc import Callable, Iterator

from workshop_lib.judge import shown
from workshop_lib.judge.play import Edit, played
from workshop_lib.words import plural

NOTEBOOK = "08b_where_the_time_goes"
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


def _named(names: tuple, rows: list[tuple]) -> list[dict]:
    return [dict(zip(names, row, strict=True)) for row in rows]


def play_straggler(straggler: Callable, comm) -> Iterator[tuple]:
    for rows in (LATE, LATE_0):
        yield "it is the rank that the others wait for", straggler(_named(KINDS, rows))
    nobody = straggler(_named(KINDS, NOBODY_LATE))
    observed = f"it says {shown(nobody)} where no rank waits for more than a tenth of its time."
    yield "None where nobody is late", nobody, observed, "Return None there."


LAST_LINE = "return waiting.index(min(waiting))"


def _most(kind: str) -> tuple[str, str]:
    """Another last line of `straggler`, which looks for the largest share of this kind."""
    return LAST_LINE, f"return max(range(len(shares)), key=lambda rank: shares[rank]['{kind}'])"


straggler = played(
    "straggler",
    NOTEBOOK,
    play_straggler,
    [
        Edit("that rank waits longest, so it waits *for* somebody. Who does not wait?", _most("waiting")),
        Edit("that rank communicates longest, which says nothing: look at who waits.", _most("communicating")),
        Edit(
            "the rank that computes longest is often the one, but in the second case it waits, too.", _most("computing")
        ),
        Edit("it isn't always the last rank.", (LAST_LINE, "return len(shares) - 1")),
    ],
    returns="the rank that the others wait for",
    communicates=False,
)


def play_fair_speedups(fair_speedups: Callable, comm) -> Iterator[tuple]:
    speedups = fair_speedups(_named(COLUMNS, RUNS))
    text = "against 1 rank with the same number of threads, where each thread has a core"
    for ranks, threads in ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2)):
        case = f"for {plural(ranks, 'rank')} with {plural(threads, 'thread')}"
        yield text, speedups[ranks, threads], case


USED = 'run["cores"] >= run["threads"]'
SPEEDUP = "speed / fair[1, threads]"
fair_speedups = played(
    "fair_speedups",
    NOTEBOOK,
    play_fair_speedups,
    [
        Edit("the run with two threads on one core is in it: leave it out.", (f" if {USED}", "")),
        Edit("the baseline has two threads on one core: leave that run out.", (USED, f'{USED} or run["ranks"] == 1')),
        Edit("the baseline has a different number of threads.", (SPEEDUP, "speed / fair[1, 1]")),
        Edit("it is upside down.", (SPEEDUP, "fair[1, threads] / speed")),
        Edit("that is the efficiency: don't divide by the ranks.", (SPEEDUP, f"{SPEEDUP} / n")),
        Edit("those are samples per second: divide by the baseline's.", (SPEEDUP, "speed")),
    ],
    returns="speed-ups by (ranks, threads)",
    communicates=False,
)
