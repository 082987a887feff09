"""Figures of run records draw what the records hold; their style tells curves apart for everyone."""

import base64
import re

import pytest
from drawn import check_layout, panel
from IPython.core.formatters import DisplayFormatter
from record_fixtures import run, sweep, weak_sweep

from workshop_lib.notebook import figures
from workshop_lib.notebook.figures.accuracy import accuracy_curve, solution_curve
from workshop_lib.notebook.figures.scaling import scaling_curve, serial_part, weak_scaling_curve
from workshop_lib.notebook.results.records import RecordError
from workshop_lib.paths import ROOT


def test_names_differ_in_color_and_in_marker():
    looks = [figures.style_of(name) for name in ("unknown", *figures.NUMBER_OF_NAME)]
    for kind, place in (("color", "COLORS in notebook/palette.py"), ("marker", "MARKERS in notebook/figures")):
        different = len({look[kind] for look in looks})
        assert different == len(looks), f"{len(looks) - different} names share a {kind}: add one to {place}"


def test_no_other_file_has_colors_of_its_own():
    files = [
        *ROOT.glob("workshop_lib/**/*figures*.py"),
        *ROOT.glob("notebooks/lessons/**/*figures*.py"),
        *ROOT.glob("workshop_lib/notebook/**/*.py"),
    ]
    own = {path.name for path in files if re.search(r"#[0-9A-Fa-f]{6}\b", path.read_text())}
    assert own == {"palette.py"}


LONG_NAME = "Fixture(R) Processor(R) With A Long Name 9999X CPU @ 2.00GHz"


@pytest.mark.parametrize("draw", [scaling_curve, accuracy_curve, weak_scaling_curve])
def test_every_word_can_be_read_however_many_backends_there_are(draw):
    shaped = weak_sweep if draw is weak_scaling_curve else sweep
    records = shaped(list(figures.NUMBER_OF_NAME))
    for record in records:
        record["where"]["cpu_model"] = LONG_NAME
    check_layout(draw(records))


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


def test_unlike_runs_and_machines_are_not_mixed():
    other = run("mpi", 2, what=run("mpi", 2)["what"] | {"lr": 0.4})
    with pytest.raises(RecordError, match="mix runs with lr = .*0.4"):
        accuracy_curve([run(), other])
    other = run("mpi", 2, where=run("mpi", 2)["where"] | {"cpu_model": "Other"})
    for draw in (accuracy_curve, solution_curve):
        with pytest.raises(RecordError, match="mix runs with cpu_model = Fixture CPU 3000 and Other"):
            draw([run(), other])


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
