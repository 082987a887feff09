"""Floating-point operations are those counted by hand, and a run's share of the peak is what the record says."""

import json

import pytest

from workshop_lib.training import flops, trainer
from workshop_lib.training.options import TrainOptions


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A file of its own for what is measured here."""
    monkeypatch.setattr(flops, "KEPT", tmp_path / "compute.json")
    return tmp_path / "compute.json"


def measured(peak: float) -> str:
    return json.dumps({"peaks": {flops._processor(1): peak}, "flops_per_sample": {"workshop": 1000}})


def record(speed=2000.0, **what):
    defaults = {"network": "workshop", "threads_per_rank": 1, "world_size": 2, "oversubscribed": False, "machine": None}
    return {"what": defaults | what, "where": {"device": "cpu"}, "epochs": [{"samples_per_s": speed}]}


def test_a_sample_takes_what_its_layers_take_forward_and_backward():
    first, second, linear = 2 * 25 * 8 * 24 * 24, 2 * 25 * 8 * 56 * 8 * 8, 2 * 896 * 10
    # Backward is twice forward, but nobody needs the gradient of the pixels.
    assert flops.per_sample("workshop") == 2 * first + 3 * (second + linear)


def test_a_layer_moves_its_input_weights_and_output_once():
    linear = flops.layers("workshop", batch=4, repeats=1)[-1]
    assert linear.layer == "Linear 896 to 10"
    assert linear.flops == 4 * 2 * 896 * 10
    assert linear.moved_bytes == 4 * (4 * 896 + 4 * 10 + 896 * 10 + 10)


def test_the_share_of_the_peak_is_that_of_all_ranks(kept):
    kept.write_text(measured(peak=1e7))
    used = flops.compute(record(), (28, 28))
    assert used == {"flops_per_sample": 1000, "peak_flops_per_s": 2e7, "utilization": pytest.approx(0.1)}


@pytest.mark.parametrize(
    "what", [{"oversubscribed": True}, {"threads_per_rank": 2}, {"network": "classic"}, {"machine": "h100"}]
)
def test_it_is_unknown_where_the_peak_does_not_apply(kept, what):
    kept.write_text(measured(peak=1e7))
    assert flops.compute(record(**what), (28, 28)) is None


def test_it_is_unknown_for_images_of_another_size(kept):
    kept.write_text(measured(peak=1e7))
    assert flops.compute(record(), (24, 20)) is None


@pytest.mark.parametrize("text", [None, "", "[]", "{"])
def test_it_is_unknown_without_a_measurement(kept, text):
    if text is not None:
        kept.write_text(text)
    assert flops.compute(record(), (28, 28)) is None


def test_a_run_has_its_share_once_the_peak_is_measured(kept, small_mnist):
    def train():
        return trainer.train(TrainOptions(max_steps=2, data_dir=small_mnist))

    assert "compute" not in train()
    limits = flops.limits(repeats=2)  # with as many threads as the training has set
    used = train().get("compute")
    assert used is None or used["peak_flops_per_s"] == limits.flops_per_s
    assert used is None or used["utilization"] > 0
