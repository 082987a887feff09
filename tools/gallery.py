"""Write the notebooks with their outputs, for the book and to look at before installing anything: assets/gallery.

    python -m tools.gallery [NAME …]    all of them, or those named, as in 05 or 05_ddp

Each is the notebook with solutions, executed here in the profile `laptop` and made small: figures keep few colors and
at most WIDTH pixels, and metadata that no page shows is dropped. The seconds that its cells ran count toward the
minutes that the notebook promises. A notebook that fails leaves the gallery's as it was, and the next one runs.

Before each run, the machine has to be quiet, or times mean little. Afterwards, tools/claims.py says which sentences of
the text the run contradicts. Then the notebook runs once more. What it shows then is kept, but the exit status is 1.

    python -m tools.gallery --keep-outputs [NAME …]

writes the sources' texts and code beside the outputs that the gallery has, after changes that no output shows.
"""

import argparse
import base64
import io
import json
import os
import posixpath
import re
import sys
import time
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from PIL import Image, PngImagePlugin

from workshop_lib import paths
from workshop_lib.classroom import execute, generate
from workshop_lib.errors import InputError
from workshop_lib.exercises import exercises
from workshop_lib.machine import load
from workshop_lib.notebook.prediction import NUMBERS
from workshop_lib.words import plural

from tools import claims

GALLERY = paths.ROOT / "assets" / "gallery"
WORK = paths.BUILD / "gallery"
WIDTH = 1000  # pixels of a figure
COLORS = 48
MOST_BYTES = 5_000_000  # of all files together
LISTEN_S = 3.0  # for so long, other programs have to leave us the machine
PATIENCE_S = 600.0  # for a busy machine, in all runs of a call together
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
    """The executed solution `ran` as a page of the gallery: the learner's texts, our code, and the outputs of `ran`."""
    asked, solved = generate.pristine(name)
    notebook = nbformat.v4.new_notebook(metadata=solved.metadata)
    for text, cell, executed in zip(asked.cells, solved.cells, ran.cells, strict=True):
        cell.metadata = nbformat.from_dict({})
        if cell.cell_type == "markdown":
            # The links lead to the same files from the gallery's folder.
            cell.source = LINK.sub(lambda at: f"]({posixpath.normpath(f'../../notebooks/{at[1]}')})", text.source)
        else:
            cell.execution_count = executed.execution_count
            cell.outputs = executed.outputs
        notebook.cells.append(cell)
    notebook.metadata.update({kept: ran.metadata[kept] for kept in ("cores", "claims") if kept in ran.metadata})
    note = NOTE.format(name=name, cores=plural(ran.metadata.get("cores", 2), "core"))
    title, _, rest = notebook.cells[0].source.partition("\n")
    notebook.cells[0].source = f"{title}\n\n{note}\n{rest}"
    return notebook


def keep_outputs(name: str, folder: Path = GALLERY) -> None:
    """Write the texts and the code of a notebook's source beside the outputs that its page has."""
    kept = nbformat.read(folder / f"{name}.ipynb", as_version=4)
    with paths.replacing(folder / f"{name}.ipynb") as temporary:
        nbformat.write(page(name, kept), temporary)


def small_output(output: NotebookNode) -> NotebookNode | None:
    """An output as the gallery keeps it; None if there's nothing to show."""
    if "data" not in output:
        return output
    output.data = compact(output.data)
    output.metadata = {}
    return output if output.data else None


def wait_until_quiet(patience_s: float) -> float:
    """Wait until other programs leave us all cores, but at most `patience_s`; return what is left of it."""
    begun = time.monotonic()
    told = False
    while True:
        meter = load.Meter()
        time.sleep(LISTEN_S)
        warning = meter.warning(meter.usable, "and times measured now mean little")
        left_s = patience_s - (time.monotonic() - begun)
        if not warning:
            return max(0.0, left_s)
        if left_s <= 0:
            print(f"{warning} We go on all the same: the claims tell whether the texts are still true.", flush=True)
            return 0.0
        if not told:
            print(f"{warning} We wait until they end, but at most {left_s:.0f} s.", flush=True)
            told = True


