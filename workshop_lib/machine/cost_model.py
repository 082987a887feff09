"""The α–β model: formulas for the seconds of an allreduce and of a step that overlaps, and for the slowest rank.

A message of n bytes takes alpha + n beta seconds (Hockney 1994). Alpha is `latency_s`, and beta is `s_per_byte`, the
inverse of the bandwidth. Summing takes `reduce_s_per_byte` more, the gamma of the literature. The formulas assume that
all ranks are equally fast and start together, and that a link carries one message each way at a time. All forecasts,
those of 08c_forecasting and those of 12_thousand_ranks, rest on them.
"""

import math
from statistics import NormalDist

ALGORITHMS = ("naive", "recursive doubling", "ring", "rabenseifner")


def allreduce_s(
    algorithm: str, ranks: int, message_bytes: float, latency_s: float, s_per_byte: float, reduce_s_per_byte=0.0
) -> float:
    """Seconds of one allreduce of `message_bytes` on any number of `ranks`; 0 on one rank. algorithm: of ALGORITHMS.

    An algorithm is described by its rounds, and by how many times the message its busiest rank sends and sums. "naive"
    sends all arrays to rank 0 and the sum back to each. The others are in Patarasuk and Yuan 2009, section 3 (ring),
    and Thakur, Rabenseifner and Gropp 2005, section 4.5. When the number of ranks is not a power of two, recursive
    doubling and Rabenseifner's algorithm run on a power of two: the extra ranks first send their arrays to others, and
    get the sum back at the end (same section).
    """
    power = 2 ** (ranks.bit_length() - 1)
    log2 = power.bit_length() - 1
    rounds, sent, summed = {
        "naive": (2 * (ranks - 1), 2 * (ranks - 1), ranks - 1),
        "ring": (2 * (ranks - 1), 2 * (ranks - 1) / ranks, (ranks - 1) / ranks),
        "recursive doubling": (log2, log2, log2),
        "rabenseifner": (2 * log2, 2 * (power - 1) / power, (power - 1) / power),
    }[algorithm]
    if ranks > power and algorithm in ("recursive doubling", "rabenseifner"):
        rounds += 2
        sent += 2
        summed += 1
    return rounds * latency_s + message_bytes * (sent * s_per_byte + summed * reduce_s_per_byte)


def overlapped_step_s(forward_s: float, backward_s: float, message_s: float, messages: int) -> float:
    """Seconds of a step that sums its gradients in `messages` equal parts, each as soon as it is computed.

    Of k parts, part j is ready at forward + j/k backward, and waits for the parts before it. Each part takes
    `message_s`, and the last one cannot overlap with anything. So the step ends at the later of two times:
    forward + backward/k + k message_s, if the network is busy from the first part on, and
    forward + backward + message_s, if the network keeps up. The schedule is that of Li et al. 2020, arXiv:2006.15704,
    section 3.2.3.
    """
    return forward_s + max(backward_s / messages + messages * message_s, backward_s + message_s)


def slowest_of(ranks: int) -> float:
    """By how many standard deviations the slowest of `ranks` ranks is later than the mean: sqrt(2 ln ranks).

    If step times are normally distributed, the expected lateness is below this and approaches it slowly: it is 1.4 for
    8 ranks, where this is 2.0, and 3.6 for 4,096, where this is 4.1 (Cramer 1946, Mathematical Methods of Statistics,
    section 28.6).
    """
    return math.sqrt(2 * math.log(ranks))


def mean_slowest_of(ranks: int) -> float:
    """By how many standard deviations the slowest of `ranks` ranks is later than the mean, averaged over steps.

    It's what the ranks' own draws have on average, while `slowest_of` is a bound. Accurate to a hundredth (Blom 1958,
    Statistical Estimates and Transformed Beta-Variables: the largest of n draws lies at (n - 3/8) / (n + 1/4)).
    """
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
