import itertools
import subprocess
import sys

import pytest
from matplotlib.colors import to_hex
from record_fixtures import CPU, run, sweep

from workshop_lib.notebook import figures, plots
from workshop_lib.scaling.records import RecordError, names_of
from workshop_lib.training.backends import REGISTRY

NAMES = [name for backend in REGISTRY for name in names_of(backend)]


def legend(figure) -> list[str]:
    return [entry.get_text() for entry in figure.legends[0].get_texts() if entry.get_text().strip()]


def markers(axes, hollow: bool) -> dict[str, list[tuple[float, float]]]:
    """Points drawn with error bars, by colour."""
    found = {}
    for bars in axes.containers:
        line = bars.lines[0]
        if (line.get_markerfacecolor() == "white") == hollow:
            found.setdefault(to_hex(line.get_color()).upper(), []).extend(line.get_xydata().tolist())
    return found


def test_scaling_curve_has_units_legend_and_where_it_was_measured():
    figure = plots.scaling_curve(sweep())
    speed, efficiency = figure.axes
    assert (speed.get_xlabel(), speed.get_ylabel()) == ("ranks", "throughput (samples/s)")
    assert (efficiency.get_xlabel(), efficiency.get_ylabel()) == ("ranks", "parallel efficiency (%)")
    assert [label.get_text() for label in speed.get_xticklabels()] == ["1", "2", "4*"]
    entries = legend(figure)
    assert entries[:2] == ["mpi", "ddp"]
    assert any(entry.startswith("ideal: ranks × 1 rank of") for entry in entries)
    assert "first epoch (start-up included)" in entries
    assert "hollow, *: oversubscribed (more ranks than cores)" in entries
    caption = " ".join(piece.get_text() for piece in figure.texts)
    for part in (CPU, "2 cores", "threads a rank: 1", "binding: none", "batch 64", "repeats: 3"):
        assert part in caption


def test_points_are_the_medians_and_oversubscribed_ones_are_hollow():
    speed, efficiency = plots.scaling_curve(sweep(("mpi",))).axes
    blue = "#0072B2"
    (one, two), (four,) = markers(speed, False)[blue], markers(speed, True)[blue]
    assert [point[0] for point in (one, two, four)] == [1, 2, 4]
    assert two[1] == pytest.approx(15_276, rel=1e-3)
    assert markers(efficiency, True)[blue][0][1] == pytest.approx(50, rel=1e-3)


def test_curves_differ_in_colour_marker_and_line():
    """Any two in two of these at least: a grey print, or an eye that sees fewer colours, has another."""
    speed = plots.scaling_curve(sweep(NAMES, (1, 2))).axes[0]
    curves = [line for line in speed.lines if len(line.get_xdata()) == 2 and line.get_linewidth() == 2]
    markers = [bars.lines[0].get_marker() for bars in speed.containers]
    looks = [(line.get_color(), str(line._dash_pattern), marker) for line, marker in zip(curves, markers, strict=True)]
    assert len(looks) == len(NAMES)
    for one, other in itertools.combinations(looks, 2):
        assert sum(a != b for a, b in zip(one, other, strict=True)) >= 2


def test_the_ideal_line_is_straight_in_ranks():
    speed = plots.scaling_curve([run("mpi", n, (1, 1000 * n)) for n in (1, 2, 4)]).axes[0]
    assert speed.get_xscale() == speed.get_yscale() == "linear"
    ideal = next(line for line in speed.lines if line.get_color() == figures.GREY)
    assert ideal.get_xydata().flatten().tolist() == pytest.approx([1, 1000, 4, 4000])
    many = plots.scaling_curve([run("mpi", n, (1, 1000 * n)) for n in (1, 2, 64)]).axes[0]
    assert many.get_xscale() == many.get_yscale() == "log"


def weak_sweep(counts=(1, 2, 4)):
    records = sweep(("mpi",), counts)
    for record in records:
        n, what = record["what"]["world_size"], record["what"]
        what["train_samples"] = 10_000 * n
        for epoch in record["epochs"]:
            epoch["seconds"] = 10_000 * n / epoch["samples_per_s"]
    return records


def test_weak_scaling_is_drawn_as_the_time_of_an_epoch():
    figure = plots.weak_scaling_curve(weak_sweep())
    seconds, efficiency = figure.axes
    assert (seconds.get_ylabel(), efficiency.get_ylabel()) == ("time of an epoch (s)", "parallel efficiency (%)")
    assert figure.texts[0].get_text() == "Weak scaling on MNIST: 10,000 samples a rank"
    blue = "#0072B2"
    (one, two), (four,) = markers(seconds, False)[blue], markers(seconds, True)[blue]
    assert two[1] == pytest.approx(one[1] / 0.95, rel=0.01)
    assert four[1] == pytest.approx(one[1] / 0.5, rel=0.01)
    assert markers(efficiency, True)[blue][0][1] == pytest.approx(50, rel=0.01)
    ideal = next(line for line in seconds.lines if line.get_color() == figures.GREY)
    assert ideal.get_ydata().tolist() == pytest.approx([one[1]] * 2)
    assert "ideal: as on 1 rank of mpi" in legend(figure)
    crosses = next(line for line in seconds.lines if line.get_marker() == "x")
    assert (crosses.get_ydata() > [one[1], two[1], four[1]]).all(), "first epochs take longer"


def test_batches_are_named_when_a_backend_ran_with_several():
    figure = plots.scaling_curve(sweep(("ddp",), batch=64) + sweep(("ddp",), batch=256))
    assert legend(figure)[:2] == ["ddp, batch 64 a rank", "ddp, batch 256 a rank"]


