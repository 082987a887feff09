import itertools

import numpy as np
import pytest
from drawn import check_text, legend, words
from matplotlib.colors import to_hex, to_rgb
from record_fixtures import CPU, run, sweep

from workshop_lib.notebook import figures
from workshop_lib.notebook.figures.accuracy import accuracy_curve, solution_curve
from workshop_lib.notebook.figures.scaling import in_order, scaling_curve, serial_part, weak_scaling_curve
from workshop_lib.results.records import RecordError, all_names

NAMES = all_names()
SRGB_TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
EYES = {
    "common": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def markers(axes, hollow: bool) -> dict[str, list[tuple[float, float]]]:
    """Points drawn with error bars, by color."""
    found = {}
    for bars in axes.containers:
        line = bars.lines[0]
        if (line.get_markerfacecolor() == "white") == hollow:
            found.setdefault(to_hex(line.get_color()).upper(), []).extend(line.get_xydata().tolist())
    return found


def test_scaling_curve_has_units_legend_medians_and_where_it_was_measured():
    figure = scaling_curve(sweep())
    speed, efficiency = figure.axes
    assert (speed.get_xlabel(), speed.get_ylabel()) == ("ranks", "throughput (samples/s)")
    assert (efficiency.get_xlabel(), efficiency.get_ylabel()) == ("ranks", "parallel efficiency (%)")
    assert [label.get_text() for label in speed.get_xticklabels()] == ["1", "2", "4*"]
    entries = legend(figure)
    assert entries[:2] == ["mpi", "ddp"]
    assert any(entry.startswith("perfect scaling: ranks × the fastest 1-rank run") for entry in entries)
    assert "first epoch (start-up included)" in entries
    assert "hollow, *: oversubscribed (more ranks than cores)" in entries
    for part in (CPU, "2 cores", "threads per rank: 1", "binding: none", "batch 64", "repeats: 3"):
        assert part in words(figure)
    blue = "#0072B2"
    (one, two), (four,) = markers(speed, False)[blue], markers(speed, True)[blue]
    assert [point[0] for point in (one, two, four)] == pytest.approx([1, 2, 4], rel=0.1)
    assert two[1] == pytest.approx(15_276, rel=1e-3), "the median"
    assert markers(efficiency, True)[blue][0][1] == pytest.approx(50, rel=1e-3)


def test_names_differ_in_color_and_in_marker():
    numbers = figures.NUMBER_OF_NAME
    styles = [figures.Style.of(name) for name in ("unknown", *numbers)]
    assert len({style.color for style in styles}) == len({style.marker for style in styles}) == 1 + len(numbers)


def simulated(color: str, matrix: list[list[float]]) -> np.ndarray:
    """The color as CIE L*a*b*, seen by an eye that `matrix` describes (Machado et al. 2009, in linear RGB)."""
    rgb = np.array(to_rgb(color))
    seen = np.clip(matrix @ np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4), 0, 1)
    xyz = SRGB_TO_XYZ @ seen / (SRGB_TO_XYZ @ np.ones(3))
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("eye", EYES)
def test_colors_differ_for_any_color_vision(eye):
    colors = [simulated(color, EYES[eye]) for color in figures.COLORS]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(colors, 2)) > 10


def test_many_backends_become_rows_with_the_fastest_on_top():
    speeds = {name: 1000 * (index + 1) for index, name in enumerate(NAMES)}
    counts, share = (1, 2, 4), {1: 1.0, 2: 0.9, 4: 0.5}
    records = [run(name, n, (1, n * share[n] * speed)) for name, speed in speeds.items() for n in counts]
    figure = scaling_curve(records)
    speed, efficiency = figure.axes
    assert [label.get_text() for label in speed.get_yticklabels()] == NAMES[::-1]
    assert speed.get_ylim()[0] > speed.get_ylim()[1], "row 0 is on top"
    assert (speed.get_xlabel(), efficiency.get_xlabel()) == ("throughput (samples/s)", "parallel efficiency (%)")
    points = {round(y, 2): x for bars in speed.containers for x, y in bars.lines[0].get_xydata()}
    fastest = [points[y] for y in sorted(points)][:3]
    assert fastest == pytest.approx([share[n] * n * speeds[NAMES[-1]] for n in counts])
    hollow = {bars.lines[0].get_markerfacecolor() == "white" for bars in speed.containers}
    assert hollow == {True, False}, "4 ranks on 2 cores"
    assert {round(bars.lines[0].get_xdata()[0]) for bars in efficiency.containers} == {90, 50}
    perfect = [line.get_xdata()[0] for line in speed.lines if line.get_markersize() == 18]
    assert perfect[:2] == pytest.approx([2 * speeds[NAMES[-1]], 4 * speeds[NAMES[-1]]])
    perfect = "perfect scaling of the row: ranks × its own 1-rank run"
    assert legend(figure)[:4] == ["1 rank", "2 ranks", "4* ranks", perfect]


