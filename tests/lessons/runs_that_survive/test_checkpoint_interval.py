"""Young's interval is near the best of the exact expectation, which simulated jobs agree with."""

import statistics

import numpy as np
import pytest

from lessons.runs_that_survive import checkpoints


@pytest.mark.parametrize(("save_s", "mtbf_s"), [(1.0, 1000.0), (60.0, 10_800.0), (0.1, 1.2)])
def test_the_rule_is_near_the_best(save_s, mtbf_s):
    young = checkpoints.young(save_s, mtbf_s)
    shares = [checkpoints.useful_share(at, save_s, mtbf_s) for at in np.geomspace(young / 5, young * 5, 2000)]
    assert checkpoints.useful_share(young, save_s, mtbf_s) > max(shares) - 0.003


@pytest.mark.parametrize("restart_s", [0.0, 300.0])
def test_simulated_jobs_agree_with_the_expectation(restart_s):
    runs = [checkpoints.simulated(100 * 10_800, 1000, 60, 10_800, restart_s, seed) for seed in range(40)]
    jobs = [run["useful computing"] for run in runs]
    assert all(sum(run.values()) == pytest.approx(1) for run in runs)
    expected = checkpoints.useful_share(1000, 60, 10_800, restart_s)
    assert statistics.mean(jobs) == pytest.approx(expected, abs=4 * statistics.stdev(jobs) / 40**0.5)
