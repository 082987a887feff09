"""The forecast as figure, tables and command."""

import pytest
from command_line import workshop
from drawn import check_layout, printed, words

from workshop_lib.lessons.forecasting import figures, published, report
from workshop_lib.lessons.forecasting.figures import draw_forecast as draw
from workshop_lib.lessons.forecasting.forecast import Settings, forecast, takes_over
from workshop_lib.machine import catalogue

RESNET, HOROVOD = catalogue.model("resnet-50"), catalogue.machine("horovod-p100")
SETTINGS = Settings("horovod", 32)
POINTS = forecast(RESNET, HOROVOD, SETTINGS)
CONDITIONS = report.conditions(RESNET, HOROVOD, SETTINGS)


def lines_of(axes):
    return [list(line.get_ydata()) for line in axes.lines]


def test_the_figures_show_what_was_forecast():
    figure = draw(POINTS, CONDITIONS)
    left, right = figure.axes
    for values in (
        [p.efficiency for p in POINTS],
        [p.learning for p in POINTS],
        [p.efficiency * p.learning for p in POINTS],
    ):
        assert values in lines_of(left)
    hours = [point.time_to_target_s / 3600 for point in POINTS]
    assert lines_of(right)[:2] == [pytest.approx(hours), pytest.approx([hours[0] / p.devices for p in POINTS])]
    check_layout(figure)
    without_target = forecast(catalogue.model("vgg-16"), HOROVOD, SETTINGS)
    assert [point.samples_per_s for point in without_target] in lines_of(draw(without_target, CONDITIONS).axes[1])
    with pytest.raises(ValueError, match="no points to draw"):
        draw([])


def test_published_beside_forecast_is_drawn():
    rows = published.beside_forecast()
    parts = [rows[rows["table"].isin(tables)] for tables in (published.FITTED, published.HELD_OUT)]
    figure = figures.beside_published(rows)
    assert "whose form was chosen on the held-out tables" in words(figure)
    for container, part in zip(figure.axes[0].containers, parts, strict=True):
        assert list(container[0].get_ydata()) == pytest.approx(list(100 * part["published"]))
    check_layout(figure)


def test_the_table_has_the_numbers():
    shown, last = printed(report.table(POINTS), 200), POINTS[-1]
    assert f"{last.samples_per_s:,.0f}" in shown and f"{last.efficiency:.0%} (" in shown
    assert report.duration(last.time_to_target_s) in shown
    changed = printed(report.what_if_table(RESNET, HOROVOD, SETTINGS, 512), 200)
    assert "twice the batch" in changed and "a network 4 times as fast" in changed
    assert "time to" not in printed(report.table(forecast(catalogue.model("vgg-16"), HOROVOD, SETTINGS)), 200)


@pytest.mark.parametrize("model", catalogue.models())
def test_the_tables_fit_into_80_columns(model):
    """Each row keeps its line, and each number its column: also where the output is piped."""
    asked = catalogue.model(model)
    for machine in map(catalogue.machine, catalogue.machines()):
        settings = Settings("ddp", 32)
        machine = machine.with_speed(asked, 2400.0)
        points = forecast(asked, machine, settings)
        for table, rows in (
            (report.table(points), len(points)),
            (report.what_if_table(asked, machine, settings, 4096), 7),
        ):
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
    one, many = forecast(catalogue.model("vgg-16"), HOROVOD, SETTINGS, [1, 512])
    for point in (one, many):
        assert f"{point.samples_per_s:,.0f}" in ended.output
    assert f"{many.efficiency:.0%} (" in ended.output and "with one thing changed" in ended.output
    assert (tmp_path / "forecast.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_takes_a_laptop_and_a_global_batch():
    laptop = ("--latency-us", 20, "--gb-per-s", 1, "--samples-per-s", 5000)
    ended = invoke("workshop-cnn", "laptop", *laptop, "--global-batch", 64)
    assert ended.exit_code == 0, ended.output
    assert "global batch 64" in ended.output and "64 devices" in ended.output and "128" not in ended.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("alexnet", "polaris"), "model 'alexnet' is not known: choose one of inception-v3"),
        (("vgg-16", "mine"), ", or laptop"),
        (("vgg-16", "polaris", "--devices", "1,x"), "--devices '1,x': give whole numbers"),
        (("vgg-16", "polaris", "--gb-per-s", 1), "--gb-per-s: only for laptop"),
        (("vgg-16", "laptop", "--gb-per-s", 1), "add --latency-us"),
        (("vgg-16", "laptop", "--gb-per-s", 0, "--latency-us", 1), "--gb-per-s 0: give a number above 0"),
        (("workshop-cnn", "polaris"), "measure it on one device and give samples_per_s"),
    ],
)
def test_the_command_says_in_one_sentence_what_is_wrong(arguments, message):
    ended = invoke(*arguments)
    assert ended.exit_code == 1
    output = " ".join(ended.output.split())
    assert output.startswith("workshop: ") and message in output