def test_many_backends_get_a_panel_each_for_accuracy():
    figure = accuracy_curve(sweep(NAMES, (1, 2)))
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in panels] == NAMES
    blue = "#0072B2"
    for axes in panels:
        (drawn,) = [bars.lines[0] for bars in axes.containers if to_hex(bars.lines[0].get_color()).upper() == blue]
        assert drawn.get_ydata() == pytest.approx([97.52, 98.82, 99.13]), "one rank, the median of its repeats"
    assert legend(figure) == ["1 rank", "2 ranks", "99 %", "the other backends"]


def test_the_ideal_line_is_straight_in_ranks():
    speed = scaling_curve([run("mpi", n, (1, 1000 * n)) for n in (1, 2, 4)]).axes[0]
    assert speed.get_xscale() == speed.get_yscale() == "linear"
    ideal = next(line for line in speed.lines if line.get_color() == figures.GRAY)
    assert ideal.get_xydata().flatten().tolist() == pytest.approx([1, 1000, 4, 4000])
    many = scaling_curve([run("mpi", n, (1, 1000 * n)) for n in (1, 2, 64)]).axes[0]
    assert many.get_xscale() == many.get_yscale() == "log"


def weak_sweep(counts=(1, 2, 4)):
    records = sweep(("mpi",), counts)
    for record in records:
        samples = record["what"]["train_samples"] = 10_000 * record["what"]["world_size"]
        for epoch in record["epochs"]:
            epoch["seconds"] = samples / epoch["samples_per_s"]
    return records


def test_weak_scaling_is_drawn_as_the_time_of_an_epoch():
    figure = weak_scaling_curve(weak_sweep())
    seconds, efficiency = figure.axes
    assert (seconds.get_ylabel(), efficiency.get_ylabel()) == ("time of an epoch (s)", "parallel efficiency (%)")
    assert figure.texts[0].get_text() == "Weak scaling on MNIST: 10,000 samples per rank"
    blue = "#0072B2"
    (one, two), (four,) = markers(seconds, False)[blue], markers(seconds, True)[blue]
    assert two[1] == pytest.approx(one[1] / 0.95, rel=0.01)
    assert four[1] == pytest.approx(one[1] / 0.5, rel=0.01)
    assert markers(efficiency, True)[blue][0][1] == pytest.approx(50, rel=0.01)
    ideal = next(line for line in seconds.lines if line.get_color() == figures.GRAY)
    assert ideal.get_ydata().tolist() == pytest.approx([one[1]] * 2)
    assert "perfect scaling: as long as the fastest 1-rank run (mpi)" in legend(figure)
    crosses = next(line for line in seconds.lines if line.get_marker() == "x")
    assert (crosses.get_ydata() > [one[1], two[1], four[1]]).all(), "first epochs take longer"


def test_batches_and_one_epoch_runs_are_named():
    figure = scaling_curve(sweep(("ddp",), batch=64) + sweep(("ddp",), batch=256))
    assert legend(figure)[:2] == ["ddp, batch 64 per rank", "ddp, batch 256 per rank"]
    entries = legend(scaling_curve([run("mpi", n, (8000 * n,)) for n in (1, 2)]))
    assert "one epoch only: includes start-up" in entries
    assert "first epoch (start-up included)" not in entries


def test_what_cannot_be_drawn_is_an_error():
    with pytest.raises(RecordError, match="no 1-rank run"):
        scaling_curve([run("mpi", 2)])
    with pytest.raises(RecordError, match="nothing to draw"):
        accuracy_curve([])
    with pytest.raises(ValueError, match="x='steps' is not an axis"):
        accuracy_curve([run()], x="steps")


def test_backends_keep_their_places_whatever_else_is_drawn():
    assert in_order(["ddp"]) == ["ddp"]
    assert in_order(["a", "ddp", "mpi"]) == ["mpi", "ddp", "a"]


@pytest.mark.parametrize("names", [("ddp", "ddp-mpi"), ("mpi", "ddp", "fsdp", "ddp-mpi", "fsdp-mpi")])
def test_a_transport_s_curve_looks_like_no_other(names):
    """In the accuracy curve's legend, where a dash means a number of ranks, color and marker alone tell names apart."""
    handles = accuracy_curve(sweep(names, (1, 2))).legends[0].legend_handles
    looks = {(entry.get_color(), entry.get_marker()) for entry in handles if entry.get_label() in names}
    assert len(looks) == len(names)


