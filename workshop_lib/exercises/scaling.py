"""Checks of the exercises in 08_scaling_curves."""

from workshop_lib.notebook.checks import ENDLESS_HINT, Verdict, is_number, judged
from workshop_lib.probes import scaling as probes

# Speed-ups on 2 and 4 ranks for the probe's short table, whose numbers are made such that they tell how the
# seconds of a number of ranks were put together.
RIGHT = (1.6, 2.5)
MISTAKES = {
    (1.6957, 2.0526): "the first epoch is in it: take the epochs after it, `run[1:]`.",
    (1.6993, 2.2034): "the first epoch is in it: take `run[1:]`; and the median of the runs, not their mean.",
    (1.6667, 1.9444): "the first epoch is in it: take the epochs after it, `run[1:]`.",
    (1.5676, 2.1481): "the first epoch is in it: take `run[1:]`; and take the median run, not the fastest.",
    (1.7333, 2.1667): "it uses the first epochs alone: those are to be left out, `run[1:]`.",
    (2.0, 2.6667): "it uses the fastest run, and chance makes a run fast as well as slow: take the median.",
    (1.875, 1.875): "it uses the slowest run of each, or one in the middle without sorting: take the median.",
    (1.7561, 2.2979): "it uses the mean of the runs, on which one slow run weighs heavily: take the median.",
    (1.6364, 2.5714): "it uses the first run of each alone: take the median of all of them.",
    (1.7143, 2.4): "it uses the last run of each alone: take the median of all of them.",
    (0.625, 0.4): "it is upside down: speed-up is the seconds on 1 rank divided by those on N.",
    (1.6, 1.5625): "each was compared with the number of ranks before it: the baseline is always 1 rank.",
    (0.64, 1.0): "each was compared with the largest number of ranks: the baseline is 1 rank, `seconds[1]`.",
    (6.25, 4.0): "those are seconds: divide the seconds on 1 rank by them.",
    (0.8, 0.625): "that is the efficiency: speed-up comes first, and is not divided by the number of ranks.",
    (60.0, 150.0): "speed-up is a ratio, not by how many per cent it is faster: seconds on 1 / seconds on N.",
}
EFFICIENCIES = {
    (1.6, 2.5): "that is the speed-up again: efficiency is speed-up divided by the number of ranks.",
    (3.2, 10.0): "speed-up was multiplied by the number of ranks: divide it.",
    (80.0, 62.5): "give it as a fraction, where 1 is perfect, rather than in per cent.",
    (1.25, 1.6): "it is upside down: speed-up divided by the number of ranks.",
    (0.4, 0.625): "every speed-up was divided by the largest number of ranks: each by its own.",
    (1.6, 0.625): "on 2 ranks it was not divided by 2: each speed-up by its own number of ranks.",
}

# Batches for the probe's first numbers, of which 32 is right.
SMALLEST = {
    31: "with 31 samples communication is a little more than that share: round up, with `math.ceil`.",
    40: "that makes communication a share of *computing*; the step is both, T_comm + T_compute.",
    35: "a step computes t0 + t1 B: t0 is there without any sample.",
    38: "a step computes t0 + t1 B: take t0 off what the samples have to fill.",
    18: "the latency is missing: an allreduce takes latency + bytes x seconds a byte.",
    11: "the bytes are missing: an allreduce takes latency + bytes x seconds a byte.",
    94: "`message_bytes` are bytes already: no factor of 4.",
    1: "that is the batch with which *computing* is at most that share.",
    4: "communication is `share` of the step and computing the rest: (1 - share)/share times as long.",
}  # fmt: skip


def scaling_table(function) -> Verdict:
    """`scaling_table(seconds)` returns {ranks: (speed-up, efficiency)}."""
    return judged(function, probes.scaling_table, _judge_table, stuck=ENDLESS_HINT)


def serial_fraction(function) -> Verdict:
    """`serial_fraction(speedup, n)` returns Amdahl's serial fraction for a measured speed-up on n ranks."""
    return judged(function, probes.serial_fraction, _judge_fraction, stuck=ENDLESS_HINT)


def smallest_batch(function) -> Verdict:
    """`smallest_batch(share, …)` returns the batch from which on communication is at most that share."""
    return judged(function, probes.smallest_batch, _judge_batch, stuck=ENDLESS_HINT)


