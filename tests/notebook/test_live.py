"""What the notebook shows of a training run, from hand-made messages of its ranks."""

import re
import xml.etree.ElementTree as ET

import pytest
from drawn import Shown

from workshop_lib.notebook import charts, live
from workshop_lib.notebook.training_text import TrainingText
from workshop_lib.ranks.call.output import Row
from workshop_lib.training import progress, publisher
from workshop_lib.training.callbacks import StepEvent
from workshop_lib.training.progress import Point, Progress
from workshop_lib.training.timeline import timeline

INFO = {"epochs": 2, "steps_per_epoch": 100, "oversubscribed": False, "clock_origin_s": 0.0}
ROW = {"epoch": 1, "test_accuracy": 0.9712, "train_loss": 0.21, "seconds": 3.0, "samples_per_s": 20000.0}


def trace(steps, rank):
    """Steps of 10 ms; rank 1 comes 3 ms late to the averaging."""
    came_s = 0.005 + 0.003 * (rank == 1)
    return [(k, 0.01 * k, 0.01 * k + 0.01, ((0.01 * k + came_s, 0.01 * k + 0.009),)) for k in steps]


def at(step, epoch=1, **more):
    return {"epoch": epoch, "step": step, "steps_per_epoch": 100, "lr": 0.1, "samples_per_s": 100.0} | more


def point(step, sums, epoch=1):
    done = (epoch - 1) * INFO["steps_per_epoch"] + step
    return {"done": done, "sums": sums} | at(step, epoch, lr=0.05, samples_per_s=12345.6)


def message(rank, points, **more):
    last = points[-1]["done"] if points else 1
    return {"info": INFO, "points": points, "trace": trace(range(max(1, last - 20), last), rank)} | more


def training(n=2, points=10, **more):
    """What n ranks have published after a number of points of 10 steps each."""

    counts = range(1, points + 1)
    of_ranks = [[point(10 * k, [320 * k / (rank + 1), 600 * k, 640 * k]) for k in counts] for rank in range(n)]
    return [message(rank, of_rank, **more) for rank, of_rank in enumerate(of_ranks)]


def test_the_loss_over_all_ranks_weighs_each_sample_the_same():
    seen = Progress()
    seen.take([message(0, [point(1, [30.0, 5, 10])]), message(1, [point(1, [10.0, 10, 30])])])
    assert seen.curve == [Point(1, 0.05, [[30.0, 5, 10], [10.0, 10, 30]])]
    assert seen.curve[0].of_ranks()[-1] == [40.0, 15, 40]
    assert seen.figures() == ["loss 1.000", "learning rate 0.05", "12,346 samples/s"]


def test_without_widgets_a_training_leaves_its_charts(monkeypatch):
    shown = Shown()
    monkeypatch.setattr(live, "display", shown.display)
    view = live.NotebookView(2, trains=True)
    view.update(training(epochs=[ROW]), 1.0, [0, 1])
    view.close()
    drawn = shown[0]["text/html"]
    assert drawn.count("<svg") == 2 and "Training loss" in drawn and 'data-strip="1"' in drawn
    live.NotebookView(2).close()
    assert len(shown) == 1, "nothing was trained"


def test_points_are_of_the_same_steps_on_all_ranks_and_count_from_the_point_before():
    seen = Progress()
    both = [point(4, [4.0, 1, 8]), point(8, [6.0, 5, 16])]
    assert seen.take([message(0, both), message(1, both[:1])])
    assert [p.done for p in seen.curve] == [4], "rank 1 has not published step 8 yet"
    assert seen.take([message(0, both), message(1, both)])
    assert seen.curve[-1] == Point(8, 0.05, [[2.0, 4, 8], [2.0, 4, 8]])
    assert not seen.take([message(0, both), message(1, both)]), "nothing new"


def test_sums_begin_again_with_an_epoch():
    seen = Progress()
    points = [point(100, [50.0, 900, 1000]), point(10, [3.0, 95, 100], epoch=2)]
    seen.take([message(0, points)])
    assert seen.curve[-1] == Point(110, 0.05, [[3.0, 95, 100]])


def curve_of(steps, every):
    """The curve of a run of one rank that published every so many steps, and the last one."""
    seen = Progress()
    info = INFO | {"steps_per_epoch": steps}
    for k in sorted({1, *range(every, steps + 1, every), steps}):
        seen.take([message(0, [point(k, [float(k), k, 2 * k])]) | {"info": info}])
    return seen.curve


