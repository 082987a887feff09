"""The bars of a step and its timelines show every rank, and what was measured on it."""

import pytest
from drawn import check_layout, texts
from matplotlib.colors import to_hex

from workshop_lib.lessons.ddp import figures as steps
from workshop_lib.lessons.pipelines import figures as pipelines_figures
from workshop_lib.lessons.pipelines import orders as pipeline_orders
from workshop_lib.lessons.synchronous_sgd import figures as synchronous_sgd_figures
from workshop_lib.notebook.figures import STEP_LOOKS
from workshop_lib.ranks.timeline import timeline

EVEN = [[6.0, 1.0, 0.5], [6.5, 0.5, 0.5]]  # computing, waiting and Allreduce in one step of each rank
UNEVEN = [[6.0, 9.0, 0.5], [15.0, 0.0, 0.5]]


def test_bars_show_the_step_of_median_length_and_panels_share_one_axis():
    even = [[[2 * each for each in of_rank], of_rank, [0.1, 0.0, 0.1]] for of_rank in EVEN]
    figure = synchronous_sgd_figures.step_times({"even": even, "uneven": [[of_rank] for of_rank in UNEVEN]})
    check_layout(figure)
    upper, lower = figure.axes
    for axes, of_ranks in ((upper, EVEN), (lower, UNEVEN)):
        drawn = [(bar.get_x(), bar.get_width(), to_hex(bar.get_facecolor()).upper()) for bar in axes.patches]
        wanted = []
        for times in of_ranks:
            left = 0.0
            for milliseconds, (color, _) in zip(times, STEP_LOOKS.values(), strict=True):
                wanted.append((left, milliseconds, color))
                left += milliseconds
        assert drawn == wanted
    assert upper.get_xlim() == lower.get_xlim(), "lengths can be compared"
    assert texts(lower) == ["6.0", "9.0", "15.0"], "no number where there is no room"


def times(end: float, messages: list) -> dict:
    return {"backward": 40.0, "ready": [10.0, 25.0, 40.0], "messages": messages, "end": end}


AFTER = [times(70.0, [[41.0, 69.0]]), times(71.0, [[43.0, 70.0]])]
DURING = [times(55.0, [[11.0, 20.0], [26.0, 38.0], [41.0, 54.0]])] * 2


def test_each_message_is_drawn_from_sent_to_arrived():
    figure = steps.overlap({"after": AFTER, "during": DURING})
    upper, lower = figure.axes
    bars = [patch for patch in lower.patches if to_hex(patch.get_facecolor()) == steps.MESSAGE.color.lower()]
    assert [(bar.get_x(), bar.get_width()) for bar in bars[:3]] == [(11.0, 9.0), (26.0, 12.0), (41.0, 13.0)]
    assert len(bars) == 6
    assert texts(upper) == ["70 ms", "71 ms"], "the end"
    assert upper.get_xlim() == lower.get_xlim(), "lengths can be compared"
    check_layout(figure)


def test_of_many_turns_the_middle_one_is_drawn_and_the_slowest_rank_counts():
    by_rank = [
        [{"after": times(end, []), "during": times(end - 10, [])} for end in ends]
        for ends in ((60, 90, 70), (61, 80, 75))
    ]
    assert steps.durations_ms(by_rank)["after"].tolist() == [61, 90, 75]
    figure = steps.typical_overlap(by_rank)
    assert [texts(axes) for axes in figure.axes] == [["70 ms", "75 ms"], ["60 ms", "65 ms"]]


@pytest.mark.parametrize(
    ("draw", "panels"),
    [
        (synchronous_sgd_figures.step_times, {}),
        (synchronous_sgd_figures.step_times, {"nobody": []}),
        (steps.overlap, {}),
        (steps.overlap, {"nothing": []}),
        (steps.steps, {"nothing": timeline([[], []])}),
        (pipelines_figures.pipeline, {}),
        (pipelines_figures.pipeline, {"nobody": []}),
    ],
)
def test_nothing_to_draw_is_refused(draw, panels):
    with pytest.raises(ValueError, match="at least one"):
        draw(panels)


# (step, start, end, (when it came to the meeting, when it left))
ALIKE = [[(1, 0.0, 0.010, ((0.008, 0.009),))], [(1, 0.0, 0.010, ((0.006, 0.009),))]]
LATE = [[(1, 0.0, 0.030, ((0.008, 0.029),))], [(1, 0.0, 0.030, ((0.028, 0.029),))]]


def test_a_straggler_is_the_rank_without_waiting():
    figure = steps.steps({"alike": timeline(ALIKE), "one late": timeline(LATE)})
    upper, lower = figure.axes
    assert upper.get_xlim() == lower.get_xlim(), "lengths can be compared"
    waiting = to_hex(steps.TIMELINE_LOOKS["waiting"][0])
    drawn = [bar for bar in lower.patches if to_hex(bar.get_facecolor()) == waiting and bar.get_width() > 1e-9]
    assert [(bar.get_x(), bar.get_width()) for bar in drawn] == [(pytest.approx(8), pytest.approx(20))]
    assert texts(lower) == ["waits 67%", "waits 0%"]
    check_layout(figure)


def test_each_operation_of_a_pipeline_is_drawn_with_its_number_and_idle_time_is_told():
    spans = pipeline_orders.simulate([pipeline_orders.gpipe(rank, 2, 2) for rank in range(2)]).spans
    figure = pipelines_figures.pipeline({"simulated": spans}, unit="1: a forward")
    [axes] = figure.axes
    looks = {look.color.lower(): kind for kind, (look, *_) in pipelines_figures.CHUNK_LOOKS.items()}
    bars = [(looks[color], bar) for bar in axes.patches if (color := to_hex(bar.get_facecolor())) in looks]
    drawn = sorted((round(bar.get_y()), bar.get_x(), kind, bar.get_width()) for kind, bar in bars)
    assert drawn == sorted((rank, s.start, s.kind, s.end - s.start) for rank, row in enumerate(spans) for s in row)
    assert texts(axes) == ["0", "1", "0", "1", "idle 33%"] * 2
    assert axes.get_title(loc="left") == "simulated: 33% idle"
    check_layout(figure)
