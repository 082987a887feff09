"""What pages and machines.toml say of one GPU is what assets/results/gpu/one_gpu.jsonl holds."""

import json
import statistics

import pytest

from workshop_lib.machine import catalogue
from workshop_lib.paths import ROOT

ROWS = map(json.loads, (ROOT / "assets" / "results" / "gpu" / "one_gpu.jsonl").read_text().splitlines())
SPEED = {row["what"]: row["amount"] / statistics.median(row["s"]) for row in ROWS}


def test_compressing_takes_the_time_that_07c_gives_it():
    ns = f"{1e9 / SPEED['top 1 %, 1024 x 1024']:.2f}"
    page = (ROOT / "notebooks" / "source" / "07c_less_communication.py").read_text()
    assert f'"top 1 %": {ns}' in page


def test_steps_of_few_images_are_as_slow_as_08_and_the_book_say():
    page = (ROOT / "notebooks" / "source" / "08_scaling_curves.py").read_text()
    table = (ROOT / "book" / "measured.md").read_text()
    for batch in (16, 256):
        assert f"{SPEED[f'resnet-50, batch {batch}']:,.0f} " in page
    for batch in (16, 32, 64, 128, 256):
        assert f"| {SPEED[f'resnet-50, batch {batch}']:,.0f}" in table
    assert f"| {SPEED['product, torch.bfloat16'] / SPEED['product, torch.float32']:.1f} |" in table


def test_the_forecasts_share_of_an_h200s_peak_is_the_measured_one():
    h200, resnet = catalogue.machine("h200"), catalogue.model("resnet-50")
    share = SPEED["resnet-50, batch 256"] * resnet.operations / max(h200.peak_flops_per_s.values())
    assert h200.utilization["convolutional"] == pytest.approx(share, abs=0.005)
