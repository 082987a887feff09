"""The ring's picture: every step is in it, and it ends with every chunk complete on every rank."""

import pytest

from workshop_lib.notebook import rings


@pytest.mark.parametrize("p", [2, 3, 4, 5])
def test_each_panel_shows_a_step_and_the_last_one_all_sums_everywhere(p):
    panels = {panel.get_title(): panel for panel in rings.ring(p).axes if panel.get_title()}
    assert list(panels) == ["start", *(f"step {step}" for step in range(1, 2 * p - 1))]

    def complete(title):
        return sum(text.get_text() == "all" for text in panels[title].texts)

    assert complete("start") == 0
    assert complete(f"step {p - 1}") == p, "after the first phase, each rank has one complete chunk"
    assert complete(f"step {2 * p - 2}") == p * p


@pytest.mark.parametrize("p", [1, 6])
def test_a_ring_too_small_or_too_large_to_read_is_refused(p):
    with pytest.raises(ValueError, match="use 2 to 5"):
        rings.ring(p)
