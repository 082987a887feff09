"""The figures of 11c show each rank's part, and every word can be read."""

import torch
from drawn import check_layout, texts

from workshop_lib.lessons.context_parallelism import figures
from workshop_lib.lessons.context_parallelism.blocks import contiguous


def zigzag(tokens: int, rank: int, ranks: int) -> torch.Tensor:
    return torch.cat([torch.arange(tokens).chunk(2 * ranks)[at] for at in (rank, 2 * ranks - 1 - rank)])


def test_each_step_of_a_ring_has_one_block_per_rank():
    figure = figures.ring_steps(ranks=4)
    check_layout(figure)
    for step, axes in enumerate(figure.axes):
        places = {
            (text.get_text(), *text.get_position()) for text in axes.texts if text.get_text() in ("0", "1", "2", "3")
        }
        assert places == {(str(rank), (rank - step) % 4 + 0.5, rank + 0.5) for rank in range(4)}


def test_a_message_that_travels_meanwhile_costs_no_time():
    figure = figures.overlap(compute_ms=1.0, send_ms=0.6, steps=4)
    check_layout(figure)
    waiting, together = figure.axes
    assert "5.8 ms" in texts(waiting) and "4.0 ms" in texts(together)
    assert waiting.get_xlim() == together.get_xlim(), "lengths can be compared"
    slow_network = figures.overlap(compute_ms=1.0, send_ms=2.0, steps=4)
    assert "7.0 ms" in texts(slow_network.axes[1])


def test_each_ranks_queries_are_drawn_as_far_as_they_see():
    figure = figures.who_computes({"in order": contiguous, "zigzag": zigzag}, ranks=4)
    check_layout(figure)
    assert [len(axes.patches) - 1 for axes in figure.axes] == [4, 7], "rank 3's two chunks are neighbors"


def test_idle_is_what_is_missing_to_the_busiest_rank():
    figure = figures.busy({"in order": [1.0, 2.0, 3.0, 4.0], "zigzag": [2.5] * 4}, "milliseconds")
    check_layout(figure)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["in order: 38% idle", "zigzag: 0% idle"]
    assert "idle 75%" in texts(figure.axes[0])
