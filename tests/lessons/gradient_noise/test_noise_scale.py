"""The estimators of the noise scale, on gradients whose mean and covariance are known."""

import math

import numpy as np
import pytest
from exercises.answers import solution
from thread_ranks import run_on_threads

from workshop_lib.training.collectives.counting import GivenBytes

from lessons.gradient_noise.noise_scale import Follower, Norms, averaged, beside_the_mean

estimates = solution("07b_gradient_noise", "noise_estimates")
SMALL, RANKS, STEPS = 8, 4, 3000
GRADIENT = np.array([0.5, -1.0, 0.25, 0.0, 0.125] * 4)
DEVIATIONS = np.linspace(0.5, 3, 20)  # Sigma is diagonal
GRADIENT_SQ, TRACE = GRADIENT @ GRADIENT, (DEVIATIONS**2).sum()
TRUE = TRACE / GRADIENT_SQ


def steps(seed, count=STEPS, ranks=RANKS):
    """The norms of `count` steps in which each rank averages SMALL samples' gradients."""
    samples = np.random.default_rng(seed).normal(GRADIENT, DEVIATIONS, size=(count, ranks, SMALL, len(GRADIENT)))
    of_ranks = samples.mean(axis=2)
    small_sq = (of_ranks**2).sum(axis=2).mean(axis=1)
    big_sq = (of_ranks.mean(axis=1) ** 2).sum(axis=1)
    return [Norms(*pair) for pair in zip(small_sq, big_sq, strict=True)]


def followed(norms, **how):
    follower = Follower(SMALL, SMALL * RANKS, estimates, **how)
    for one in norms:
        follower.add(one)
    return follower


def test_both_estimates_are_unbiased():
    found = np.array([estimates(*one, SMALL, SMALL * RANKS) for one in steps(seed=2)])
    errors = found.std(axis=0, ddof=1) / math.sqrt(STEPS)
    assert np.all(np.abs(found.mean(axis=0) - [GRADIENT_SQ, TRACE]) < 4 * errors)
    assert np.all(errors < [0.03 * GRADIENT_SQ, 0.03 * TRACE]), "precise enough to see a bias"
    biased = np.mean(steps(seed=2), axis=0)[1] - GRADIENT_SQ
    assert biased > 4 * errors[0], "and the plain norm of the average has one"


def test_the_standard_error_is_that_of_repeated_measurements():
    measured = [followed(steps(seed, count=300)) for seed in range(100, 160)]
    scales = np.array([one.noise_scale for one in measured])
    claimed = np.array([one.standard_error for one in measured])
    assert np.median(claimed) == pytest.approx(scales.std(ddof=1), rel=0.3)
    assert np.mean(np.abs(scales - TRUE) < 2 * claimed) > 0.85


def test_it_follows_a_change_and_forgets():
    later = [Norms(4 * one.small_sq, 4 * one.big_sq) for one in steps(seed=4, count=400)]
    follower = followed([*steps(seed=5, count=400), *later], memory_steps=50)
    # The gradients doubled: so did both norms, and their ratio stayed.
    assert follower.gradient_sq == pytest.approx(4 * GRADIENT_SQ, rel=0.35)
    assert follower.trace == pytest.approx(4 * TRACE, rel=0.1)
    assert abs(follower.noise_scale - TRUE) < 4 * follower.standard_error
    over_all = followed([*steps(seed=5, count=400), *later])
    assert over_all.trace == pytest.approx(2.5 * TRACE, rel=0.1)


def test_no_scale_is_made_up_from_nothing():
    follower = followed([Norms(small_sq=4.0, big_sq=0.5)])
    assert follower.gradient_sq < 0
    assert math.isnan(follower.noise_scale) and math.isnan(follower.standard_error)


@pytest.mark.parametrize(("dtype", "rounding"), [("float64", 1e-12), ("float32", 1e-5)])
def test_the_mean_and_both_norms_take_one_allreduce_with_one_number_more(dtype, rounding):
    """With three ranks, no mean can be taken for a half."""
    of_ranks = np.random.default_rng(1).normal(size=(3, 7)).astype(dtype)
    expected = of_ranks.mean(axis=0)

    def program(comm):
        own, counted = of_ranks[comm.rank].copy(), GivenBytes(comm)
        mean, norms = averaged(own, counted)
        assert np.array_equal(own, of_ranks[comm.rank]) and counted.nbytes == (7 + 1) * own.itemsize
        return mean, norms

    for mean, norms in run_on_threads(program, 3):
        assert mean.dtype == dtype and mean == pytest.approx(expected, abs=rounding)
        assert norms.small_sq == pytest.approx((of_ranks**2).sum(axis=1).mean(), abs=rounding)
        assert norms.big_sq == pytest.approx(expected @ expected, abs=rounding)


def test_gradients_of_batches_are_told_by_their_length_and_their_part_along_the_mean():
    single = np.array([[3.0, 1.0], [3.0, -1.0]])
    length, by_batch = beside_the_mean(single, (1, 2), draws=50)
    assert length == 3.0
    assert [along for along, _ in by_batch[1]] == [3.0] * 50
    assert [length for _, length in by_batch[1]] == pytest.approx([10**0.5] * 50)
    lengths = {round(length, 6) for _, length in by_batch[2]}
    assert lengths == {3.0, round(10**0.5, 6)}, "the same sample may be drawn twice"
