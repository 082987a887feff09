"""Write notebooks with their outputs, to look at before installing anything: assets/gallery.

    python -m workshop_lib.maintain.gallery [NAME …]    those of the core path, or those named

Each is the notebook with solutions, executed here in the profile `laptop` and made small: figures keep few colors and
at most WIDTH pixels, and metadata that no page shows is dropped. A test compares the code with the sources'.
"""

import argparse
import base64
import io
import os
import posixpath
import re
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from PIL import Image

from workshop_lib import paths
from workshop_lib.course import exercises
from workshop_lib.errors import InputError
from workshop_lib.maintain import execute, generate
from workshop_lib.words import plural

GALLERY = paths.ROOT / "assets" / "gallery"
WORK = paths.BUILD / "gallery"
WIDTH = 1000  # pixels of a figure
COLORS = 48
MOST_BYTES = 4_000_000  # of all files together
LINK = re.compile(r"\]\((?!https?:|#)([^)\s]+)\)")
SHOWN = ("image/png", "image/svg+xml", "text/html", "text/markdown", "text/latex", "text/plain")  # the first one wins
NOTE = """\
> **This is the notebook as it ran**, with solutions, on a machine with {cores}. You can't run or change anything
> here. To do the exercises yourself, get a checkout and run `make lab NOTEBOOK=notebooks/{name}.ipynb`."""


def compact(data: dict) -> dict:
    """The one representation of an output that a page shows, with its figure made small."""
    kind = next((kind for kind in SHOWN if kind in data), None)
    if kind is None:
        return {}
    kept = {kind: data[kind]}
    if kind == "image/png":
        image: Image.Image = Image.open(io.BytesIO(base64.b64decode(data[kind])))
        if image.width > WIDTH:
            image = image.resize((WIDTH, round(image.height * WIDTH / image.width)), Image.Resampling.LANCZOS)
        paper = Image.new("RGB", image.size, "white")
        paper.paste(image, mask=image.getchannel("A") if image.mode == "RGBA" else None)
        file = io.BytesIO()
        paper.quantize(COLORS, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
        kept[kind] = base64.b64encode(file.getvalue()).decode()
    return kept


def page(name: str, ran: NotebookNode) -> NotebookNode:
    """The executed solution `ran` as a page of the gallery: the learner's texts, our code, and small outputs."""
    asked, solved = generate.pristine(name)
    notebook = nbformat.v4.new_notebook(metadata=solved.metadata)
    for text, cell, executed in zip(asked.cells, solved.cells, ran.cells, strict=True):
        cell.metadata = nbformat.from_dict({})
        if cell.cell_type == "markdown":
            # The links lead to the same files from the gallery's folder.
            cell.source = LINK.sub(lambda at: f"]({posixpath.normpath(f'../../notebooks/{at[1]}')})", text.source)
        else:
            cell.execution_count = executed.execution_count
            cell.outputs = [output for output in map(small_output, executed.outputs) if output]
        notebook.cells.append(cell)
    note = NOTE.format(name=name, cores=plural(os.cpu_count() or 1, "core"))
    title, _, rest = notebook.cells[0].source.partition("\n")
    notebook.cells[0].source = f"{title}\n\n{note}\n{rest}"
    return notebook


def small_output(output: NotebookNode) -> NotebookNode | None:
    """An output as the gallery keeps it; None if there's nothing to show."""
    if "data" not in output:
        return output
    output.data = compact(output.data)
    output.metadata = {}
    return output if output.data else None


def add(name: str, folder: Path = GALLERY) -> Path:
    """Execute a notebook's solutions and write its page to `folder`. Raises InputError if a cell fails."""
    env = execute.without_learner(WORK / "notebooks") | {"WORKSHOP_PROFILE": "laptop"}
    output = WORK / f"{name}.ipynb"
    outcome = execute.run_notebook(exercises.solutions_of(WORK / "notebooks" / output.name), output, env=env)
    print(outcome, flush=True)
    if outcome.error:
        raise InputError(f"{name} didn't run to its end, so the gallery keeps what it had.")
    # Readers need not know where the checkout is on this machine.
    text = output.read_text(encoding="utf-8").replace(f"{paths.ROOT}/", "").replace(str(paths.ROOT), ".")
    written = folder / output.name
    with paths.replacing(written) as temporary:
        nbformat.write(page(name, nbformat.reads(text, as_version=4)), temporary)
    return written


def main(names: list[str]) -> int:
    """Add the named notebooks to the gallery, or those of the core path; return the exit status."""
    try:
        chosen = generate.chosen(names)
        if not names:
            chosen = [name for name in chosen if exercises.is_on_core_path(name)]
        for name in chosen:
            print(f"wrote {os.path.relpath(add(name))}", flush=True)
    except InputError as error:
        print(error, file=sys.stderr)
        return 1
    total_bytes = sum(path.stat().st_size for path in GALLERY.glob("*.ipynb"))
    print(f"The gallery takes {total_bytes / 1e6:.1f} MB.")
    return 0 if total_bytes < MOST_BYTES else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m workshop_lib.maintain.gallery")
    parser.add_argument("names", nargs="*", metavar="NAME")
    sys.exit(main(parser.parse_args().names))
