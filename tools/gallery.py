"""Write the notebooks with their outputs, for the book and to look at before installing anything: assets/gallery.

    python -m tools.gallery [NAME …]    all of them, or those named, as in 05 or 05_ddp

Each is the notebook with solutions, executed here in the profile `laptop` and made small: figures keep few colors and
at most WIDTH pixels, and metadata that no page shows is dropped. The seconds that its cells ran count toward the
minutes that the notebook promises. A notebook that fails leaves the gallery's as it was, and the next one runs.
"""

import argparse
import base64
import io
import json
import os
import posixpath
import re
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from PIL import Image, PngImagePlugin

from workshop_lib import paths
from workshop_lib.classroom import execute, generate
from workshop_lib.errors import InputError
from workshop_lib.exercises import exercises
from workshop_lib.notebook.prediction import NUMBERS
from workshop_lib.words import plural

GALLERY = paths.ROOT / "assets" / "gallery"
WORK = paths.BUILD / "gallery"
WIDTH = 1000  # pixels of a figure
COLORS = 48
MOST_BYTES = 5_000_000  # of all files together
EMBEDDED = re.compile(r"(?<=data:image/png;base64,)[\w+/=]+")
LINK = re.compile(r"\]\((?!https?:|#)([^)\s]+)\)")
SHOWN = ("image/png", "image/svg+xml", "text/html", "text/markdown", "text/latex", "text/plain")  # the first one wins
NOTE = """\
> **This is the notebook as it ran**, with solutions, on a machine with {cores}. You can't run or change anything
> here. To do the exercises yourself, get a checkout and run `make lab NOTEBOOK=notebooks/{name}.ipynb`."""


def code_of(notebook: NotebookNode) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def current(name: str, folder: Path = GALLERY) -> NotebookNode | None:
    """The gallery's notebook of this name; None if there's none, or if the code in its source has changed."""
    path = folder / f"{name}.ipynb"
    if not path.exists():
        return None
    shown = nbformat.read(path, as_version=4)
    return shown if code_of(shown) == code_of(generate.pristine(name)[1]) else None


def small_png(encoded: str) -> str:
    """A picture, in base64, on white paper with at most WIDTH pixels and COLORS. Keeps its description."""
    image: Image.Image = Image.open(io.BytesIO(base64.b64decode(encoded)))
    about = PngImagePlugin.PngInfo()
    if "Description" in image.info:
        about.add_itxt("Description", image.info["Description"])
    if image.width > WIDTH:
        image = image.resize((WIDTH, round(image.height * WIDTH / image.width)), Image.Resampling.LANCZOS)
    paper = Image.new("RGB", image.size, "white")
    paper.paste(image, mask=image.getchannel("A") if image.mode == "RGBA" else None)
    file = io.BytesIO()
    few = paper.quantize(COLORS, method=Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    few.save(file, "PNG", optimize=True, pnginfo=about)
    return base64.b64encode(file.getvalue()).decode()


def compact(data: dict) -> dict:
    """The one representation of an output that a page shows, with figures made small, and a prediction's numbers."""
    kind = next((kind for kind in SHOWN if kind in data), None)
    if kind is None:
        return {}
    kept = {kind: data[kind]}
    if kind == "image/png":
        kept[kind] = small_png(data[kind])
    elif kind == "text/html":
        kept[kind] = EMBEDDED.sub(lambda found: small_png(found[0]), data[kind])
    if NUMBERS in data:  # the book makes a slider of them
        kept[NUMBERS] = data[NUMBERS]
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


def add(name: str, folder: Path = GALLERY) -> bool:
    """Execute a notebook's solutions and write its page to `folder`, if no cell fails; return whether none did."""
    env = execute.without_learner(WORK / "notebooks") | {"WORKSHOP_PROFILE": "laptop"}
    output = WORK / f"{name}.ipynb"
    outcome = execute.run_notebook(exercises.solutions_of(WORK / "notebooks" / output.name), output, env=env)
    print(outcome, flush=True)
    if outcome.error:
        return False
    # Readers need not know where the checkout and its owner's files are on this machine.
    text = output.read_text(encoding="utf-8").replace(f"{paths.ROOT}/", "").replace(str(paths.ROOT), ".")
    text = text.replace(f"{Path.home()}/", "~/")
    with paths.replacing(folder / output.name) as temporary:
        nbformat.write(page(name, nbformat.reads(text, as_version=4)), temporary)
    record = generate.NOTEBOOKS / "source" / generate.RUN_SECONDS
    seconds = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    seconds[name] = execute.run_seconds(output)
    record.write_text(json.dumps(seconds, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return True


def main(names: list[str]) -> int:
    """Add the named notebooks to the gallery, or all; return the exit status."""
    try:
        failed = [name for name in generate.chosen(names) if not add(name)]
    except InputError as error:
        print(error, file=sys.stderr)
        return 1
    total_bytes = sum(path.stat().st_size for path in GALLERY.glob("*.ipynb"))
    print(f"The gallery takes {total_bytes / 1e6:.1f} MB.")
    if failed:
        numbers = " ".join(name.partition("_")[0] for name in failed)
        print(f'These failed, so the gallery keeps what it had: make gallery NAME="{numbers}"', file=sys.stderr)
    return 0 if total_bytes < MOST_BYTES and not failed else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.gallery")
    parser.add_argument("names", nargs="*", metavar="NAME")
    sys.exit(main(parser.parse_args().names))
