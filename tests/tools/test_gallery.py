"""The notebooks with outputs that a visitor and the book show: their code is the sources', and they stay small."""

import base64
import io
import json

import nbformat
import numpy as np
import pytest
from PIL import Image, ImageColor

from workshop_lib.classroom import execute, generate
from workshop_lib.notebook import palette
from workshop_lib.notebook.figures import new_figure
from workshop_lib.notebook.prediction import NUMBERS

from tools import claims, gallery

REFRESH = "run `make gallery`, or `make gallery NAME=…` for one notebook, on a machine that does nothing else"


def outdated(folder=gallery.GALLERY):
    """The notebooks in `folder` whose code isn't that of their source."""
    names = [path.stem for path in sorted(folder.glob("*.ipynb"))]
    known = generate.chosen(())
    return [name for name in names if name not in known or not gallery.current(name, folder)]


def test_the_gallery_has_the_code_of_the_sources_and_its_outputs_and_is_small():
    assert not outdated(), f"{outdated()} changed since the gallery was written: {REFRESH}"
    for path in sorted(gallery.GALLERY.glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        shown = [cell for cell in cells if cell.cell_type == "code" and cell.outputs]
        assert len(shown) > 3, f"{path.name} has hardly any outputs: {REFRESH}"
        assert str(generate.NOTEBOOKS.parent) not in path.read_text(), "a path of this machine"
    assert sum(path.stat().st_size for path in gallery.GALLERY.iterdir()) < gallery.MOST_BYTES


def test_the_gallery_has_the_texts_of_the_sources():
    for path in sorted(gallery.GALLERY.glob("*.ipynb")):
        kept = nbformat.read(path, as_version=4)
        texts = [cell.source for cell in kept.cells if cell.cell_type == "markdown"]
        now = [cell.source for cell in gallery.page(path.stem, kept).cells if cell.cell_type == "markdown"]
        assert texts == now, f"{path.name}: `python -m tools.gallery --keep-outputs` writes its texts"


def test_the_gallery_has_all_notebooks():
    assert sorted(path.stem for path in gallery.GALLERY.glob("*.ipynb")) == generate.chosen(())


def test_links_in_the_gallery_lead_to_files():
    for path in sorted(gallery.GALLERY.glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            for link in gallery.LINK.findall(cell.source if cell.cell_type == "markdown" else ""):
                assert (gallery.GALLERY / link.partition("#")[0]).exists(), f"{path.name} links to {link}"


def test_changed_code_and_an_unknown_notebook_are_found(tmp_path):
    nbformat.write(generate.pristine("00_start_here")[1], tmp_path / "00_start_here.ipynb")
    assert outdated(tmp_path) == []
    for name in ("00_start_here", "99_gone"):
        nbformat.write(nbformat.v4.new_notebook(), tmp_path / f"{name}.ipynb")
    assert outdated(tmp_path) == ["00_start_here", "99_gone"]


def test_an_output_keeps_one_form_and_a_figure_its_words_and_its_lines_colors():
    figure, axes = new_figure("Seven lines.", "measured here")
    for height, color in enumerate(palette.COLORS):
        axes.plot([0, 1], [height, height + 0.5], color=color, linewidth=4)
    encoded = base64.b64encode(figure.png()).decode()
    kept = gallery.compact({"text/plain": "<Figure>", "image/png": encoded, NUMBERS: {"low": 0}})
    assert kept == {"image/png": kept["image/png"], NUMBERS: {"low": 0}}
    assert len(kept["image/png"]) < len(encoded) / 2
    image = Image.open(io.BytesIO(base64.b64decode(kept["image/png"])))
    assert image.width == gallery.WIDTH and len(image.getcolors()) <= gallery.COLORS
    assert image.info["Description"].startswith("Seven lines.")
    pixels = np.array(image.convert("RGB"), int)
    for color in palette.COLORS:
        assert np.abs(pixels - ImageColor.getrgb(color)).max(axis=-1).min() < 8, color
    side_by_side = gallery.compact({"text/html": f'<img src="data:image/png;base64,{encoded}">'})["text/html"]
    assert side_by_side == f'<img src="data:image/png;base64,{kept["image/png"]}">'
    assert gallery.compact({"text/plain": "4", "application/x-widget": {}}) == {"text/plain": "4"}
    assert gallery.compact({"application/x-widget": {}}) == {}


def test_a_notebook_that_fails_leaves_the_gallery_and_is_named_at_the_end(monkeypatch, tmp_path, capsys):
    ran = []

    def run_notebook(path, *_, **__):
        ran.append(path.stem.removesuffix("_solutions"))
        return execute.Execution(path, 1.0, 1, error="boom")

    monkeypatch.setattr(execute, "run_notebook", run_notebook)
    monkeypatch.setattr(gallery, "wait_until_quiet", lambda patience_s: patience_s)
    monkeypatch.setattr(gallery, "WORK", tmp_path)
    monkeypatch.setattr(gallery, "GALLERY", tmp_path)
    assert gallery.main(["05", "08_scaling_curves"]) == 1 and ran == ["05_ddp", "08_scaling_curves"]
    message = capsys.readouterr().err
    assert "08_scaling_curves failed" in message and message.endswith('again: make gallery NAME="05 08"\n')
    ran.clear()
    assert gallery.main([]) == 1 and ran == generate.chosen(()) and not list(tmp_path.glob("*.ipynb"))
    assert gallery.main(["99"]) == 1 and "There's no notebook '99'" in capsys.readouterr().err


BUILDER = """\
# %% [markdown]
# # Who built this?
#
# **Time** is short.

# %%
from workshop_lib import paths
from workshop_lib.exercises import exercises
from workshop_lib import learner

solved = len(exercises.solved())
print(solved, "solved, log in", paths.LEARNER, paths.ROOT / "book", paths.Path.home() / "file")
learner.keep(learner.Prediction("How many?", "", 3.0))
"""


@pytest.mark.timeout(120)
def test_a_page_has_no_trace_of_who_ran_it_and_its_seconds_are_recorded(tmp_path, monkeypatch):
    """Executes a notebook while the log of whoever does it has a solved exercise."""
    solved = {"what": "check", "notebook": "02_synchronous_sgd", "exercise": "average_gradients", "passed": True}
    log = tmp_path / "progress.jsonl"
    log.write_text(json.dumps(solved) + "\n")
    monkeypatch.setenv("WORKSHOP_LEARNER_FILE", str(log))
    source = tmp_path / "source" / "99_who.py"
    source.parent.mkdir()
    source.write_text(BUILDER)
    record = source.with_name(generate.RUN_SECONDS)
    record.write_text('{"98_other": {"core": 1.0, "deeper": 0.0}}')
    monkeypatch.setattr(generate, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(generate, "sources", lambda: [source])
    monkeypatch.setattr(gallery, "WORK", tmp_path / "work")
    monkeypatch.setattr(gallery, "wait_until_quiet", lambda patience_s: patience_s)
    claim = claims.Claim("Time is short.", "print(", "[solved, shown.split()[0]]", "value == [0, '0']")
    monkeypatch.setattr(claims, "of_notebook", lambda name: [claim])
    assert gallery.add("99_who", tmp_path)[0] == []
    page = nbformat.read(tmp_path / "99_who.ipynb", as_version=4)
    assert page.metadata.claims[0].value_was == [0, "0"]
    printed = page.cells[1].outputs[0].text
    assert printed.startswith("0 solved") and str(log) not in printed and printed.endswith(" book ~/file\n")
    assert log.read_text() == json.dumps(solved) + "\n"
    assert json.loads(record.read_text())["98_other"] == {"core": 1.0, "deeper": 0.0}
    assert json.loads(record.read_text())["99_who"]["core"] >= 0
