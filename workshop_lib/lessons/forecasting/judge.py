"""Judges the exercises of 08c_forecasting: the smallest batch that is large enough, and a step with overlap.

All numbers in the cases are made up.
"""

import math
from collections.abc import Callable, Iterator

from workshop_lib.judge import Exercise, Mistake, Property, close, is_number, shown
from workshop_lib.words import plural

NUMBERS = ("share", "message_bytes", "t0_s", "t1_s", "latency_s", "s_per_byte")
# For each case: what must hold, the arguments of `smallest_batch`, and the right batch.
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
        given = ", ".join(f"{name} = {number:g}" for name, number in zip(NUMBERS, numbers, strict=True))
        yield Property(text, batch == right, evidence=batch, observed=f"for {given} it is {right}, not {batch:g}:")


def _batch(
    hint: str,
    communication_s: Callable = lambda message_bytes, latency_s, s_per_byte: latency_s + s_per_byte * message_bytes,
    computing: Callable = lambda share: (1 - share) / share,
    samples_s: Callable = lambda computing_s, t0_s: computing_s - t0_s,
    whole: Callable = lambda samples: max(1, math.ceil(samples)),
) -> Mistake:
    """A wrong `smallest_batch`, made from its four steps.

    communication_s: how long a training step communicates. computing: how many times as long it computes. samples_s:
    how much of that time the samples have to fill. whole: how their number is rounded.
    """

    def smallest_batch(share, message_bytes, t0_s, t1_s, latency_s, s_per_byte):
        computing_s = communication_s(message_bytes, latency_s, s_per_byte) * computing(share)
        return whole(samples_s(computing_s, t0_s) / t1_s)

    return Mistake(smallest_batch, hint)


_ONE_SAMPLE = "there is no batch smaller than one sample: `max(1, …)`."
_WRONG_BATCHES = [
    _batch("one sample less is too few: round up, with `math.ceil`.", whole=lambda samples: max(1, int(samples))),
    _batch("the share is of the whole step, T_comm + T_compute.", computing=lambda share: 1 / share),
    _batch("a step takes t0 even without any sample.", samples_s=lambda computing_s, t0_s: computing_s),
    _batch(
        "subtract t0 from the computing time, instead of adding it.",
        samples_s=lambda computing_s, t0_s: computing_s + t0_s,
    ),
    _batch("the latency is missing: an allreduce takes latency + bytes × seconds per byte.", lambda m, a, b: b * m),
    _batch("the bytes are missing: an allreduce takes latency + bytes × seconds per byte.", lambda m, a, b: a),
    _batch("`message_bytes` are bytes already: leave out the factor of 4.", lambda m, a, b: a + 4 * b * m),
    _batch("with that batch, *computing* takes that share.", computing=lambda share: share / (1 - share)),
    _batch("computing takes (1 - share)/share times as long as communication.", computing=lambda share: 1 - share),
    _batch("that is right only for a share of 20 %: use the argument `share`.", computing=lambda share: 4),
    _batch(_ONE_SAMPLE, whole=math.ceil),
    _batch(_ONE_SAMPLE, whole=lambda samples: max(0, math.ceil(samples))),
    _batch("a batch of one sample is large enough here.", whole=lambda samples: max(2, math.ceil(samples))),
]
smallest_batch = Exercise("smallest_batch", observe_batches, batches_properties, _WRONG_BATCHES, communicates=False)

# For each case: what must hold, the arguments of `overlapped_step`, and the right number of seconds.
STEPS = [
    ("it is right where the network keeps up", (1.0, 2.0, 0.25, 4), 3.25),
    ("and where the network is busy from the first message on", (1.0, 2.0, 1.5, 4), 7.5),
    ("with a single message nothing overlaps", (1.0, 2.0, 0.5, 1), 3.5),
]


def observe_steps(comm, function: Callable) -> list:
    """What `function` returns for each of STEPS."""
    return [function(*numbers) for _, numbers, _ in STEPS]


def steps_properties(observations: list) -> Iterator[Property]:
    steps = observations[0]
    hint = f"it returned {shown(steps[0])}: `return` the seconds."
    yield Property("it returns a number", all(map(is_number, steps)), hint)
    for (text, numbers, right), step_s in zip(STEPS, steps, strict=True):
        forward, backward, message, k = numbers
        given = f"forward {forward:g} s, backward {backward:g} s and {plural(k, 'message')} of {message:g} s"
        yield Property(
            text, close(step_s, right), evidence=steps, observed=f"{given} take {right:g} s, not {step_s:g}:"
        )


_LAST = "the last message is ready when backward ends, so it can't overlap with anything: add it."
_BUSY = "where the messages take longer than backward, the network sets the pace: it is busy from the first one on."
_FIRST = "the first message is ready only after a k-th of backward: `backward_s / messages`."
_WRONG_STEPS = [
    Mistake(
        lambda f, b, m, k: f + b + k * m, "that is a step without overlap, but messages travel while backward computes."
    ),
    Mistake(lambda f, b, m, k: max(f + b, k * m), _LAST),
    Mistake(lambda f, b, m, k: f + max(b, k * m), _LAST),
    Mistake(lambda f, b, m, k: f + b + m, _BUSY),
    Mistake(lambda f, b, m, k: f + b / k + k * m, "where the network keeps up, backward sets the pace."),
    Mistake(lambda f, b, m, k: max(f + b + m, f + k * m), _FIRST),
    Mistake(
        lambda f, b, m, k: max(f + b + m / k, f + b / k + m),
        "`message_s` is of one message: all of them take k times that.",
    ),
    Mistake(lambda f, b, m, k: min(f + b + m, f + b / k + k * m), "the step ends at the later of the two: `max`."),
    Mistake(
        lambda f, b, m, k: max(b + m, b / k + k * m), "forward is missing: no gradient is ready before it has ended."
    ),
    Mistake(
        lambda f, b, m, k: max(f + b + m, (f + b) / k + k * m),
        "forward has no gradients: all of it is over before the first message is ready.",
    ),
]
overlapped_step = Exercise("overlapped_step", observe_steps, steps_properties, _WRONG_STEPS, communicates=False)
