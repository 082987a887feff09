"""The equivalence ladder: one process with the global batch against several ranks.

Same seed, same order, the first 50 steps of a default run. The rungs differ in nothing but the
order in which numbers are added. That shows in two ways:

- "smooth", float32: the network with average pooling and SiLU. It stays within 1e-5.
- "double": the workshop's network as it is, in float64. It stays within 1e-12.

In float32 the workshop's network itself drifts apart by 1e-6 to 3e-3 in 50 steps. Where two
inputs of a max pool are equal to the last digit, one rung sends the gradient to the one and
another rung to the other: a jump that later steps carry on. It happens now and then among the
millions of windows of a run; in float64 it is a billion times rarer.
"""

import itertools

import pytest
from ranks.ladder import SAMPLES, STEPS, TEST_SAMPLES, agreed_record, cases, ladder_run, weights

from workshop_lib.training.equivalence import largest_relative_difference

pytestmark = pytest.mark.timeout(900)  # the first test waits for all trainings

TOLERANCE = {"smooth": 1e-5, "double": 1e-12}
RUNGS = ("mpi-2", "ddp-2", "mpi-4", "ddp-4")
CASES = cases(itertools.product(SAMPLES, RUNGS), lambda case, rung: case == "ragged")


def trainings(folder):
    return {
        ranks: [
            ladder_run(folder, network, case, ranks, name) | {"exhaustive": ranks > 1 and case == "even"}
            for network in TOLERANCE
            for case in SAMPLES
            for name in names
        ]
        for ranks, names in ((1, ["base"]), (2, ["mpi", "ddp"]), (4, ["mpi", "ddp"]))
    }


@pytest.mark.parametrize("network", list(TOLERANCE))
@pytest.mark.parametrize(("case", "rung"), CASES)
def test_same_weights_as_one_process(trained, network, case, rung):
    folder, outcomes = trained
    assert not any("error" in rank for rank in outcomes[f"{network}-{case}-{rung}"])
    difference = largest_relative_difference(
        weights(folder, f"{network}-{case}-{rung}"), weights(folder, f"{network}-{case}-base-1")
    )
    print(f"{network} {case} {rung}: largest relative difference {difference:.1e} after {STEPS} steps")
    assert difference < TOLERANCE[network]


@pytest.mark.parametrize("network", list(TOLERANCE))
@pytest.mark.parametrize(("case", "rung"), CASES)
def test_same_metrics_and_record_on_every_rank(trained, network, case, rung):
    _, outcomes = trained
    found = agreed_record(outcomes, f"{network}-{case}-{rung}")
    expected = outcomes[f"{network}-{case}-base-1"][0]["record"]["epochs"]
    assert len(found["epochs"]) == len(expected) == 2
    for row, expected_row in zip(found["epochs"], expected, strict=True):
        for name in ("train_loss", "test_loss", "lr"):
            assert row[name] == pytest.approx(expected_row[name], rel=1e-4)
        for name in ("train_accuracy", "test_accuracy"):
            assert row[name] == pytest.approx(expected_row[name], abs=2 / TEST_SAMPLES)
