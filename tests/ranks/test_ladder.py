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

import pytest
from ranks.ladder import SAMPLES, STEPS, TEST_SAMPLES, agreed_record, ladder_run, weights, write_small_mnist
from ranks.launching import run_training

from workshop_lib.training.equivalence import largest_relative_difference

TOLERANCE = {"smooth": 1e-5, "double": 1e-12}


@pytest.fixture(scope="module")
def rungs(tmp_path_factory):
    """Outcomes of all runs, and the folder with their weights."""
    folder = tmp_path_factory.mktemp("ladder")
    write_small_mnist(folder)
    outcomes = {}
    for ranks, names in ((1, ["base"]), (2, ["mpi", "ddp"]), (4, ["mpi", "ddp"])):
        runs = [
            ladder_run(folder, network, case, ranks, name)
            for network in TOLERANCE
            for case in SAMPLES
            for name in names
        ]
        outcomes |= run_training(folder, runs, ranks)
    return folder, outcomes


@pytest.mark.parametrize("network", list(TOLERANCE))
@pytest.mark.parametrize("case", list(SAMPLES))
@pytest.mark.parametrize("rung", ["mpi-2", "ddp-2", "mpi-4", "ddp-4"])
def test_same_weights_as_one_process(rungs, network, case, rung):
    folder, outcomes = rungs
    assert not any("error" in rank for rank in outcomes[f"{network}-{case}-{rung}"])
    difference = largest_relative_difference(
        weights(folder, f"{network}-{case}-{rung}"), weights(folder, f"{network}-{case}-base-1")
    )
    print(f"{network} {case} {rung}: largest relative difference {difference:.1e} after {STEPS} steps")
    assert difference < TOLERANCE[network]


@pytest.mark.parametrize("network", list(TOLERANCE))
@pytest.mark.parametrize("case", list(SAMPLES))
@pytest.mark.parametrize("rung", ["mpi-2", "ddp-2", "mpi-4", "ddp-4"])
def test_same_metrics_and_record_on_every_rank(rungs, network, case, rung):
    _, outcomes = rungs
    found = agreed_record(outcomes, f"{network}-{case}-{rung}")
    expected = outcomes[f"{network}-{case}-base-1"][0]["record"]["epochs"]
    assert len(found["epochs"]) == len(expected) == 2
    for row, expected_row in zip(found["epochs"], expected, strict=True):
        for name in ("train_loss", "test_loss", "lr"):
            assert row[name] == pytest.approx(expected_row[name], rel=1e-4)
        for name in ("train_accuracy", "test_accuracy"):
            assert row[name] == pytest.approx(expected_row[name], abs=2 / TEST_SAMPLES)
