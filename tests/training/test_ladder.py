"""The equivalence ladder: one process with the global batch against several ranks.

Same seed, same order, two epochs of 13 steps. The rungs differ in nothing but the
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
from training.ladder import (
    HOROVOD,
    IN_PYTORCH,
    OVER_MPI,
    REPLICATED,
    SAMPLES,
    TEST_SAMPLES,
    agreed_record,
    cases,
    difference,
    ladder_run,
)

from workshop_lib.training.backends import CHOOSE_TRANSPORT

pytestmark = pytest.mark.timeout(900)  # the first test waits for all training runs

TOLERANCE = {"smooth": 1e-5, "double": 1e-12}


def is_quick(network, case, backend, ranks):
    """In float64, since that shows more; the other files' rungs are in float32."""
    return (network, case) == ("double", "ragged") and (backend not in OVER_MPI or ranks == 2)


CASES = cases(itertools.product(TOLERANCE, SAMPLES, REPLICATED, (2, 4)), is_quick)


VIT = {"network": "vit", "optimizer": "adam", "lr": 0.002, "max_steps": 20}
EVERYWHERE = [*IN_PYTORCH, *OVER_MPI]
IN_DOUBLE = [name for name in EVERYWHERE if name not in ("deepspeed", *HOROVOD)]


def vit_is_quick(network, backend, ranks):
    return ranks == 1 or (network, backend, ranks) == ("double", "ddp", 2)


# ZeRO and Horovod are tried in float32: smooth changes nothing in this network, which has no jumps.
VIT_CASES = [("double", backend, ranks) for backend in IN_DOUBLE for ranks in (2, 4)]
VIT_CASES += [("smooth", backend, 2) for backend in EVERYWHERE]


def vit_run(folder, network, backend, ranks):
    name, exhaustive = f"vit-{network}-{backend}-{ranks}", not vit_is_quick(network, backend, ranks)
    return ladder_run(folder, network, "ragged", ranks, backend, name, VIT, exhaustive=exhaustive)


# Runs that emulate a machine, beside the same runs without: bit for bit the same weights.
EMULATED_CASES = [("double", "ragged", backend, ranks) for backend in ("mpi", "ddp-mpi") for ranks in (2, 4)]


def emulated_is_quick(network, case, backend, ranks):
    return is_quick(network, case, backend, ranks) and ranks == 2


def emulated_run(folder, network, case, backend, ranks):
    name = f"emulated-{network}-{case}-{backend}-{ranks}"
    machine = {"machine": "polaris"}
    exhaustive = not emulated_is_quick(network, case, backend, ranks)
    return ladder_run(folder, network, case, ranks, backend, name, machine, exhaustive=exhaustive)


def training_runs(folder):
    runs = {
        1: [
            ladder_run(folder, *of_base, 1, "base", exhaustive=not is_quick(*of_base, "base", 1))
            for of_base in itertools.product(TOLERANCE, SAMPLES)
        ]
    }
    runs[1] += [vit_run(folder, "double", "base", 1), vit_run(folder, "smooth", "base", 1) | {"exhaustive": True}]
    for ranks in (2, 4):
        runs[ranks] = [
            ladder_run(folder, *rung[:2], ranks, rung[2], exhaustive=not is_quick(*rung, ranks))
            for rung in itertools.product(TOLERANCE, SAMPLES, REPLICATED)
        ]
        runs[ranks] += [vit_run(folder, *case) for case in VIT_CASES if case[2] == ranks]
        runs[ranks] += [emulated_run(folder, *case) for case in EMULATED_CASES if case[3] == ranks]
    return runs


@pytest.mark.parametrize(("network", "case", "backend", "ranks"), CASES)
def test_same_weights_and_metrics_as_one_process(trained, network, case, backend, ranks):
    folder, outcomes = trained
    name = f"{network}-{case}-{backend}-{ranks}"
    found = agreed_record(outcomes, name)
    assert difference(folder, name, f"{network}-{case}-base-1") < TOLERANCE[network]
    if backend in CHOOSE_TRANSPORT or backend in OVER_MPI:
        assert found["what"]["comm"] == ("mpi" if backend in OVER_MPI else "gloo")
    expected = outcomes[f"{network}-{case}-base-1"][0]["record"]["epochs"]
    assert len(found["epochs"]) == len(expected) == 2
    for row, expected_row in zip(found["epochs"], expected, strict=True):
        for metric in ("train_loss", "test_loss", "lr"):
            assert row[metric] == pytest.approx(expected_row[metric], rel=1e-4)
        for metric in ("train_accuracy", "test_accuracy"):
            assert row[metric] == pytest.approx(expected_row[metric], abs=2 / TEST_SAMPLES)


@pytest.mark.parametrize(("network", "backend", "ranks"), cases(VIT_CASES, vit_is_quick))
def test_a_vision_transformer_has_the_same_weights_as_on_one_process(trained, network, backend, ranks):
    folder, outcomes = trained
    name = f"vit-{network}-{backend}-{ranks}"
    assert agreed_record(outcomes, name)["what"]["network"] == "vit"
    assert difference(folder, name, f"vit-{network}-base-1") < TOLERANCE[network]


@pytest.mark.parametrize(("network", "case", "backend", "ranks"), cases(EMULATED_CASES, emulated_is_quick))
def test_emulation_leaves_every_bit_of_the_weights_as_it_is(trained, network, case, backend, ranks):
    folder, outcomes = trained
    name = f"{network}-{case}-{backend}-{ranks}"
    found = agreed_record(outcomes, f"emulated-{name}")
    assert found["what"]["machine"] == "polaris"
    assert difference(folder, f"emulated-{name}", name) == 0
    assert found["weights_sha256"] == agreed_record(outcomes, name)["weights_sha256"]
