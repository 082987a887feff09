"""How 08b_where_the_time_goes checks its exercises: who makes the others wait, by which clock, and fair speed-ups."""

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

# When each rank left the Allreduce, by its own clock: rank 1's is 5 s behind, and rank 2's 0.5 s ahead. In LEFT_LATE,
# each of them leaves late once.
LEFT = [[7.0, 2.0, 7.5], [8.0, 3.0, 8.5], [9.0, 4.0, 9.5]]
LEFT_LATE = [[7.0, 2.1, 7.5], [8.0, 3.0, 9.5], [9.0, 4.0, 9.5], [10.0, 5.0, 10.5], [11.0, 6.0, 11.5]]

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


def play_clock_offsets(clock_offsets: Callable, comm) -> Iterator[tuple]:
    for left_s, text in (
        (LEFT, "each rank's clock is compared with rank 0's, at moments that all ranks share"),
        (LEFT_LATE, "it makes no difference that a rank once leaves late"),
    ):
        yield text, clock_offsets(copy.deepcopy(left_s)), f"`left_s` was {left_s}."


MEDIAN = "statistics.median(ahead_s)"
clock_offsets = played(
    "clock_offsets",
    NOTEBOOK,
    play_clock_offsets,
    [
        Edit("that's how far the clocks are *behind* rank 0's.", ("step[rank] - step[0]", "step[0] - step[rank]")),
        Edit(
            "the mean follows the one step in which a rank left late: use the median.",
            (MEDIAN, "statistics.fmean(ahead_s)"),
        ),
        Edit("that's the first step alone, in which a rank may have left late: use all steps.", (MEDIAN, "ahead_s[0]")),
    ],
    returns="how many seconds each rank's clock is ahead of rank 0's",
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