def run(name: str) -> NotebookNode | None:
    """Execute a notebook's solutions, and evaluate its claims. Returns it with small outputs; None if a cell failed."""
    env = execute.without_learner(WORK / "notebooks") | {"WORKSHOP_PROFILE": "laptop"}
    output = WORK / f"{name}.ipynb"
    solutions = exercises.solutions_of(WORK / "notebooks" / output.name)
    outcome = execute.run_notebook(solutions, output, env=env, expressions=lambda cell: claims.expressions(name, cell))
    print(outcome, flush=True)
    if outcome.error:
        return None
    # Readers need not know where the checkout and its owner's files are on this machine.
    text = output.read_text(encoding="utf-8").replace(f"{paths.ROOT}/", "").replace(str(paths.ROOT), ".")
    ran = nbformat.reads(text.replace(f"{Path.home()}/", "~/"), as_version=4)
    ran.metadata.update(cores=os.cpu_count() or 1, claims=claims.outcomes(name, ran))
    for cell in ran.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in map(small_output, cell.outputs) if output]
    return ran


def add(name: str, folder: Path = GALLERY, patience_s: float = PATIENCE_S) -> tuple[list[str], float]:
    """Execute a notebook's solutions and write its page to `folder`, if no cell fails.

    If a sentence is contradicted, the notebook runs once more, and its page is that of the second run. Returns what
    went wrong, a sentence each, and what is left of `patience_s`.
    """
    faults: list[str] = []
    for _ in range(2):
        patience_s = wait_until_quiet(patience_s)
        ran = run(name)
        if ran is None:
            return [f"{name} failed, so the gallery keeps what it had."], patience_s
        shown = page(name, ran)
        faults = claims.contradicted(name, shown)
        if not faults:
            break
        print(*faults, sep="\n", flush=True)
    with paths.replacing(folder / f"{name}.ipynb") as temporary:
        nbformat.write(shown, temporary)
    record_seconds(name)
    return faults, patience_s


def record_seconds(name: str) -> None:
    """Write down for how long the cells of an executed notebook ran."""
    record = generate.NOTEBOOKS / "source" / generate.RUN_SECONDS
    seconds = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    seconds[name] = execute.run_seconds(WORK / f"{name}.ipynb")
    record.write_text(json.dumps(seconds, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def main(names: list[str], patience_s: float = PATIENCE_S) -> int:
    """Add the named notebooks to the gallery, or all; return the exit status."""
    faults: dict[str, list[str]] = {}
    try:
        chosen = generate.chosen(names)
        for name in chosen:
            for fault in claims.misplaced(name):
                raise InputError(fault)
        for name in chosen:
            faults[name], patience_s = add(name, GALLERY, patience_s)
    except InputError as error:
        print(error, file=sys.stderr)
        return 1
    total_bytes = sum(path.stat().st_size for path in GALLERY.glob("*.ipynb"))
    print(f"The gallery takes {total_bytes / 1e6:.1f} MB.")
    again = [name for name, found in faults.items() if found]
    if again:
        numbers = " ".join(name.partition("_")[0] for name in again)
        print(*(fault for name in again for fault in faults[name]), sep="\n", file=sys.stderr)
        print(f'To run these again: make gallery NAME="{numbers}"', file=sys.stderr)
    return 0 if total_bytes < MOST_BYTES and not again else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.gallery")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--keep-outputs", action="store_true", help="run nothing, and change texts and code alone")
    parser.add_argument("--patience-s", type=float, default=PATIENCE_S, help="how long to wait for a quiet machine")
    given = parser.parse_args()
    if given.keep_outputs:
        for each in generate.chosen(given.names):
            keep_outputs(each)
    else:
        sys.exit(main(given.names, given.patience_s))
