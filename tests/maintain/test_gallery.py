"""The notebooks with outputs that a visitor sees: their code is the sources', and they stay small."""

import base64
import io

import nbformat
from PIL import Image

from workshop_lib.maintain import gallery, generate

REFRESH = "run `make gallery`, or `make gallery NAME=…` for one notebook, on a machine that does nothing else"


def code_of(notebook):
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def differing(folder=gallery.GALLERY):
    """The notebooks in `folder` whose code isn't that of their source."""
    shown = {path.stem: code_of(nbformat.read(path, as_version=4)) for path in sorted(folder.glob("*.ipynb"))}
    known = generate.chosen(())
    return [name for name in shown if name not in known or shown[name] != code_of(generate.pristine(name)[1])]


def test_the_gallery_has_the_code_of_the_sources_and_its_outputs():
    assert not differing(), f"{differing()} changed since the gallery was written: {REFRESH}"
    for path in sorted(gallery.GALLERY.glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        shown = [cell for cell in cells if cell.cell_type == "code" and cell.outputs]
        assert len(shown) > 3, f"{path.name} has hardly any outputs: {REFRESH}"
        assert str(generate.NOTEBOOKS.parent) not in path.read_text(), "a path of this machine"


def test_the_gallery_is_small():
    total_bytes = sum(path.stat().st_size for path in gallery.GALLERY.iterdir())
    assert total_bytes < gallery.MOST_BYTES


def test_links_in_the_gallery_lead_to_files():
    for path in sorted(gallery.GALLERY.glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            for link in gallery.LINK.findall(cell.source if cell.cell_type == "markdown" else ""):
                assert (gallery.GALLERY / link.partition("#")[0]).exists(), f"{path.name} links to {link}"


def test_changed_code_and_an_unknown_notebook_are_found(tmp_path):
    _, solved = generate.pristine("00_start_here")
    nbformat.write(solved, tmp_path / "00_start_here.ipynb")
    assert differing(tmp_path) == []
    solved = nbformat.from_dict(solved)
    solved.cells = solved.cells[:-1]
    nbformat.write(solved, tmp_path / "00_start_here.ipynb")
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "99_gone.ipynb")
    assert differing(tmp_path) == ["00_start_here", "99_gone"]


def test_an_output_keeps_one_form_and_a_figure_few_colors():
    file = io.BytesIO()
    Image.effect_noise((1500, 900), 80).convert("RGBA").save(file, "PNG")
    data = {"text/plain": "<Figure>", "image/png": base64.b64encode(file.getvalue()).decode()}
    kept = gallery.compact(data)
    assert list(kept) == ["image/png"] and len(kept["image/png"]) < len(data["image/png"]) / 2
    image = Image.open(io.BytesIO(base64.b64decode(kept["image/png"])))
    assert image.width == gallery.WIDTH and len(image.getcolors()) <= gallery.COLORS
    assert gallery.compact({"text/plain": "4", "application/x-widget": {}}) == {"text/plain": "4"}
    assert gallery.compact({"application/x-widget": {}}) == {}