def _judge_table(facts: list[dict]):
    table, longer = facts[0]["short"], facts[0]["longer"]
    shaped = isinstance(table, dict) and isinstance(longer, dict)
    shaped = shaped and all(_is_pair(pair) for pair in [*table.values(), *longer.values()])
    hint = "it returned nothing: `return` the table." if table is None else f"it returned {table!r}."
    yield "it returns a dictionary of pairs (speed-up, efficiency)", shaped, hint
    hint = f"it has {sorted(table)}; `seconds` has 1, 2 and 4: one entry for each, 1 included."
    yield "with each number of ranks as a key", set(table) == set(longer) == {1, 2, 4}, hint
    speedups = tuple(table[n][0] for n in (2, 4))
    yield (
        "speed-up is against 1 rank, from the median run without its first epoch",
        _near(speedups, RIGHT),
        _known(MISTAKES, speedups),
    )
    efficiencies = tuple(table[n][1] for n in (2, 4))
    yield "efficiency is right", _near(efficiencies, (0.8, 0.625)), _known(EFFICIENCIES, efficiencies)
    yield "on 1 rank both are 1", _near(table[1], (1, 1)), f"on 1 rank it says {table[1]!r}."
    yield "also for more epochs, and 1 rank not first in the dictionary", *_longer(longer)


def _longer(longer: dict) -> tuple[bool, str]:
    speedup = longer[4][0]
    if _near((longer[1][0],), (0.3125,)) or _near((speedup,), (1,)):
        hint = "it was compared with whatever came first: the baseline is `seconds[1]`, wherever it is."
    elif _near((speedup,), (14 / 3,)):
        hint = "only the second epoch of each run was used: take all after the first, `run[1:]`."
    elif _near((speedup,), (18 / 7,)):
        hint = "only the last epoch of each run was used: take all after the first, `run[1:]`."
    else:
        hint = f"for 4 ranks it says {longer[4]!r}; the epochs after the first take 16 s on 1 rank and 5 s on 4."
    return _near(longer[4], (3.2, 0.8)) and _near(longer[1], (1, 1)), hint


def _judge_fraction(facts: list[dict]):
    found = facts[0]
    nothing = all(value is None for value in found.values())
    hint = "it returned nothing: `return` the fraction." if nothing else f"it returned {found[0.1]!r}."
    yield "it returns a number", all(is_number(value) for value in found.values()), hint
    speedup, n = probes.FRACTIONS[0.1]
    got = found[0.1]
    told = f"for a speed-up of {speedup:.3f} on {n} ranks it is {0.1:g}, not {got:.3g}. "
    yield f"it is right for {n} ranks", _near((got,), (0.1,)), told + _fraction_hint(got, speedup, n)
    for fraction, text, hint in (
        (0.0, "0 for a perfect speed-up", ""),
        (1.0, "1 when more ranks bring nothing", ""),
        (
            -0.05,
            "negative for a speed-up above the number of ranks",
            " Do not cut it off: below 0 it says that something is wrong with the measurement.",
        ),
    ):
        (speedup, n), got = probes.FRACTIONS[fraction], found[fraction]
        hint = f"for a speed-up of {speedup:.3f} on {n} ranks it is {fraction:g}, not {got:.3g}.{hint}"
        yield text, _near((got,), (fraction,)), hint


def _fraction_hint(got: float, speedup: float, n: int) -> str:
    known = {
        1 / speedup - 1 / n: "Divide by 1 - 1/n: the f in (1 - f)/n counts as well.",
        1 / speedup: "That is 1/S; solve 1/S = f + (1 - f)/n for f.",
        speedup / n: "That is the efficiency; solve 1/S = f + (1 - f)/n for f.",
        1 - speedup / n: "That is 1 minus the efficiency; solve 1/S = f + (1 - f)/n for f.",
        0.9: "That is the share of the work that is shared out: 1 minus it is asked for.",
        -0.1: "The sign is the wrong way round.",
        (n - speedup) / (n - 1): "That is Gustafson's s, a share of the time on n ranks; Amdahl's is asked for.",
        10.0: "Give it as a fraction, not in per cent.",
    }
    return next((hint for value, hint in known.items() if _near((got,), (value,))), "Solve again.")


def _judge_batch(facts: list[dict]):
    found = facts[0]
    hint = f"it returned {found['some']!r}: `return` the number of samples."
    yield "it returns a number", all(is_number(batch) for batch in found.values()), hint
    for name, right, text in (
        ("some", 32, "it is the smallest batch with that share, or less"),
        ("other", 19, "also for other numbers"),
        ("one", 1, "1 where any batch will do"),
    ):
        told = f"for {probes.BATCHES[name]} it is {right}, not {found[name]:g}. "
        more = SMALLEST.get(found[name], "") if name == "some" else ""
        if name == "one":
            more = "There is no smaller batch than one sample: `max(1, …)`."
        yield text, _near((found[name],), (right,)), told + more


def _known(mistakes: dict, values: tuple) -> str:
    hint = next((hint for known, hint in mistakes.items() if _near(values, known)), None)
    return hint or f"for 2 and 4 ranks it says {values[0]:.4g} and {values[1]:.4g}."


def _is_pair(value) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(map(is_number, value))


def _near(values: tuple, wanted: tuple) -> bool:
    return all(abs(value - right) < 1e-4 for value, right in zip(values, wanted, strict=True))
