"""Formulas for the cost of an allreduce, a training step and a whole training run, used in 08c_forecasting.

A message of n bytes takes alpha + n beta seconds (Hockney 1994). Alpha is `latency_s`, and beta is `s_per_byte`, the
inverse of the bandwidth. Summing takes `reduce_s_per_byte` more, the gamma of the literature. The formulas assume that
all ranks are equally fast and start together, and that a link carries one message each way at a time.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from workshop_lib.errors import InputError
from workshop_lib.quantities import not_negative, positive, whole


@dataclass(frozen=True)
class Link:
    """The connection from one rank to another: seconds before the first byte, and seconds for each byte."""

    latency_s: float
    s_per_byte: float


def allreduce_s(
    algorithm: str, ranks: int, message_bytes: float, latency_s: float, s_per_byte: float, reduce_s_per_byte=0.0
) -> float:
    """Seconds of one allreduce of `message_bytes` on any number of `ranks`; 0 on one rank.

    With p ranks, n bytes, and p' the largest power of two up to p:

    - "naive", all arrays to rank 0 and the sum back to each: 2 (p - 1) (alpha + n beta) + (p - 1) n gamma.
    - "ring": 2 (p - 1) alpha + 2 (p - 1)/p n beta + (p - 1)/p n gamma (Patarasuk and Yuan 2009, section 3).
    - "recursive doubling": log2 p (alpha + n beta + n gamma) (Thakur, Rabenseifner and Gropp 2005, section
      4.5).
    - "rabenseifner", halving and doubling: 2 log2 p alpha + 2 (p - 1)/p n beta + (p - 1)/p n gamma (same
      section).

    When p is not a power of two, the last two algorithms run on p' ranks: the p - p' extra ranks first send their
    arrays to others, and get the sum back at the end. The formulas then have p' in place of p, and 2 alpha + 2 n beta +
    n gamma more (same section). Raises InputError for an unknown algorithm, fewer than one rank, and negative or
    infinite numbers.
    """
    if algorithm not in ALGORITHMS:
        raise InputError(f"algorithm is {algorithm!r}: choose one of {', '.join(ALGORITHMS)}")
    ranks = whole("ranks", ranks)
    not_negative(message_bytes=message_bytes, latency_s=latency_s)
    not_negative(s_per_byte=s_per_byte, reduce_s_per_byte=reduce_s_per_byte)
    if ranks == 1:
        return 0.0
    rounds, sent, summed = ALGORITHMS[algorithm](ranks)
    return rounds * latency_s + message_bytes * (sent * s_per_byte + summed * reduce_s_per_byte)


def _naive(p: int) -> tuple[float, float, float]:
    return 2 * (p - 1), 2 * (p - 1), p - 1


def _ring(p: int) -> tuple[float, float, float]:
    return 2 * (p - 1), 2 * (p - 1) / p, (p - 1) / p


def _with_extra_ranks(on_a_power_of_two: Callable[[int], tuple]) -> Callable[[int], tuple]:
    def any_number(p: int) -> tuple[float, float, float]:
        power = 2 ** (p.bit_length() - 1)
        extra = (0, 0, 0) if power == p else (2, 2, 1)
        return tuple(a + b for a, b in zip(on_a_power_of_two(power), extra, strict=True))

    return any_number


@_with_extra_ranks
def _recursive_doubling(p: int) -> tuple[float, float, float]:
    return (math.log2(p),) * 3


@_with_extra_ranks
def _rabenseifner(p: int) -> tuple[float, float, float]:
    return 2 * math.log2(p), 2 * (p - 1) / p, (p - 1) / p


# For p ranks: the number of rounds and, in units of the message, what the busiest rank sends or receives and what it
# sums.
ALGORITHMS = {"naive": _naive, "recursive doubling": _recursive_doubling, "ring": _ring, "rabenseifner": _rabenseifner}


def hierarchical_allreduce_s(
    algorithm: str, nodes: int, ranks_a_node: int, message_bytes: float, inside: Link, between: Link
) -> float:
    """Seconds of an allreduce first inside each node, then between nodes with `algorithm`, then inside again.

    Inside a node, a ring leaves each rank with the sum of one part and, at the end, passes the parts around. Between
    nodes, each rank exchanges its part with its peers, and all ranks of a node share its network: `between.s_per_byte`
    is the whole node's (as in Jia et al. 2018, arXiv:1807.11205, section 3.3, and NCCL's rings). Raises InputError for
    the same reasons as `allreduce_s`.
    """
    on_node = allreduce_s("ring", ranks_a_node, message_bytes, inside.latency_s, inside.s_per_byte)
    return on_node + allreduce_s(algorithm, nodes, message_bytes, between.latency_s, between.s_per_byte)


def ring_across_nodes_s(nodes: int, ranks_a_node: int, message_bytes: float, inside: Link, between: Link) -> float:
    """Seconds of one ring through all p ranks, node after node, in which the slowest link limits the bandwidth.

    A part passes 2 (p - 1) links: 2 (nodes - 1) of them lie between nodes, and the others have the latency inside a
    node. NCCL chooses its algorithm by the same model (src/graph/tuning.cc). Raises InputError for the same reasons as
    `allreduce_s`.
    """
    nodes = whole("nodes", nodes)
    ranks = whole("ranks per node", ranks_a_node) * nodes
    slowest = inside.s_per_byte if nodes == 1 else max(inside.s_per_byte, between.s_per_byte)
    bytes_s = allreduce_s("ring", ranks, message_bytes, 0.0, slowest)
    hops = 2 * (nodes - 1)
    return bytes_s + (2 * (ranks - 1) - hops) * inside.latency_s + hops * between.latency_s


def step_bounds_s(compute_s: float, communication_s: float) -> tuple[float, float]:
    """Seconds of a step with full overlap and without any: the larger of the two times, and their sum."""
    not_negative(compute_s=compute_s, communication_s=communication_s)
    return max(compute_s, communication_s), compute_s + communication_s


def overlapped_step_s(forward_s: float, backward_s: float, message_s: float, messages: int) -> float:
    """Seconds of a step that sums its gradients in `messages` equal parts, each as soon as it is computed.

    Of k parts, part j is ready at forward + j/k backward, and waits for the parts before it. Each part takes
    `message_s`, and the last one cannot overlap with anything. So the step ends at the later of two times:
    forward + backward/k + k message_s, if the network is busy from the first part on, and
    forward + backward + message_s, if the network keeps up. This lies between the bounds of `step_bounds_s`. The
    schedule is that of Li et al. 2020, arXiv:2006.15704, section 3.2.3.
    """
    not_negative(forward_s=forward_s, backward_s=backward_s, message_s=message_s)
    k = whole("messages", messages)
    return forward_s + max(backward_s / k + k * message_s, backward_s + message_s)


def slowest_of(ranks: int) -> float:
    """By how many standard deviations the slowest of `ranks` ranks is later than the mean: sqrt(2 ln ranks).

    If step times are normally distributed, the expected lateness is below this and approaches it slowly: it is 1.4 for
    8 ranks, where this is 2.0, and 3.6 for 4,096, where this is 4.1 (Cramer 1946, Mathematical Methods of Statistics,
    section 28.6).
    """
    return math.sqrt(2 * math.log(whole("ranks", ranks)))


def samples_to_target(global_batch: float, critical_batch: float, least_samples: float) -> float:
    """Samples needed to reach an accuracy: E_min (1 + B/B_crit), where E_min is `least_samples`.

    The number of steps is this divided by B: S_min (1 + B_crit/B), with S_min = E_min / B_crit. Up to B_crit, doubling
    the batch nearly halves the steps. Far above B_crit, the steps stay the same, and each additional sample is wasted.
    Raises InputError unless all three numbers are positive. Source: arXiv:1812.06162, eq. 2.11.
    """
    positive(global_batch=global_batch, critical_batch=critical_batch, least_samples=least_samples)
    return least_samples * (1 + global_batch / critical_batch)
