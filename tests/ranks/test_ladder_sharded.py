"""The ladder's rungs with sharded states: DeepSpeed's stages of ZeRO and FSDP2, against one process.

Each ragged run has a last step in which the ranks hold different numbers of samples, or none.
"""

import pytest
from ranks.ladder import STEPS, agreed_record, ladder_run, weights, write_small_mnist
from ranks.launching import run_training

from workshop_lib.models import torch_cnn
from workshop_lib.scaling import zero_memory
from workshop_lib.training import KINDS
from workshop_lib.training.equivalence import largest_relative_difference

pytestmark = pytest.mark.timeout(600)

STAGES = {"fsdp": 3} | {f"deepspeed-{stage}": stage for stage in range(4)}
OPTIMIZERS = {"sgd": {"optimizer": "sgd"}, "adam": {"optimizer": "adam", "lr": 0.001}}
WITHIN = {"sgd": 1e-5, "adam": 5e-6}
PARAMETERS = sum(parameter.numel() for parameter in torch_cnn.build(seed=1).parameters())


def sharded_run(folder, rung, optimizer, ranks, **more):
    backend, _, stage = rung.partition("-")
    run = ladder_run(folder, "smooth", "ragged", ranks, backend)
    name = f"{rung}-{optimizer}-{ranks}"
    options = {"zero_stage": int(stage)} if stage else {}
    options |= OPTIMIZERS[optimizer] | {"checkpoint": str(folder / f"{name}.pt")} | more
    return run | {"name": name, "options": run["options"] | options}


@pytest.fixture(scope="module")
def rungs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    write_small_mnist(folder)
    outcomes = {}
    for ranks in (1, 2, 4):
        names = ["base"] if ranks == 1 else STAGES
        runs = [sharded_run(folder, name, optimizer, ranks) for name in names for optimizer in OPTIMIZERS]
        outcomes |= run_training(folder, runs, ranks, timeout_s=300)
    return folder, outcomes


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("rung", list(STAGES))
def test_same_weights_as_one_process(rungs, rung, optimizer, ranks):
    folder, outcomes = rungs
    name = f"{rung}-{optimizer}-{ranks}"
    found = agreed_record(outcomes, name)
    expected = outcomes[f"base-{optimizer}-1"][0]["record"]["epochs"]
    for row, expected_row in zip(found["epochs"], expected, strict=True):
        assert row["test_loss"] == pytest.approx(expected_row["test_loss"], rel=1e-4)
    difference = largest_relative_difference(weights(folder, name), weights(folder, f"base-{optimizer}-1"))
    print(f"{name}: largest relative difference {difference:.1e} after {STEPS} steps")
    assert difference < WITHIN[optimizer]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("rung", list(STAGES))
def test_each_rank_holds_the_share_that_the_formula_gives(rungs, rung, ranks):
    """Adam in fp32: two numbers a weight, and in ZeRO's stages a third, since they step on a copy of it."""
    if (rung, ranks) == ("fsdp", 4):
        return  # FSDP2 shards by rows, and four does not divide the last layer's ten
    _, outcomes = rungs
    found = outcomes[f"{rung}-adam-{ranks}"][0]["record"]["memory"]
    copies = 12 if rung.startswith("deepspeed") and STAGES[rung] else 8
    formula = zero_memory.state_bytes(
        PARAMETERS, ranks, STAGES[rung], parameter_bytes=4, gradient_bytes=4, optimizer_bytes=copies
    )
    for kind in KINDS:
        if kind == "gradients" and STAGES[rung] in (1, 2):
            continue  # DeepSpeed holds whole tensors of which its share is a part
        for found_bytes in found[f"{kind}_bytes"]:
            assert found_bytes == pytest.approx(formula[kind], rel=0.02), kind
