"""Horovod with Keras 3: what the stock optimizer does not do, and what the adapter does."""

import json
from pathlib import Path

import pytest
from training.launching import run_script

pytestmark = pytest.mark.full

pytest.importorskip("horovod", reason="Horovod is not installed")

SCRIPT = Path(__file__).with_name("keras_adapter.py")


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory):
    """By case, what each rank found."""
    folder = tmp_path_factory.mktemp("keras")
    run_script(2, SCRIPT, folder, timeout_s=200)
    return json.loads((folder / "found.json").read_text())


def test_the_stock_optimizer_averages_nothing_and_says_nothing(on_two_ranks):
    """The trap: each rank takes its own gradient, 2 or 8. Should this fail, Horovod has been mended."""
    assert on_two_ranks["stock"] == pytest.approx([1 - 0.1 * 2, 1 - 0.1 * 8])


def test_ours_averages(on_two_ranks):
    assert on_two_ranks["ours"] == pytest.approx([1 - 0.1 * 5] * 2)


def test_a_rank_may_have_built_more_layers_than_the_others(on_two_ranks):
    """Horovod's own names for the gradients would differ, and both ranks wait until the test's limit."""
    first, second = on_two_ranks["with_a_layer_more"]
    assert first == second
    assert first[0] == pytest.approx(1 - 0.1 * 5)


def test_weights_and_optimizer_state_are_broadcast(on_two_ranks):
    first, second = on_two_ranks["broadcast"]
    assert first["alone"] != second["alone"]
    assert first["after"] == second["after"] == first["alone"]


def test_warm_up_and_schedules(on_two_ranks):
    assert on_two_ranks["warm_up"] == [[0.1, 0.2, 0.3, 0.4, 0.4, 0.4]] * 2
    assert on_two_ranks["schedule"] == [0.05] * 2


def test_metrics_are_averaged(on_two_ranks):
    found = on_two_ranks["metrics"]
    mean = sum(rank["alone"] for rank in found) / 2
    assert found[0]["alone"] != found[1]["alone"]
    assert [rank["averaged"] for rank in found] == pytest.approx([mean] * 2)


def test_a_loaded_model_is_wrapped_again_and_goes_on_with_its_momentum(on_two_ranks):
    found = on_two_ranks["save_and_load"]
    assert found[0]["loaded"] == found[1]["loaded"] == pytest.approx(found[0]["whole"])


def test_wrapping_twice_is_refused(on_two_ranks):
    assert all("already" in text for text in on_two_ranks["wrapped_twice"])


def test_the_network_of_more_classes_has_the_torch_network_s_weights(on_two_ranks):
    assert on_two_ranks["with_47_classes_of_another_shape"] == [True, True]
