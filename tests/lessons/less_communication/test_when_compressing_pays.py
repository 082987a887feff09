"""When compressing pays, on emulated links."""

import pytest

from workshop_lib import ranks

from lessons.less_communication import links


@pytest.mark.full
def test_compressing_pays_on_a_slow_link_and_costs_on_a_fast_one():
    team = ranks.start(4, machine="ethernet-10g")
    try:
        slow, fast = (
            team.run(links.step_ms, gb_per_s, {"fp32": 0, "top 1 %": 5}, show=False)[0] for gb_per_s in (0.1, 30)
        )
    finally:
        ranks.stop()
    assert slow["top 1 %"] < slow["fp32"] / 5
    # The forward pass of four layers takes 8 ms, the backward pass 16, and compressing 5 ns for each of 4 Mi entries.
    compressing_ms = links.LAYERS * links.WIDTH**2 * 5e-6
    assert fast["top 1 %"] - fast["fp32"] == pytest.approx(compressing_ms, rel=0.1)
    assert fast["fp32"] == pytest.approx(24, abs=1)
