"""The fit of steps to target against batch size, on pairs made from known parameters."""

import numpy as np
import pytest

from lessons.gradient_noise import critical_batch

S_MIN, E_MIN = 120.0, 36_000.0
B_CRIT = E_MIN / S_MIN
BATCHES = np.array([16, 32, 64, 128, 256, 512, 1024, 2048, 4096])


def measured(seed, noise=0.05, batches=BATCHES):
    exact = S_MIN + E_MIN / batches
    return exact * np.exp(noise * np.random.default_rng(seed).normal(size=len(batches)))


def test_at_the_critical_batch_steps_and_samples_are_twice_their_minimum():
    fit = critical_batch.fit(BATCHES, measured(0))
    assert fit.steps(fit.b_crit) == pytest.approx(2 * fit.s_min)
    assert fit.samples(BATCHES) == pytest.approx(fit.steps(BATCHES) * BATCHES)


def test_noisy_pairs_give_them_back_within_the_stated_intervals():
    fits = [critical_batch.fit(BATCHES, measured(seed), seed) for seed in range(60)]
    for name, true in (("s_min", S_MIN), ("e_min", E_MIN), ("b_crit", B_CRIT)):
        found = np.array([getattr(fit, name) for fit in fits])
        assert np.median(found) == pytest.approx(true, rel=0.03), name
        held = np.mean([low <= true <= high for low, high in (fit.intervals[name] for fit in fits)])
        assert held > 0.8, f"{name} is inside in {held:.0%} of 60 fits"
        widths = [high / low for low, high in (fit.intervals[name] for fit in fits)]
        assert np.median(widths) < 1.35, f"{name}: an interval that holds everything says nothing"


@pytest.mark.parametrize(
    ("batches", "steps", "complaint"),
    [
        ([32, 64], [100, 60], r"2 batch sizes \(32, 64\).*at least 3"),
        ([32, 64, 128], [40, 60, 100], "no critical batch fits"),
    ],
)
def test_what_cannot_be_fitted_is_refused_with_the_remedy(batches, steps, complaint):
    with pytest.raises(ValueError, match=complaint):
        critical_batch.fit(batches, steps)


def test_each_pair_is_fitted_and_told_with_the_learners_own_numbers(capsys):
    steps = S_MIN + E_MIN / BATCHES
    pairs = {"here": (BATCHES.tolist(), steps.tolist()), "stopped": ([], []), "rising": ([32, 64, 128], [40, 60, 100])}
    fits = critical_batch.fit_each(pairs, lambda batches, steps: (2.0, 14.0))
    assert list(fits) == ["here"] and fits["here"].b_crit == pytest.approx(B_CRIT)
    here, stopped, rising = capsys.readouterr().out.splitlines()
    assert here.startswith("here: ") and " 7," in here and " 300 " in here
    assert stopped.startswith("stopped: no batch size") and rising.startswith("rising: no fit")
