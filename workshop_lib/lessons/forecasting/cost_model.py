"""What an allreduce, a training step and a whole training cost: formulas, no measurement.

A message of n bytes takes alpha + n beta seconds (Hockney 1994): `latency_s` and `s_per_byte`, the inverse of
the bandwidth. Summing takes `reduce_s_per_byte` more, the gamma of the literature. All ranks are taken to be
equally fast and to start together, and links to carry one message each way at a time.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from workshop_lib.errors import InputError
from workshop_lib.quantities import not_negative, positive, whole


@dataclass(frozen=True)
class Link:
    """What a message meets on its way from one rank to another."""

    latency_s: float
    s_per_byte: float


def allreduce_s(
    algorithm: str, ranks: int, message_bytes: float, latency_s: float, s_per_byte: float, reduce_s_per_byte=0.0
) -> float:
    """Seconds of one allreduce of `message_bytes` on any number of `ranks`; nothing on one rank.

    With p ranks, n bytes, and p' the largest power of two in p:

    - "naive", all to rank 0 and the sum back to each: 2 (p - 1) (alpha + n beta) + (p - 1) n gamma.
    - "ring": 2 (p - 1) alpha + 2 (p - 1)/p n beta + (p - 1)/p n gamma (Patarasuk and Yuan 2009, section 3).
    - "recursive doubling": log2 p (alpha + n beta + n gamma) (Thakur, Rabenseifner and Gropp 2005, section
      4.5).
    - "rabenseifner", halving and doubling: 2 log2 p alpha + 2 (p - 1)/p n beta + (p - 1)/p n gamma (as
      before).

    When p is not a power of two, in the last two the p - p' extra ranks first send what they have to others, p'
    ranks do the work, and the sum is sent back: 2 alpha + 2 n beta + n gamma more, with p' in place of p (as before,
    4.5). Raises InputError for an unknown algorithm, less than one rank, and negative or infinite numbers.
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


# For p ranks: rounds, and of the whole message what the busiest rank sends or receives, and what it sums.
ALGORITHMS = {"naive": _naive, "recursive doubling": _recursive_doubling, "ring": _ring, "rabenseifner": _rabenseifner}


def hierarchical_allreduce_s(
    algorithm: str, nodes: int, ranks_a_node: int, message_bytes: float, inside: Link, between: Link
) -> float:
    """Seconds of an allreduce first inside each node, then between nodes with `algorithm`, then inside again.

    Inside, a ring leaves each rank with the sum of its part and, at the end, hands the parts round; between,
    each rank takes its part to its peers, and all of a node share its network: `between.s_per_byte` is the
    node's (as Jia et al. 2018, arXiv:1807.11205, section 3.3, and NCCL's rings). Raises InputError as
    `allreduce_s`.
    """
    on_node = allreduce_s("ring", ranks_a_node, message_bytes, inside.latency_s, inside.s_per_byte)
    return on_node + allreduce_s(algorithm, nodes, message_bytes, between.latency_s, between.s_per_byte)


def ring_across_nodes_s(nodes: int, ranks_a_node: int, message_bytes: float, inside: Link, between: Link) -> float:
    """Seconds of one ring through all ranks, node after node: its slowest link sets the pace of the bytes.

    A part passes 2 (p - 1) links, of which 2 (nodes - 1) are between nodes; the latencies of the others are
    those inside (the model by which NCCL chooses its algorithm, src/graph/tuning.cc). Raises InputError as
    `allreduce_s`.
    """
    nodes = whole("ranks", nodes)
    ranks = whole("ranks", ranks_a_node) * nodes
    slowest = inside.s_per_byte if nodes == 1 else max(inside.s_per_byte, between.s_per_byte)
    bytes_s = allreduce_s("ring", ranks, message_bytes, 0.0, slowest)
    hops = 2 * (nodes - 1)
    return bytes_s + (2 * (ranks - 1) - hops) * inside.latency_s + hops * between.latency_s


def step_bounds_s(compute_s: float, communication_s: float) -> tuple[float, float]:
    """Seconds of a step if everything that can overlap does, and if nothing does: the larger, and the sum."""
    not_negative(compute_s=compute_s, communication_s=communication_s)
    return max(compute_s, communication_s), compute_s + communication_s


def overlapped_step_s(forward_s: float, backward_s: float, message_s: float, messages: int) -> float:
    """Seconds of a step whose gradients are summed in `messages` equal parts, each as backward has made it.

    Part j is ready at forward + j/k backward and waits for the parts before it; each takes `message_s`. The
    last part cannot overlap with anything. So the step ends at the later of forward + backward/k + k
    message_s (the network is busy from the first part on) and forward + backward + message_s (it keeps up),
    which lies between the two of `step_bounds_s` (the schedule of Li et al. 2020, arXiv:2006.15704, section
    3.2.3).
    """
    not_negative(forward_s=forward_s, backward_s=backward_s, message_s=message_s)
    k = whole("messages", messages)
    return forward_s + max(backward_s / k + k * message_s, backward_s + message_s)


def slowest_of(ranks: int) -> float:
    """How many standard deviations later than the mean the slowest of `ranks` is: about sqrt(2 ln ranks), if steps
    vary like a normal distribution (Cramer 1946, Mathematical Methods of Statistics, section 28.6)."""
    return math.sqrt(2 * math.log(whole("ranks", ranks)))


def samples_to_target(global_batch: float, critical_batch: float, least_samples: float) -> float:
    """Samples to an accuracy: E_min (1 + B/B_crit), least_samples being E_min (arXiv:1812.06162, eq. 2.11).

    The number of steps is that over B: S_min (1 + B_crit/B), with S_min = E_min / B_crit. Up to B_crit, twice
    the batch nearly halves the steps; far above, the steps stay as they are, and every sample more is wasted.
    Raises InputError unless all three are positive.
    """
    positive(global_batch=global_batch, critical_batch=critical_batch, least_samples=least_samples)
    return least_samples * (1 + global_batch / critical_batch)
