"""The forecast as figure, tables, words and command."""

import pytest
from command_line import workshop
from drawn import check_layout, printed, words

from workshop_lib.forecast import figures, published, report
from workshop_lib.forecast.figures import draw_forecast
from workshop_lib.forecast.forecast import Settings, forecast, takes_over
from workshop_lib.machine import catalogue

RESNET, VGG = catalogue.model("resnet-50"), catalogue.model("vgg-16")
HOROVOD = catalogue.machine("horovod-p100")
SETTINGS = Settings("horovod", 32)
POINTS = forecast(RESNET, HOROVOD, SETTINGS)


def test_the_figures_show_what_was_forecast():
    figure = draw_forecast(POINTS, report.conditions(RESNET, HOROVOD, SETTINGS))
    left, right = ([list(line.get_ydata()) for line in axes.lines] for axes in figure.axes)
    assert [point.efficiency for point in POINTS] in left and [point.learning for point in POINTS] in left
    assert right[0] == pytest.approx([point.time_to_target_s / 3600 for point in POINTS])
    check_layout(figure)
    without_target = forecast(VGG, HOROVOD, SETTINGS)
    lines = draw_forecast(without_target).axes[1].lines
    assert list(lines[0].get_ydata()) == [point.samples_per_s for point in without_target]
    beside = figures.beside_published(published.beside_forecast())
    assert "whose form was chosen on the held-out tables" in words(beside)
    check_layout(beside)


@pytest.mark.parametrize("model", catalogue.models())
def test_the_tables_fit_into_80_columns(model):
    """Each row keeps its line, and each number its column: also where the output is piped."""
    asked = catalogue.model(model)
    for machine in catalogue.machines().values():
        known = machine.with_speed(asked, 2400.0)
        points = forecast(asked, known, Settings("ddp", 32))
        what_if = report.what_if_table(asked, known, Settings("ddp", 32), 4096)
        for table, rows in ((report.table(points), len(points)), (what_if, 7)):
            shown = printed(table)
            body = shown.split("─\n")[1].splitlines()
            assert len(body) == rows + (table.caption or "").count("\n") + bool(table.caption), shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 s"), (3.2e-5, "32 µs"), (0.0125, "12.5 ms"), (59.94, "59.9 s"), (90, "1.5 min"), (5400, "1.5 h")]
    + [(86_400 * 2000, "2,000 days")],
)
def test_durations(seconds, shown):
    assert report.duration(seconds) == shown


def test_the_answer_in_words():
    assert report.answer(POINTS) == (
        f"On 4,096 devices a step takes {report.duration(POINTS[-1].step_s)}, at an efficiency of "
        f"{POINTS[-1].efficiency:.0%}; communication takes over at {takes_over(POINTS):,}. From 2,048 on, "
        "the global batch is above the critical one."
    )
    assert report.answer(POINTS[:1]).startswith("On 1 device a step takes 164 ms, at an efficiency of 100%")


def invoke(*arguments):
    return workshop("predict", *arguments, COLUMNS="120")


def test_the_command_prints_what_the_library_forecasts(tmp_path):
    how = "vgg-16 horovod-p100 --backend horovod --batch-size 32 --devices 1,512 --out-dir"
    ended = invoke(*how.split(), tmp_path)
    assert ended.exit_code == 0, ended.output
    one, many = forecast(VGG, HOROVOD, SETTINGS, [1, 512])
    for point in (one, many):
        assert f"{point.samples_per_s:,.0f}" in ended.output
    assert report.efficiency(many) in ended.output and "with one thing changed" in ended.output
    assert "twice the batch" in ended.output and "a network 4 times as fast" in ended.output
    assert (tmp_path / "forecast.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_takes_a_laptop_and_a_global_batch():
    laptop = ("--latency-us", 20, "--gb-per-s", 1, "--samples-per-s", 5000)
    ended = invoke("workshop-cnn", "laptop", *laptop, "--global-batch", 64)
    assert ended.exit_code == 0, ended.output
    assert "global batch 64" in ended.output and "64 devices" in ended.output and "128" not in ended.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("alexnet polaris", "model 'alexnet' is not known: choose one of inception-v3"),
        ("vgg-16 mine", "machine 'mine' is not known: choose one of a100-ethernet, aurora, b200"),
        ("vgg-16 polaris --devices 1,x", "--devices '1,x': give whole numbers"),
        ("vgg-16 polaris --global-batch 8 --devices 16", "among 16 devices"),
        ("vgg-16 polaris --compression 0", "compression is 0.0: give a number above 0"),
        ("vgg-16 polaris --fusion-mb nan", "message_bytes is nan"),
        ("vgg-16 polaris --backend fsdp", "backend 'fsdp' has no forecast: choose one of mpi, "),
        ("vgg-16 polaris --gb-per-s 1", "--gb-per-s: only for laptop"),
        ("vgg-16 laptop --gb-per-s 1", "add --latency-us"),
        ("vgg-16 laptop --gb-per-s 0 --latency-us 1", "--gb-per-s 0: give a number above 0"),
        ("workshop-cnn polaris", "measure it on one device and give samples_per_s"),
    ],
)
def test_the_command_says_in_one_sentence_what_is_wrong(arguments, message):
    ended = invoke(*arguments.split())
    assert ended.exit_code == 1
    output = " ".join(ended.output.split())
    assert output.startswith("workshop: ") and message in output
