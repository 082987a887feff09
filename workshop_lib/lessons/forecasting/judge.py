"""Judges the exercises of 08c_forecasting: the smallest batch that is large enough, and a step with overlap.

All numbers in the cases are made up.
"""

from collections.abc import Callable, Iterator

from workshop_lib.judge.play import Edit, played
from workshop_lib.words import plural

NOTEBOOK = "08c_forecasting"
NUMBERS = ("share", "message_bytes", "t0_s", "t1_s", "latency_s", "s_per_byte")
# What must hold for each case, and the arguments of `smallest_batch`.
BATCHES = [
    ("it is the smallest batch with that share, or less", (0.2, 1500, 1e-3, 2.9e-4, 1e-3, 1e-6)),
    ("also for other numbers", (0.4, 4000, 1e-4, 3.1e-5, 1e-5, 1.1e-7)),
    ("1 where any batch will do", (0.5, 4000, 2e-3, 3.1e-5, 1e-5, 1e-7)),
]


def play_batches(smallest_batch: Callable, comm) -> Iterator[tuple]:
    for text, numbers in BATCHES:
        given = ", ".join(f"{name} = {number:g}" for name, number in zip(NUMBERS, numbers, strict=True))
        batch = smallest_batch(**dict(zip(NUMBERS, numbers, strict=True)))
        yield text, batch, f"for {given}"


COMPUTING = "(1 - share) / share"
NOT_ONE = "there is no batch smaller than one sample: `max(1, …)`."
smallest_batch = played(
    "smallest_batch",
    NOTEBOOK,
    play_batches,
    [
        Edit("one sample less is too few: round up, with `math.ceil`.", ("math.ceil", "int")),
        Edit("the share is of the whole step, T_comm + T_compute.", (COMPUTING, "1 / share")),
        Edit("a step takes t0 even without any sample.", (" - t0_s", "")),
        Edit("subtract t0 from the computing time, instead of adding it.", (" - t0_s", " + t0_s")),
        Edit(
            "the latency is missing: an allreduce takes latency + bytes × seconds per byte.",
            ("latency_s + s_per_byte", "s_per_byte"),
        ),
        Edit(
            "the bytes are missing: an allreduce takes latency + bytes × seconds per byte.",
            (" + s_per_byte * message_bytes", ""),
        ),
        Edit("`message_bytes` are bytes already: leave out the factor of 4.", ("s_per_byte *", "4 * s_per_byte *")),
        Edit("with that batch, *computing* takes that share.", (COMPUTING, "share / (1 - share)")),
        Edit("computing takes (1 - share)/share times as long as communication.", (COMPUTING, "(1 - share)")),
        Edit("that is right only for a share of 20 %: use the argument `share`.", (COMPUTING, "4")),
        Edit(NOT_ONE, ("max(1, ", "(")),
        Edit(NOT_ONE, ("max(1, ", "max(0, ")),
        Edit("a batch of one sample is large enough here.", ("max(1, ", "max(2, ")),
    ],
    returns="the number of samples",
    communicates=False,
)

BOTH = "it is right where the network keeps up, and where it is busy from the first message on"
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


KEEPS_UP = "forward_s + backward_s + message_s"
BUSY = "forward_s + backward_s / messages + messages * message_s"
LATER = "max(keeps_up, busy)"
LAST = "the last message is ready when backward ends, so it can't overlap with anything: add it."
overlapped_step = played(
    "overlapped_step",
    NOTEBOOK,
    play_steps,
    [
        Edit(
            "that is a step without overlap, but messages travel while backward computes.",
            (LATER, "forward_s + backward_s + messages * message_s"),
        ),
        Edit(LAST, (KEEPS_UP, "forward_s + backward_s"), (BUSY, "messages * message_s")),
        Edit(LAST, (LATER, "forward_s + max(backward_s, messages * message_s)")),
        Edit(
            "where the messages take longer than backward, the network sets the pace: it's busy from the first one on.",
            (LATER, "keeps_up"),
        ),
        Edit("where the network keeps up, backward sets the pace.", (LATER, "busy")),
        Edit(
            "the first message is ready only after a k-th of backward: `backward_s / messages`.",
            (" + backward_s / messages", ""),
        ),
        Edit(
            "`message_s` is of one message: all of them take k times that.",
            (KEEPS_UP, "forward_s + backward_s + message_s / messages"),
            ("messages * message_s", "message_s"),
        ),
        Edit("the step ends at the later of the two: `max`.", (LATER, "min(keeps_up, busy)")),
        Edit("forward is missing: no gradient is ready before it has ended.", ("forward_s + ", "")),
        Edit(
            "forward has no gradients: all of it is over before the first message is ready.",
            ("forward_s + backward_s / messages", "(forward_s + backward_s) / messages"),
        ),
    ],
    returns="the seconds",
    communicates=False,
)
