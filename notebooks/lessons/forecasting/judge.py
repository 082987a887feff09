"""Judges the exercises of 08c_forecasting: a fit that is tested on a held-out size, a step with overlap, and the
range of a forecast.

All numbers in the cases are made up.
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from workshop_lib.exercises.judge import own_or_solution
from workshop_lib.exercises.play import Edit, played
from workshop_lib.words import plural

NOTEBOOK = "08c_forecasting"
written = partial(own_or_solution, notebook=NOTEBOOK)

# An allreduce with alpha = 3 µs and beta = 0.2 ns per byte, times factors that no line goes through.
MESSAGE_BYTES = np.array([16, 256, 4096, 65_536, 1_048_576, 16_777_216])
SECONDS = (3e-6 + 2e-10 * MESSAGE_BYTES) * np.array([1.05, 0.9, 1.2, 0.85, 1.3, 0.95])
HELD_OUT = ((4, "a size in the middle"), (5, "the largest size"), (0, "the smallest size"))


def play_fit(fit_and_test: Callable, comm) -> Iterator[tuple]:
    found = [fit_and_test(MESSAGE_BYTES.copy(), SECONDS.copy(), held_out) for held_out, _ in HELD_OUT]
    for (alpha_s, beta_s_per_byte, _), (_, which) in zip(found, HELD_OUT, strict=True):
        text = "alpha and beta minimize the relative errors at the sizes that are used"
        yield text, 1e6 * alpha_s, f"without {which}, in µs for alpha"
        yield text, 1e9 * beta_s_per_byte, f"without {which}, in ns per byte for beta"
    for (*_, error), (_, which) in zip(found, HELD_OUT, strict=True):
        yield "the error is that of the prediction for the held-out size", error, f"for {which}"


fit_and_test = played(
    "fit_and_test",
    NOTEBOOK,
    play_fit,
    [
        Edit(
            "the fit has seen the held-out size, so it can't be tested on it: leave that size out of both arrays.",
            ("np.delete(message_bytes, held_out)", "message_bytes"),
            ("np.delete(seconds, held_out)", "seconds"),
        ),
        Edit(
            "that minimizes absolute errors, and the largest messages decide everything: divide each error by the "
            "measured time.",
            ("np.column_stack([1 / t, n / t])", "np.column_stack([np.ones(len(t)), n])"),
            ("np.linalg.lstsq(rows, np.ones(len(t)))[0]", "np.linalg.lstsq(rows, t)[0]"),
        ),
        Edit(
            "alpha and beta are the wrong way round: return alpha_s first.",
            ("return alpha_s, beta_s_per_byte", "return beta_s_per_byte, alpha_s"),
        ),
    ],
    returns="alpha_s, beta_s_per_byte and the error",
    communicates=False,
)

BOTH = "it is right where the link keeps up, and where it is busy from the first message on"
# What must hold for each case, and the arguments of `overlapped_step`.
STEPS = [
    (BOTH, (1.0, 2.0, 0.25, 4)),
    (BOTH, (1.0, 2.0, 1.5, 4)),
    ("with a single message nothing overlaps", (1.0, 2.0, 0.5, 1)),
]


def play_steps(overlapped_step: Callable, comm) -> Iterator[tuple]:
    for text, numbers in STEPS:
        forward_s, backward_s, message_s, k = numbers
        given = f"forward {forward_s:g} s, backward {backward_s:g} s and {plural(k, 'message')} of {message_s:g} s"
        yield text, overlapped_step(*numbers), f"with {given}"


LATER = "max(keeps_up_s, busy_s)"
overlapped_step = played(
    "overlapped_step",
    NOTEBOOK,
    play_steps,
    [
        Edit(
            "that is a step without overlap, but messages travel while backward computes.",
            (LATER, "forward_s + backward_s + messages * message_s"),
        ),
        Edit("where the link keeps up, backward sets the pace.", (LATER, "busy_s")),
        Edit(
            "the first message is ready only after a k-th of backward: `backward_s / messages`.",
            (" + backward_s / messages", ""),
        ),
    ],
    returns="the seconds",
    communicates=False,
)

# What must hold for each case, and the arguments of `efficiency_range`.
RANGES = [
    ("it is right where messages are short", (1.0, 0.25, 1.125)),
    ("a late device counts at worst", (1.0, 0.25, 1.125, 0.5)),
    ("it is right where messages take longer than computing", (2.0, 4.0, 4.5, 0.25)),
]


def play_ranges(efficiency_range: Callable, comm) -> Iterator[tuple]:
    for text, numbers in RANGES:
        given = "with computing of {:g} s, messages of {:g} s and a step of {:g} s".format(*numbers)
        for which, value in zip(("worst", "expected", "best"), efficiency_range(*numbers), strict=True):
            yield text, value, f"{given}, {which}"


BEST, WORST = "max(computing_s, messages_s)", "computing_s + 3 * messages_s + late_s"
efficiency_range = played(
    "efficiency_range",
    NOTEBOOK,
    play_ranges,
    [
        Edit("at best a step takes as long as its messages, if these take longer.", (BEST, "computing_s")),
        Edit("at worst nothing overlaps: take the sum.", (WORST, "max(computing_s, 3 * messages_s) + late_s")),
        Edit("at worst messages take three times as long.", ("3 * messages_s", "messages_s")),
        Edit("at worst the slowest device is late, too: add `late_s`.", (" + late_s", "")),
        Edit(
            "it's upside down: divide the time of computing by the time of the step.",
            ("computing_s / worst_s, computing_s / step_s", "worst_s / computing_s, step_s / computing_s"),
        ),
    ],
    returns="the efficiencies at worst, expected and at best",
    communicates=False,
)
