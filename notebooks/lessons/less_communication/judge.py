"""The exercises of 07c_less_communication: a gradient's largest entries, the outer step after local steps, and what
compressing saves."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from workshop_lib.exercises.judge import own_or_solution
from workshop_lib.exercises.play import Edit, played
from workshop_lib.training.collectives.counting import GivenBytes

NOTEBOOK = "07c_less_communication"
written = partial(own_or_solution, notebook=NOTEBOOK)
# (gradient, old residual, k)
GRADIENTS = [
    (np.array([0.5, -4.0, 1.0, 2.0, -0.25, 3.0]), np.zeros(6), 2),
    # The residual decides: the sum is largest at 0, 2 and 3, the gradient alone at 1, 3 and 5.
    (np.array([1.0, -4.0, 0.5, 6.0, 0.0, 3.0]), np.array([6.0, 3.5, -7.0, 1.0, 0.25, -1.5]), 3),
]


def play_compress(compress: Callable, comm) -> Iterator[tuple]:
    for gradient, residual, k in GRADIENTS:
        values, indices, kept = map(np.asarray, compress(gradient.copy(), residual.copy(), k))
        given = f"for the gradient {gradient.tolist()} and the residual {residual.tolist()}"
        again = ", with an old residual too" if residual.any() else ""
        order = np.argsort(indices)
        yield f"it chooses the largest{again}", indices[order], given
        yield f"it sends their values{again}", values[order], given
        yield f"sent + new residual = gradient + old residual{again}", kept, f"{given}, as the new residual"


CHOOSE = "np.abs(total)"
KEEP = "kept[indices] = 0"
compress = played(
    "compress",
    NOTEBOOK,
    play_compress,
    [
        Edit("large negative values count as much: compare magnitudes, `np.abs`.", (CHOOSE, "total")),
        Edit(
            "it chooses by the gradient alone, so what it kept never gets its turn: choose by gradient + residual.",
            (CHOOSE, "np.abs(gradient)"),
        ),
        Edit("it drops what was not sent: keep it.", (KEEP, "kept[:] = 0")),
        Edit("it keeps what it sent, and will send it again: set it to 0.", (KEEP, "pass")),
    ],
    returns="values, indices, residual",
    communicates=False,
)


N = 4
# Outer learning rate, momentum, and what must hold.
OUTER = [
    (1.0, 0.0, "with lr 1 and no momentum, the weights are the mean of the ranks' own"),
    (0.5, 0.0, "with lr 0.5 and no momentum, they go halfway to it"),
    (0.7, 0.9, "with lr 0.7 and momentum 0.9, they are right after 3 rounds"),
]


def play_outer_step(outer_step: Callable, comm) -> Iterator[tuple]:
    counted = GivenBytes(comm)
    for lr, momentum, text in OUTER:
        weights = np.arange(1.0, N + 1)
        velocity = np.zeros(N)
        for turn in range(3):
            moved = np.random.default_rng([comm.rank, turn]).normal(size=N)
            weights, velocity = outer_step(counted, weights.copy(), weights + moved, velocity.copy(), lr, momentum)
            yield text, weights, f"after round {turn + 1}"
    sent = counted.nbytes // 9
    observed = f"a round gives {sent} bytes to collectives, and the weights are {8 * N}:"
    yield "a round sends the weights once", sent <= 8 * N, observed, "send them once, and nothing else."


GRADIENT = "start - total / comm.size"
STEP = "(gradient + momentum * velocity)"
outer_step = played(
    "outer_step",
    NOTEBOOK,
    play_outer_step,
    [
        Edit("every rank continues with its own weights: average `mine` over the ranks.", (GRADIENT, "start - mine")),
        Edit("that is the sum over the ranks: divide by `comm.size`.", (" / comm.size", "")),
        Edit("it averages and ignores `lr`: go from `start`, by `lr` times the step.", ("start - lr *", "start -")),
        Edit(
            "that is plain momentum: Nesterov steps by gradient + momentum * velocity, the new one.", (STEP, "velocity")
        ),
    ],
    returns="weights, velocity",
    in_place=True,
)


# What must hold for each case, and the arguments of `pays`.
SAVED = [
    ("nothing sent saves a ring allreduce", (6e9, 1e9, 4, 0.0, 0.0)),
    ("values and indices of the other ranks are received", (6e9, 1e9, 4, 0.0, 0.01)),
    ("compressing takes time", (6e9, 1e9, 4, 0.5, 0.01)),
    ("it's negative where compressing costs more than it saves", (6e9, 1e12, 2, 0.5, 0.01)),
]


def play_pays(pays: Callable, comm) -> Iterator[tuple]:
    for text, numbers in SAVED:
        gradient_bytes, bytes_per_s, ranks, compress_s, share = numbers
        given = f"with {gradient_bytes / 1e9:g} GB at {bytes_per_s / 1e9:g} GB/s on {ranks} ranks, "
        yield text, pays(*numbers), f"{given}{compress_s:g} s to compress, and a share of {share:g}"


WHOLE = "2 * (ranks - 1) / ranks * gradient_bytes"
TOP = "(ranks - 1) * 2 * share"
pays = played(
    "pays",
    NOTEBOOK,
    play_pays,
    [
        Edit("in a ring, a rank receives its gradient 2 (p - 1) / p times, not once.", (WHOLE, "gradient_bytes")),
        Edit("each rank receives what all others send: multiply by `ranks - 1`.", (TOP, "2 * share")),
        Edit("an entry is sent as a value and an index: twice the bytes.", (TOP, "(ranks - 1) * share")),
        Edit("compressing takes time, too: subtract `compress_s`.", (" - compress_s", "")),
        Edit(
            "it's what top-k saves: take the allreduce minus top-k.",
            ("(whole_bytes - top_bytes)", "(top_bytes - whole_bytes)"),
        ),
    ],
    returns="the seconds",
    communicates=False,
)