@pytest.mark.parametrize(("steps", "every"), [(59, 1), (100_000, 16)])
def test_a_long_curve_is_thinned_evenly_from_its_first_step_on(steps, every):
    curve = curve_of(steps, every)
    spans = [after.done - before.done for before, after in zip(curve, curve[1:], strict=False)][1:-1]
    assert curve[0] == Point(1, 0.05, [[1.0, 1, 2]]), "the first step is still there"
    assert curve[-1].done == steps
    assert sum(p.sums[0][2] for p in curve) == 2 * steps, "no sample is lost"
    assert min(steps // every, 100) / 2 <= len(curve) <= 100
    assert max(spans) <= 2 * min(spans), "evenly spread"


def test_the_text_line_has_the_same_facts(capsys):
    view = TrainingText(2)
    view.update(training(), 1.0, [0, 1])
    line = view.bar.postfix
    assert "loss 0.375, learning rate 0.05, 12,346 samples/s" in line
    assert "computing 75%, waiting 15%, communicating 10%" in line
    assert view.bar.n == 100
    view.update(training(epochs=[ROW]), 1.1, [])
    view.close()
    assert "epoch 1: train loss 0.2100, test accuracy 97.12%" in capsys.readouterr().out


def test_one_rank_alone_shows_its_own_step():
    view = TrainingText(1)
    view.update([{"info": INFO}], 0.0, [0])
    view.update([{"info": INFO, "step": StepEvent(at(20), {"loss": lambda: 0.5})}], 0.0, [0])
    assert view.bar.postfix == "loss 0.500, learning rate 0.1, 100 samples/s"
    assert view.bar.n == 20
    view.close()


def published(every_s, monkeypatch, pace_s):
    """A Publisher on a clock that goes on by pace_s a step, with what it has sent."""
    clock = [0.0]
    monkeypatch.setattr(publisher.time, "monotonic", lambda: clock[0])
    sender = publisher.Publisher(list, hz=1 / every_s)
    sent = []
    sender.publish = sent.append
    sender.on_start(INFO)
    for step in range(1, 101):
        clock[0] += pace_s
        sender.on_step(StepEvent(at(step), {"sums": lambda step=step: [0.0, 0.0, step], "trace": list}))
    return sender, sent


@pytest.mark.parametrize("pace_s", [0.0101, 0.0149])
def test_ranks_of_nearly_the_same_pace_publish_the_same_steps(monkeypatch, pace_s):
    _, sent = published(0.25, monkeypatch, pace_s)
    steps = [data["points"][-1]["step"] for data in sent if "points" in data]
    assert steps == [1, 16, 32, 48, 64, 80, 96]
    assert all("loss" not in point for data in sent for point in data.get("points", []))


def test_slow_steps_are_all_published_and_the_end_of_an_epoch_too(monkeypatch):
    sender, sent = published(0.25, monkeypatch, 0.4)
    assert [data["points"][-1]["step"] for data in sent[1:]] == list(range(1, 101))
    assert len(sent[-1]["points"]) == publisher.POINTS_SENT
    sender.on_epoch(ROW)
    assert sent[-1]["epochs"] == [ROW]
    assert [p["step"] for p in sent[-1]["points"]] == list(range(93, 101)), "no step twice"


def drawn(svg):
    """The drawing as an element tree; fails if it is not well-formed."""
    return ET.fromstring(svg)


def texts(svg):
    return ["".join(element.itertext()) for element in drawn(svg).findall(".//{*}text")]


def marked(svg, attribute):
    """The elements that have this attribute."""
    return [element for element in drawn(svg).iter() if element.get(attribute)]


def view_of(data, monkeypatch, n=2, **more):
    monkeypatch.setattr(live, "display", Shown().display)
    view = live.LiveView(n, **more)
    view.update(data, 1.0, list(range(n)))
    return view


def test_what_a_training_leaves_needs_no_kernel_and_tells_how_it_ended(monkeypatch, capsys):
    """ranks that still run when the view closes were given up; a stop cuts the run short; an error too."""

    def left(running=(), stop=False, interrupt=False, **more):
        view = view_of(training(**more), monkeypatch)
        view.stop_requested = stop
        view.interrupted = interrupt
        view.update(training(**more), 12.3, list(running))
        view.close()
        assert not view.button.disabled and view.button.comm is not None, "it may have the keyboard's focus"
        buttons.append(view.button.description)
        return view.shown[-1]

    buttons: list[str] = []
    ended = left(epochs=[ROW])
    assert "12 s · epoch 1 of 2, step 100 of 100" in ended and "test accuracy 97.12% · done" in ended
    assert len(marked(f"<html>{ended}</html>", "data-rank")) == 6 and "<svg" in ended
    for ended in (left(running=[1], epochs=[ROW], stop=True), left(stop=True)):
        assert "· stopped" in ended and "running" not in ended and "done" not in ended
    assert "· interrupted" in (ended := left(interrupt=True)) and "error" not in ended
    for ended in (left(), left(running=[1])):
        assert "· ended by an error" in ended and "running" not in ended
    assert buttons == ["Done ✓", "Stopped ✓", "Stopped ✓", "Ended", "Ended", "Ended"]
    view = view_of([{}, {}], monkeypatch)
    view.close()
    assert view.shown[-1] == "" and view.box.comm is None, "nothing is left of a call that does not train"
    view = view_of([{}, {}], monkeypatch)
    view.button.click()
    view.close()
    assert view.button.description == "Stopped ✓" and view.button.comm is not None, "unless it was stopped"
    assert "epoch 1: train loss 0.2100" in capsys.readouterr().out


@pytest.mark.parametrize("n", [2, 20])
def test_a_training_has_its_room_in_the_page_before_its_first_step(monkeypatch, n):
    view = view_of([{}] * n, monkeypatch, n, trains=True)
    before = re.findall(r'viewBox="([^"]*)"', view.curves.value)
    view.update(training(n), 2.0, list(range(n)))
    assert before == re.findall(r'viewBox="([^"]*)"', view.curves.value + view.strips.value)
    assert view_of([{}] * n, monkeypatch, n).curves.value == ""


def test_the_charts_name_their_axes_units_and_colors(monkeypatch):
    view = view_of(training(epochs=[ROW]), monkeypatch)
    axes = {"Training loss (cross-entropy)", "Accuracy in %", "Learning rate", "step"}
    assert axes | {"each rank", "all ranks together", "test, after an epoch", "97.12"} <= set(texts(view.curves.value))
    kinds = {"computing", "waiting", "communicating", "60%", "30%", "90%"}
    rows = {"rank 0", "rank 1", "time in ms", "The last 4 steps on each rank", "step 96"}
    assert kinds | rows <= set(texts(view.strips.value))
    assert "97.12%" in view.status.value
    assert "epoch 1 of 2, step 100 of 100" in view.status.value


def test_communication_inside_backward_is_called_by_its_name():
    rows = timeline([[(k, 0.01 * k, 0.01 * k + 0.01, ()) for k in range(5)]] * 2)
    svg = charts.strips(rows, rows, "one")
    assert charts.PURPLE in svg
    assert "computing and communicating" in texts(svg)
    assert "waiting" not in " ".join(texts(svg))


def test_among_many_ranks_those_that_computed_longest_are_drawn(monkeypatch):
    data = training(41)
    for rank, message in enumerate(data):
        came_s = 0.008 if rank == 30 else 0.005
        message["trace"] = [(k, 0.01 * k, 0.01 * k + 0.01, ((0.01 * k + came_s, 0.01 * k + 0.009),)) for k in range(4)]
    view = view_of(data, monkeypatch, 41)
    ranks = [int(strip.get("data-strip")) for strip in marked(view.strips.value, "data-strip")]
    assert ranks[0] == 30 and len(ranks) == charts.MAX_RANKS
    assert "The last 4 steps on 16 of 41 ranks" in texts(view.strips.value)
    assert len(marked(view.curves.value, "data-rank")) == 2 * (charts.MAX_RANKS + 1)


def test_ranks_without_samples_leave_gaps_and_no_error():
    curve = [Point(1, 0.1, [[0.5, 1, 1], [0.0, 0, 0]]), Point(2, 0.1, [[0.4, 1, 1], [0.0, 0, 0]])]
    drawn(charts.curves(curve, [], 100))


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("sound", [0, 3])
def test_a_training_that_diverges_is_drawn_as_far_as_its_loss_is_a_number(monkeypatch, broken, sound):
    data = training(epochs=[ROW | {"train_loss": None, "test_loss": None}])
    for of_rank in data:
        for later in of_rank["points"][sound:]:
            later["sums"][0] = broken
    svg = view_of(data, monkeypatch).curves.value
    assert "nan" not in svg and "inf" not in svg
    loss = next(line for line in marked(svg, "data-rank") if line.get("data-rank") == "all")
    assert len(loss.get("points").split()) == sound
    view = TrainingText(2)
    view.update(data, 1.0, [])
    assert "loss nan" in view.bar.postfix or "loss inf" in view.bar.postfix
    view.close()


def test_an_epoch_without_a_finite_loss_has_its_line():
    assert "epoch 1: train loss not finite, test accuracy 97.12%" in progress.epoch_line(ROW | {"train_loss": None})


def test_speeds_of_emulated_ranks_are_called_emulated_in_each_line():
    seen = Progress()
    seen.take(training(epochs=[ROW], info=INFO | {"machine": "polaris"}))
    assert seen.figures()[-1] == "12,346 samples/s (emulated)"
    assert progress.epoch_line(ROW, seen.emulated).endswith("20,000 samples/s (emulated)")


def test_a_live_view_has_words_in_its_place_until_its_call_ends(monkeypatch):
    shown = Shown()
    monkeypatch.setattr(live, "display", shown.display)
    view = live.LiveView(2)
    view.update([{}, {}], 1.0, [0, 1])
    box, _, below = shown
    assert box._repr_mimebundle_()["text/plain"] == "Live view of the ranks"
    assert "If the kernel was restarted, the ranks ended with it" in below
    view.update([{}, {}], 2.0, [])
    view.close()
    assert shown[-1] == ""


def test_drawing_takes_a_small_share_of_a_core(monkeypatch):
    """With a drawing that takes 20 ms, the next one comes 2 s later."""
    clock = iter([0.0, 0.020])
    monkeypatch.setattr(live.time, "thread_time", lambda: next(clock))
    assert view_of(training(), monkeypatch).next_redraw_s == pytest.approx(1.0 + 2.0)


def test_a_call_that_does_not_train_shows_only_its_button_and_status_and_a_late_training_its_bar(monkeypatch):
    view = view_of([{}, {}], monkeypatch)
    assert (view.meter.layout.display, view.curves.value) == ("none", "")
    assert view.status.value == "1 s · 2 of 2 ranks running"
    view.button.click()
    assert view.stop_requested
    view.update(training(), 2.0, [0, 1])
    assert (view.meter.layout.display, view.meter.max, view.meter.value) == (None, 200, 100)


def test_a_log_gets_lines_of_progress_now_and_then_and_no_bar(capsys):
    view, info = TrainingText(1), {"epochs": 1, "steps_per_epoch": 200}
    for number in range(1, 5):
        view.update([{"info": info, "step": at(50 * number, steps_per_epoch=200, loss=0.5)}], 6.0 * number, [0])
    view.close()
    text = capsys.readouterr().out
    assert "\r" not in text
    assert [line.split(":")[0] for line in text.splitlines()] == ["step 100 of 200", "step 200 of 200"]


@pytest.mark.parametrize("kind", [live.NotebookView, live.LiveView])
def test_a_row_of_what_ranks_display_is_updated_in_its_place(monkeypatch, capsys, kind):
    shown = []

    class Handle:
        def update(self, bundle, raw):
            shown.append(("updated", bundle["text/plain"]))

    monkeypatch.setattr(live, "display", lambda bundle, **_: shown.append(bundle["text/plain"]) or Handle())
    part = {"data": {"text/plain": "x"}, "metadata": {}}
    row, view = Row([0, 1], {0: part}), kind(2)
    view.output(["[0] before", row])
    row.parts[1] = part
    view.output([row, "[1] after"])
    assert shown == ["[0] x", ("updated", "[0] x\n[1] x")]
    assert capsys.readouterr().out == "[0] before\n[1] after\n"


def test_the_lines_that_ranks_are_writing_are_in_the_live_view_and_gone_when_they_are_ended(monkeypatch):
    view = view_of([{}, {}], monkeypatch)
    view.unfinished(["[0] 10% |#  |", "[1] <b>"])
    view.update([{}, {}], 60.0, [0, 1])
    assert "[0] 10% |#  |\n[1] &lt;b&gt;" in view.lines.value
    view.unfinished([])
    view.update([{}, {}], 60.1, [])
    assert view.lines.value == ""


def test_a_training_says_what_it_does_before_its_first_step(monkeypatch):
    view = view_of([{}, {}], monkeypatch, trains=True)
    assert view.status.value == "1 s · starting · 2 of 2 ranks running"
    view.update([{"phase": "importing PyTorch"}] * 2, 3.0, [0, 1])
    assert view.status.value == "3 s · importing PyTorch · 2 of 2 ranks running"
    button = [type(each) for each in view.box.children[0].children]
    view.update(training(points=5), 10.0, [0, 1])
    assert "importing" not in view.status.value
    assert [type(each) for each in view.box.children[0].children] == button, "Stop stays in its place"
