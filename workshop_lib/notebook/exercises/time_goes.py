"""Checks of the exercises in 08b_where_the_time_goes."""

from workshop_lib.notebook.checks import ENDLESS_HINT, Verdict, is_number, judged, shown
from workshop_lib.probes import time_goes as probes

# What a likely mistake returns for the probe's first shares and for the second.
MISTAKES = {
    (0, 1): "that rank waits longest: it waits *for* somebody. Who does not wait?",
    (1, 0): "that rank communicates longest, which says nothing: look at who waits.",
    (3, 1): "it is not always the last rank.",
    (2, 1): "the rank that computes longest is often the one, but in the second case it waits too.",
}


def straggler(function) -> Verdict:
    """`straggler(shares)` returns the rank that the others wait for, or None."""
    return judged(function, probes.straggler, _judge_straggler, stuck=ENDLESS_HINT)


def fair_speedups(function) -> Verdict:
    """`fair_speedups(runs)` returns {(ranks, threads): speed-up} against a fair baseline."""
    return judged(function, probes.fair_speedups, _judge_speedups, stuck=ENDLESS_HINT)


def _judge_straggler(facts: list):
    found = facts[0]
    some = found["one is late"], found["another"]
    whole = all(is_number(rank) and rank == int(rank) for rank in some)
    hint = f"for ranks of which one is late it returned {shown(some[0])}: return its number."
    yield "it returns the number of a rank", whole, hint
    ranks = tuple(map(int, some))
    told = f"it says {ranks[0]} of 4 ranks and {ranks[1]} of 2; right are 2 and 0. "
    yield "it is the rank that the others wait for", ranks == (2, 0), told + MISTAKES.get(ranks, "")
    hint = f"it says {shown(found['none'])} where no rank waits for more than a tenth of its time."
    yield "None where nobody is late", found["none"] is None, hint


def _judge_speedups(facts: list):
    found, right = facts[0], probes.SPEEDUPS
    numbers = isinstance(found, dict) and all(map(is_number, found.values()))
    yield "it returns a dictionary of numbers", numbers, f"it returned {shown(found)}."
    keys = f"its keys are {shown(sorted(found, key=str))}; right are {shown(sorted(right))}."
    yield "with (ranks, threads) as keys", set(found) == set(right), keys
    values = tuple(round(float(found[key]), 3) for key in right)
    told = f"(2, 1) is 1.9 and (2, 2) is 1.5, not {found[2, 1]:.4g} and {found[2, 2]:.4g}. "
    yield (
        "against 1 rank with as many threads, where each thread has a core",
        values == tuple(right.values()),
        told + _hint(found),
    )


def _hint(found: dict) -> str:
    speeds = {run[:2]: run[3] for run in probes.RUNS if run[2] >= run[1]}
    all_speeds = {run[:2]: run[3] for run in probes.RUNS}
    mistakes = {
        "The run with two threads on one core is in it: leave it out.": all_speeds[2, 2] / all_speeds[1, 2],
        "The baseline has two threads on one core: leave that run out.": speeds[2, 2] / all_speeds[1, 2],
        "The baseline has another number of threads.": speeds[2, 2] / speeds[1, 1],
        "It is upside down.": speeds[1, 2] / speeds[2, 2],
        "That is the efficiency: do not divide by the ranks.": speeds[2, 2] / speeds[1, 2] / 2,
        "Those are samples/s: divide by the baseline's.": speeds[2, 2],
    }
    return next((hint for hint, value in mistakes.items() if abs(found[2, 2] - value) < 1e-3), "")