def test_one_epoch_runs_are_drawn_and_said_to_be():
    figure = plots.scaling_curve([run("mpi", n, (8000 * n,)) for n in (1, 2)])
    assert "one epoch only: start-up is in the curve" in legend(figure)
    assert "first epoch (start-up included)" not in legend(figure)


def test_what_cannot_be_drawn_is_an_error():
    with pytest.raises(RecordError, match="no 1-rank run"):
        plots.scaling_curve([run("mpi", 2)])
    with pytest.raises(RecordError, match="nothing to draw"):
        plots.accuracy_curve([])
    with pytest.raises(ValueError, match="x='steps' is not an axis"):
        plots.accuracy_curve([run()], x="steps")


def test_backends_keep_their_colours_whatever_else_is_drawn():
    assert [figures.in_order(names) for names in (["ddp"], ["a", "ddp", "mpi"])] == [
        {"ddp": 1},
        {"mpi": 0, "ddp": 1, "a": len(NAMES)},
    ]


def changed(part, name, value, **more):
    record = run("mpi", 2, **more)
    record[part][name] = value
    return record


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("data_dir", "/data/fashion"), ("train_samples", 6000), ("epochs", 9), ("optimizer", "adam"),
        ("lr", 0.4), ("lr_scaling", "linear"), ("warmup_epochs", 3), ("decay", "cosine"), ("max_steps", 7),
    ],
)  # fmt: skip
def test_accuracies_of_unlike_trainings_are_not_mixed(name, value):
    with pytest.raises(RecordError, match=f"mix runs with {name} = .*{value}"):
        plots.accuracy_curve([run(), changed("what", name, value)], x="epochs")


def test_the_machine_matters_for_seconds_and_not_for_epochs():
    records = [run(), changed("where", "cpu_model", "Another CPU")]
    with pytest.raises(RecordError, match="mix runs with cpu_model"):
        plots.accuracy_curve(records)
    plots.accuracy_curve(records, x="epochs")


@pytest.mark.parametrize("draw", [plots.scaling_curve, plots.accuracy_curve, plots.weak_scaling_curve])
def test_the_title_names_the_data(draw):
    records = weak_sweep((1, 2))
    if draw is not plots.weak_scaling_curve:
        records = sweep(("mpi",), (1, 2))
    assert "on MNIST" in draw(records).texts[0].get_text()
    for record in records:
        record["what"]["data_dir"] = "/data/fashion"
    assert "on fashion" in draw(records).texts[0].get_text()


@pytest.mark.parametrize(
    ("x", "label", "last"),
    [("seconds", "training time without evaluation (s)", 60_000 / 8000 * 2), ("epochs", "epoch", 2)],
)
def test_accuracy_curve(x, label, last):
    records = [run("mpi", 1, (8000, 8000)), run("ddp", 4, (9000, 9000), (0.5, 0.9))]
    figure = plots.accuracy_curve(records, x)
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == (label, "test accuracy (%)")
    assert markers(axes, False)["#0072B2"][-1] == pytest.approx([last, 98.8])
    assert markers(axes, True)["#D55E00"][-1][1] == pytest.approx(90)
    assert axes.get_ylim()[0] < 50
    assert legend(figure)[:4] == ["mpi", "ddp", "1 rank", "4* ranks"]


@pytest.mark.parametrize("draw", [plots.scaling_curve, plots.accuracy_curve, plots.weak_scaling_curve])
def test_text_is_large_and_stays_inside_the_figure(draw):
    records = weak_sweep() if draw is plots.weak_scaling_curve else sweep(NAMES)
    for record in records:
        record["where"]["cpu_model"] = "Fixture(R) Processor(R) With A Long Name 9999X CPU @ 2.00GHz"
    figure = draw(records)
    figure.draw_without_rendering()
    whole = figure.bbox
    pieces = [*figure.texts, *figure.legends[0].get_texts()]
    for axes in figure.axes:
        pieces += [axes.xaxis.label, axes.yaxis.label, *axes.get_xticklabels(), *axes.get_yticklabels()]
    for piece in (piece for piece in pieces if piece.get_text().strip() and piece.get_visible()):
        assert piece.get_fontsize() >= 11
    for piece in [*figure.texts, figure.legends[0], *(axes.yaxis.label for axes in figure.axes)]:
        box = piece.get_window_extent()
        assert whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0, piece
    top = figure.legends[0].get_window_extent().y1
    assert all(axes.xaxis.label.get_window_extent().y0 >= top for axes in figure.axes)


def test_saved_as_png_and_shown_in_a_notebook(tmp_path):
    figure = plots.scaling_curve(sweep(("mpi",), (1, 2)))
    path = plots.save(figure, tmp_path / "made" / "curve.png")
    assert path.read_bytes()[:8] == figure._repr_png_()[:8] == b"\x89PNG\r\n\x1a\n"
    assert [p.name for p in path.parent.iterdir()] == ["curve.png"]


def test_a_figure_that_cannot_be_drawn_leaves_nothing_behind(tmp_path, monkeypatch):
    def half(temporary, **_):
        temporary.write_bytes(b"half a figure")
        raise ZeroDivisionError

    figure = plots.scaling_curve(sweep(("mpi",), (1, 2)))
    monkeypatch.setattr(figure, "savefig", half)
    with pytest.raises(ZeroDivisionError):
        plots.save(figure, tmp_path / "curve.png")
    assert not list(tmp_path.iterdir())


def test_plotting_needs_no_notebook():
    code = "import sys, workshop_lib.notebook.plots; print({'ipywidgets', 'IPython'} & set(sys.modules))"
    shown = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60)
    assert shown.strip() == "set()"
