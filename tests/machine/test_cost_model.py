"""The cost of collectives, steps and training runs, against the formulas and cases worked out by hand."""

import pytest

from workshop_lib.machine.catalogue import Link, Machine, Target
from workshop_lib.machine.cost_model import ALGORITHMS, allreduce_s, overlapped_step_s

N = 1_000_000
ALPHA_S, BETA, GAMMA = 10e-6, 1e-9, 0.25e-9


def cost(algorithm, ranks, n=N):
    return allreduce_s(algorithm, ranks, n, ALPHA_S, BETA, GAMMA)


def rounds_bytes_sums(algorithm, ranks):
    """The three terms of the formula apart, bytes and sums as multiples of the message."""
    return [allreduce_s(algorithm, ranks, 1, *(float(term == one) for term in range(3))) for one in range(3)]


@pytest.mark.parametrize(
    ("algorithm", "ranks", "terms"),
    [
        ("naive", 2, [2, 2, 1]),
        ("naive", 9, [16, 16, 8]),
        ("ring", 2, [2, 1, 1 / 2]),
        ("ring", 5, [8, 8 / 5, 4 / 5]),
        ("ring", 9, [16, 16 / 9, 8 / 9]),
        ("recursive doubling", 2, [1, 1, 1]),
        ("recursive doubling", 8, [3, 3, 3]),
        ("recursive doubling", 7, [2 + 2, 2 + 2, 2 + 1]),
        ("rabenseifner", 2, [2, 1, 1 / 2]),
        ("rabenseifner", 8, [6, 14 / 8, 7 / 8]),
        ("rabenseifner", 9, [6 + 2, 14 / 8 + 2, 7 / 8 + 1]),
    ],
)
def test_rounds_bytes_and_sums(algorithm, ranks, terms):
    assert rounds_bytes_sums(algorithm, ranks) == pytest.approx(terms)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_any_number_of_ranks_costs_something_and_one_rank_nothing(algorithm):
    assert cost(algorithm, 1) == 0
    for ranks in range(2, 70):
        assert cost(algorithm, ranks) >= 2 * (ranks - 1) / ranks * N * BETA, "no allreduce sends fewer bytes"


def test_on_nodes_a_ring_is_as_fast_as_its_slowest_link_and_a_hierarchy_sends_less_between_them():
    """32 devices on 8 nodes of 4, and 4 on one node."""
    ring, hierarchy, cheapest = (
        Machine("m", "M", "", "", 4, ways, Link(1e-6, 0.01e-9), Link(10e-6, 1e-9), "")
        for ways in ("ring across nodes", "hierarchical", "cheapest")
    )
    assert ring.allreduce_s(32, N) == pytest.approx(14 * 10e-6 + (62 - 14) * 1e-6 + 62 / 32 * N * 1e-9)
    assert hierarchy.allreduce_s(32, N) == pytest.approx(6e-6 + 1.5 * N * 0.01e-9 + 6 * 10e-6 + 14 / 8 * N * 1e-9)
    assert cheapest.allreduce_s(32, 8) < hierarchy.allreduce_s(32, 8) < ring.allreduce_s(32, 8)
    for machine in (ring, hierarchy, cheapest):
        assert machine.allreduce_s(4, N) == pytest.approx(allreduce_s("ring", 4, N, 1e-6, 0.01e-9))
        assert machine.allreduce_s(4, N, network=4) == machine.allreduce_s(4, N), "inside a node"
        assert machine.allreduce_s(32, N, network=4) < machine.allreduce_s(32, N)


@pytest.mark.parametrize(
    ("forward_s", "backward_s", "message_s", "messages"), [(1, 2, 0.3, 5), (1, 2, 0.9, 5), (1, 2, 0.9, 1)]
)
def test_a_step_ends_when_a_simulated_one_does(forward_s, backward_s, message_s, messages):
    free_s = 0.0
    for part in range(1, messages + 1):
        free_s = max(free_s, forward_s + backward_s * part / messages) + message_s
    found = overlapped_step_s(forward_s, backward_s, message_s, messages)
    assert found == pytest.approx(free_s)


def test_samples_to_a_target_are_mccandlishs():
    critical, least = 500, 100_000
    target = Target("", critical, least, "")
    s_min = least / critical
    for batch in (1, 50, 500, 50_000):
        samples = target.samples(batch)
        steps = samples / batch
        assert (steps / s_min - 1) * (samples / least - 1) == pytest.approx(1)
        assert steps == pytest.approx(s_min * (1 + critical / batch))
