"""How 08b_where_the_time_goes checks its exercises: who makes the others wait, and speed-ups with a fair baseline."""

import copy
from collections.abc import Callable, Iterator
from functools import partial

from workshop_lib.exercises import judge
from workshop_lib.exercises.play import Edit, played
from workshop_lib.words import plural

NOTEBOOK = "08b_where_the_time_goes"
written = partial(judge.own_or_solution, notebook=NOTEBOOK)
# When each rank arrived, [step][rank], and the seconds of all steps. The others wait for rank 2 in LATE, and for rank 0
# in LATE_ONCE, although rank 1 is the last one in most of its steps.
LATE = ([[0.1, 0.2, 0.9, 0.3], [1.2, 1.1, 1.8, 1.4], [2.1, 2.3, 2.9, 2.0]], 3.2)
LATE_ONCE = ([[0.48, 0.5, 0.44], [1.5, 1.0, 1.1], [2.45, 2.5, 2.46], [3.47, 3.5, 3.4]], 4.4)

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
    answers = [straggler(copy.deepcopy(arrived_s), seconds) for arrived_s, seconds in (LATE, LATE_ONCE)]
    for waiting, _ in answers:
        yield "each rank waits from its own arrival until the last rank's, and the shares say for how long", waiting
    for _, rank in answers:
        yield "it is the rank that the others wait for", rank


straggler = played(
    "straggler",
    NOTEBOOK,
    play_straggler,
    [
        Edit(
            "that's how long the rank is behind the first one. It waits until the last one arrives.",
            ("sum(max(step) - step[rank] for step in arrived_s)", "sum(step[rank] - min(step) for step in arrived_s)"),
        ),
        Edit("those are seconds: divide them by `seconds`.", ("waiting_s / seconds", "waiting_s")),
        Edit(
            "that rank waits longest, so it waits *for* somebody. Who does not wait?",
            ("waiting.index(min(waiting))", "waiting.index(max(waiting))"),
        ),
    ],
    returns="the share of its time that each rank waits, and the rank that the others wait for",
    communicates=False,
)


def play_fair_speedups(fair_speedups: Callable, comm) -> Iterator[tuple]:
    speedups = fair_speedups(_named(COLUMNS, RUNS))
    text = "against 1 rank with the same number of threads, where each thread has a core"
    for ranks, threads in ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2)):
        case = f"for {plural(ranks, 'rank')} with {plural(threads, 'thread')}"
        yield text, speedups[ranks, threads], case


SPEEDUP = "speed / fair[1, threads]"
fair_speedups = played(
    "fair_speedups",
    NOTEBOOK,
    play_fair_speedups,
    [
        Edit(
            "the run with two threads on one core is in it: leave it out.", (' if run["cores"] >= run["threads"]', "")
        ),
        Edit("the baseline has a different number of threads.", (SPEEDUP, "speed / fair[1, 1]")),
        Edit("it is upside down.", (SPEEDUP, "fair[1, threads] / speed")),
    ],
    returns="speed-ups by (ranks, threads)",
    communicates=False,
)
