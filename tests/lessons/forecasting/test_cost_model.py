"""The cost of collectives, steps and trainings, against the formulas and cases worked out by hand."""

import math

import pytest

from workshop_lib.lessons.forecasting import cost_model
from workshop_lib.lessons.forecasting.cost_model import ALGORITHMS, Link, allreduce_s

N = 1_000_000
ALPHA_S, BETA, GAMMA = 10e-6, 1e-9, 0.25e-9
LINK = Link(ALPHA_S, BETA)


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


def test_which_is_best_where():
    small, large = 8, 100 * N
    for ranks in (4, 16, 256):
        by_cost = {n: min(ALGORITHMS, key=lambda name: cost(name, ranks, n)) for n in (small, large)}
        assert by_cost == {small: "recursive doubling", large: "rabenseifner"}
    assert cost("ring", 17, large) < cost("rabenseifner", 17, large), "17 ranks are 1 more than a power of two"


def test_a_hierarchy_sends_less_between_nodes_than_inside():
    inside, between = Link(1e-6, 0.01e-9), Link(10e-6, 1e-9)
    found = cost_model.hierarchical_allreduce_s("ring", 8, 4, N, inside, between)
    assert found == pytest.approx(6e-6 + 1.5 * N * 0.01e-9 + 14 * 10e-6 + 14 / 8 * N * 1e-9)
    assert cost_model.hierarchical_allreduce_s("naive", 1, 4, N, inside, between) == pytest.approx(
        allreduce_s("ring", 4, N, 1e-6, 0.01e-9)
    )
    flat = cost_model.ring_across_nodes_s(8, 4, N, inside, between)
    assert flat == pytest.approx(14 * 10e-6 + (62 - 14) * 1e-6 + 62 / 32 * N * 1e-9)
    on_one = cost_model.ring_across_nodes_s(1, 4, N, inside, between)
    assert on_one == pytest.approx(allreduce_s("ring", 4, N, 1e-6, 0.01e-9)), "the network is not used"


def test_a_step_lies_between_its_bounds():
    for message_s in (0, 0.001, 0.02, 0.2, 3):
        for messages in (1, 2, 9):
            least, most = cost_model.step_bounds_s(0.3, messages * message_s)
            found = cost_model.overlapped_step_s(0.1, 0.2, message_s, messages)
            assert least <= found <= most + 1e-12
            if messages == 1:
                assert found == pytest.approx(most), "one message has to wait for all of backward"


@pytest.mark.parametrize(("forward_s", "backward_s", "message_s", "messages"), [(1, 2, 0.3, 5), (1, 2, 0.9, 5)])
def test_a_step_ends_when_a_simulated_one_does(forward_s, backward_s, message_s, messages):
    free_s = 0.0
    for part in range(1, messages + 1):
        free_s = max(free_s, forward_s + backward_s * part / messages) + message_s
    found = cost_model.overlapped_step_s(forward_s, backward_s, message_s, messages)
    assert found == pytest.approx(free_s)


def test_samples_to_a_target_are_mccandlishs():
    critical, least = 500, 100_000
    s_min = least / critical
    for batch in (1, 50, 500, 50_000):
        samples = cost_model.samples_to_target(batch, critical, least)
        steps = samples / batch
        assert (steps / s_min - 1) * (samples / least - 1) == pytest.approx(1)
        assert steps == pytest.approx(s_min * (1 + critical / batch))
    assert cost_model.samples_to_target(critical, critical, least) == 2 * least


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cost("tree", 4), "algorithm is 'tree': choose one of naive, recursive doubling"),
        (lambda: cost("ring", 0), "ranks is 0: give a whole number"),
        (lambda: cost("ring", 2.5), "ranks is 2.5"),
        (lambda: cost_model.ring_across_nodes_s(0, 4, N, LINK, LINK), "nodes is 0"),
        (lambda: cost_model.ring_across_nodes_s(8, 0, N, LINK, LINK), "ranks per node is 0"),
        (lambda: cost("ring", 2, -1), "message_bytes is -1"),
        (lambda: cost("ring", 2, math.nan), "message_bytes is nan"),
        (lambda: cost_model.overlapped_step_s(1, 1, 1, 0), "messages is 0"),
        (lambda: cost_model.step_bounds_s(-1, 0), "compute_s is -1"),
        (lambda: cost_model.samples_to_target(0, 1, 1), "global_batch is 0: give a number above 0"),
    ],
)
def test_what_makes_no_sense_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