@pytest.mark.parametrize(
    ("name", "value"),
    [("data_dir", "/data/fashion"), ("train_samples", 6000), ("epochs", 9), ("max_steps", 7), ("warmup_epochs", 3)]
    + [("decay", "cosine"), ("optimizer", "adam"), ("lr", 0.4), ("lr_scaling", "linear")],
)
def test_accuracies_of_unlike_trainings_are_not_mixed(name, value):
    with pytest.raises(RecordError, match=f"mix runs with {name} = .*{value}"):
        accuracy_curve([run(), run("mpi", 2, what=run("mpi", 2)["what"] | {name: value})], x="epochs")


def test_the_machine_matters_for_seconds_and_not_for_epochs():
    records = [run(), run("mpi", 2, where=run("mpi", 2)["where"] | {"cpu_model": "Another CPU"})]
    with pytest.raises(RecordError, match="mix runs with cpu_model"):
        accuracy_curve(records)
    accuracy_curve(records, x="epochs")


@pytest.mark.parametrize("draw", [scaling_curve, accuracy_curve, weak_scaling_curve])
def test_the_title_names_the_data(draw):
    records = weak_sweep((1, 2)) if draw is weak_scaling_curve else sweep(("mpi",), (1, 2))
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
    figure = accuracy_curve(records, x)
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == (label, "test accuracy (%)")
    assert markers(axes, False)["#0072B2"][-1] == pytest.approx([last, 98.8])
    assert markers(axes, True)["#D55E00"][-1][1] == pytest.approx(90)
    assert axes.get_ylim()[0] < 50
    assert legend(figure)[:4] == ["mpi", "ddp", "1 rank", "4* ranks"]


@pytest.mark.parametrize("draw", [scaling_curve, accuracy_curve, weak_scaling_curve])
def test_text_is_large_and_stays_inside_the_figure(draw):
    records = weak_sweep() if draw is weak_scaling_curve else sweep(NAMES)
    for record in records:
        record["where"]["cpu_model"] = "Fixture(R) Processor(R) With A Long Name 9999X CPU @ 2.00GHz"
    check_text(draw(records), 11)


def test_shown_in_a_notebook_and_saved_whole_or_not_at_all(tmp_path, monkeypatch):
    figure = scaling_curve(sweep(("mpi",), (1, 2)))
    path = figures.save(figure, tmp_path / "made" / "curve.png")
    written = path.read_bytes()
    assert written[:8] == figure._repr_png_()[:8] == b"\x89PNG\r\n\x1a\n"
    monkeypatch.setattr(figure, "savefig", lambda temporary, **_: temporary.write_bytes(b"half a figure") / 0)
    with pytest.raises(ZeroDivisionError):
        figures.save(figure, path)
    assert path.read_bytes() == written and list(path.parent.iterdir()) == [path]


def test_the_laws_of_a_serial_part():
    figure = serial_part(0.25, most=16)
    ideal, gustafson, amdahl = (list(line.get_ydata()) for line in figure.axes[0].lines)
    assert ideal == [1, 2, 4, 8, 16]
    assert gustafson[-1] == pytest.approx(16 - 15 * 0.25) and amdahl[-1] == pytest.approx(1 / (0.25 + 0.75 / 16))
    check_text(figure, 11)
    with pytest.raises(ValueError, match="the serial fraction is 1.5"):
        serial_part(1.5)


def test_time_to_solution_and_accuracy_need_no_run_on_one_rank():
    figure = solution_curve([run("horovod", n, speeds=(1000.0 * n,) * 3) for n in (4, 8, 16)])
    time, accuracy = figure.axes
    measured, perfect = (line.get_ydata() for line in time.lines[:2])
    assert measured == pytest.approx([180_000 / 4000, 180_000 / 8000, 180_000 / 16000])
    assert perfect == pytest.approx(measured), "these scale perfectly, from the fewest ranks on"
    ends = {round(float(line.get_ydata()[-1]), 2) for line in accuracy.lines}
    assert {end for end in ends if end == end} == {99.11}, "one run has no bar, which is drawn as no number"
    other = run("horovod", 8)
    other["where"]["cpu_model"] = "Other"
    with pytest.raises(RecordError, match="cpu_model = Fixture CPU 3000 and Other"):
        solution_curve([run("horovod", 4), other])
