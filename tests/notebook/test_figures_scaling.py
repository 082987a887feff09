"""Figures of run records draw what the records hold; their style tells curves apart for everyone."""

import base64
import itertools
import re

import numpy as np
import pytest
from drawn import check_layout, panel
from IPython.core.formatters import DisplayFormatter
from matplotlib.colors import to_rgb
from record_fixtures import run, sweep, weak_sweep

from workshop_lib.notebook import figures
from workshop_lib.notebook.figures.accuracy import accuracy_curve, solution_curve
from workshop_lib.notebook.figures.scaling import scaling_curve, serial_part, weak_scaling_curve
from workshop_lib.paths import ROOT
from workshop_lib.results.records import RecordError

SRGB_TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
EYES = {
    "common": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def test_names_differ_in_color_and_in_marker():
    looks = [figures.style_of(name) for name in ("unknown", *figures.NUMBER_OF_NAME)]
    for kind, place in (("color", "COLORS in notebook/palette.py"), ("marker", "MARKERS in notebook/figures")):
        different = len({look[kind] for look in looks})
        assert different == len(looks), f"{len(looks) - different} names share a {kind}: add one to {place}"


def test_no_other_file_has_colors_of_its_own():
    files = [*ROOT.glob("workshop_lib/**/*figures*.py"), *ROOT.glob("workshop_lib/notebook/**/*.py")]
    own = {path.name for path in files if re.search(r"#[0-9A-Fa-f]{6}\b", path.read_text())}
    assert own == {"palette.py"}


def simulated(color: str, matrix: list[list[float]]) -> np.ndarray:
    """The color as CIE L*a*b*, seen by an eye that `matrix` describes (Machado et al. 2009, in linear RGB)."""
    rgb = np.array(to_rgb(color))
    seen = np.clip(matrix @ np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4), 0, 1)
    xyz = SRGB_TO_XYZ @ seen / (SRGB_TO_XYZ @ np.ones(3))
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


LONG_NAME = "Fixture(R) Processor(R) With A Long Name 9999X CPU @ 2.00GHz"


@pytest.mark.parametrize("draw", [scaling_curve, accuracy_curve, weak_scaling_curve])
def test_every_word_can_be_read_however_many_backends_there_are(draw):
    shaped = weak_sweep if draw is weak_scaling_curve else sweep
    records = shaped(list(figures.NUMBER_OF_NAME))
    for record in records:
        record["where"]["cpu_model"] = LONG_NAME
    check_layout(draw(records))


@pytest.mark.parametrize("eye", EYES)
def test_colors_differ_for_any_color_vision(eye):
    colors = [simulated(color, EYES[eye]) for color in figures.COLORS]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(colors, 2)) > 10


def test_more_ranks_than_cores_are_hollow_and_batches_are_named():
    figure = scaling_curve(sweep(("ddp",), batch=64) + sweep(("ddp",), batch=256))
    axes = panel(figure, "ddp\nbatch 256 per rank")
    [hollow] = [line for line in axes.lines if line.get_label() == figures.HOLLOW]
    assert list(hollow.get_xdata()) == [4]
    one_epoch = scaling_curve([run("mpi", n, (8000 * n,)) for n in (1, 2)])
    assert "one epoch only: includes start-up" in [text.get_text() for text in one_epoch.legends[0].get_texts()]


def test_what_cannot_be_drawn_is_an_error():
    with pytest.raises(RecordError, match="no 1-rank run"):
        scaling_curve([run("mpi", 2)])
    with pytest.raises(RecordError, match="nothing to draw"):
        accuracy_curve([])
    with pytest.raises(ValueError, match="the serial fraction is 1.5"):
        serial_part(1.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [("data_dir", "/data/fashion"), ("train_samples", 6000), ("epochs", 9), ("max_steps", 7), ("warmup_epochs", 3)]
    + [("decay", "cosine"), ("optimizer", "adam"), ("lr", 0.4), ("lr_scaling", "linear")],
)
def test_accuracies_of_unlike_trainings_are_not_mixed(name, value):
    with pytest.raises(RecordError, match=f"mix runs with {name} = .*{value}"):
        accuracy_curve([run(), run("mpi", 2, what=run("mpi", 2)["what"] | {name: value})])


def test_seconds_of_unlike_machines_are_not_mixed():
    records = [run(), run("mpi", 2, where=run("mpi", 2)["where"] | {"cpu_model": "Another CPU"})]
    with pytest.raises(RecordError, match="mix runs with cpu_model"):
        accuracy_curve(records)


def test_shown_in_a_notebook_and_saved_whole_or_not_at_all(tmp_path, monkeypatch):
    figure = scaling_curve(sweep(("mpi",), (1, 2)))
    path = figures.save(figure, tmp_path / "made" / "curve.png")
    written = path.read_bytes()
    shown = DisplayFormatter().format(figure)
    assert written[:8] == base64.b64decode(shown[0]["image/png"])[:8] == b"\x89PNG\r\n\x1a\n"
    assert shown[1]["needs_background"] == "light", "JupyterLab's class for it, which custom.css needs"
    monkeypatch.setattr(figure, "savefig", lambda temporary, **_: temporary.write_bytes(b"half a figure") / 0)
    with pytest.raises(ZeroDivisionError):
        figures.save(figure, path)
    assert path.read_bytes() == written and list(path.parent.iterdir()) == [path]


def test_the_laws_of_a_serial_part():
    figure = serial_part(0.25)
    ideal, gustafson, amdahl = (list(line.get_ydata()) for line in figure.axes[0].lines)
    assert ideal == [2**power for power in range(11)]
    assert gustafson[4] == pytest.approx(16 - 15 * 0.25) and amdahl[4] == pytest.approx(1 / (0.25 + 0.75 / 16))


def test_times_to_solution_of_unlike_machines_are_not_mixed():
    other = run("horovod", 8)
    other["where"]["cpu_model"] = "Other"
    with pytest.raises(RecordError, match="cpu_model = Fixture CPU 3000 and Other"):
        solution_curve([run("horovod", 4), other])
