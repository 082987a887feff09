"""Slides for a projector from a notebook or a route: sections folded under their headings, few words, large type.

Right and Left on a heading make JupyterLab open and close its section. Each section begins with a cell that prepares
what the section needs, so a talk can jump.
"""

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import nbformat
from IPython.core.getipython import get_ipython
from IPython.utils.capture import capture_output

from workshop_lib import paths, ranks
from workshop_lib.classroom import needs, routes
from workshop_lib.classroom.generate import METADATA, NOTEBOOKS, pristine, sources
from workshop_lib.errors import InputError, WorkshopError
from workshop_lib.exercises.sources import YOURS
from workshop_lib.ranks.call import engine

STAGE = paths.BUILD / "stage"
JUPYTER = paths.ROOT / "workshop_lib" / "notebook" / "jupyter"
SETTINGS = STAGE / ".jupyter"  # the presenter's settings, kept apart from the learner's
LEAD_WORDS = 45  # length of the text that a projector shows; the rest is a click away
PREPARES = """\
# what this section needs
from workshop_lib.classroom import present

present.ready({})"""
SENTENCE_END = re.compile(r"(?<=[a-z0-9)*`%][.?!])\s+(?=[A-Z*`\"(])")


def short(text: str) -> str:
    """A text cell for a projector: its heading and its first sentences, with the rest folded up."""
    blocks = re.split(r"\n\s*\n", text.strip())
    at = next((at for at, block in enumerate(blocks) if not block.startswith("#")), len(blocks))
    shown = blocks[: at + 1]
    rest = blocks[at + 1 :]
    if at < len(blocks) and not re.match(r"[|<$-]|\d+\. ", blocks[at]):
        lead, *sentences = SENTENCE_END.split(blocks[at])
        while sentences and len(f"{lead} {sentences[0]}".split()) <= LEAD_WORDS:
            lead = f"{lead} {sentences.pop(0)}"
        shown[-1] = lead
        rest = [" ".join(sentences), *rest] if sentences else rest
    while rest and shown[-1].endswith(":"):  # a colon announces a formula or a list, so show that as well
        shown.append(rest.pop(0))
    return "\n\n".join([*shown, *(["<details><summary>more</summary>", *rest, "</details>"] if rest else [])])


def first_cell(name: str, *section: str) -> nbformat.NotebookNode:
    """The cell that prepares a section."""
    arguments = ", ".join(json.dumps(each, ensure_ascii=False) for each in (name, *section))
    return nbformat.v4.new_code_cell(PREPARES.format(arguments))


def slides(name: str, sections: tuple[str, ...] = (routes.CORE,), following: str = "") -> nbformat.NotebookNode:
    """Slides of these sections of a notebook with solutions: each is folded up, and prepared by its first cell of code.

    following: the file of the slides that come next, to which the last cell links.
    """
    cells = routes.Code.of(name).notebook.cells
    learners = pristine(name)[0].cells
    shown: list = []
    last: tuple[str, ...] = ()  # the section of the last cell of code
    for index, text, under in routes.pieces(cells):
        if len(under) > 1 and not routes.stands_in(sections, under):
            continue
        if cells[index].cell_type == "markdown":
            if text.startswith("## "):  # the heading gets its own cell, because that is all a folded section shows
                heading, _, text = text.partition("\n")
                folded = {"jp-MarkdownHeadingCollapsed": True}
                shown.append(nbformat.v4.new_markdown_cell(heading, metadata=folded))
            if text.strip():
                shown.append(nbformat.v4.new_markdown_cell(short(text)))
        elif len(under) > 1:  # the first section runs the cells at the top, which every section needs
            if under != last:
                shown.append(first_cell(name, *under[1:]))
                last = under
            if YOURS in learners[index].source:  # an answer stays hidden until it is written on stage or opened
                cells[index].metadata["jupyter"] = {"source_hidden": True}
            shown.append(cells[index])
    if following:
        shown.append(nbformat.v4.new_markdown_cell(f"## Next: [{following.partition('_')[2]}]({following}.ipynb)"))
    return nbformat.v4.new_notebook(cells=shown, metadata=METADATA)


def ready(name: str, *section: str) -> None:
    """Prepare a section: if anything that the section needs is missing, start over with fresh ranks and run all cells
    that it needs. Raises WorkshopError if one of them fails."""
    os.chdir(NOTEBOOKS)
    missing, needed = _missing(name, section)
    if not missing:
        return
    print("getting ready … ", end="", flush=True)
    ranks.stop()
    began = time.perf_counter()
    for source in needed:
        with capture_output():
            result = get_ipython().run_cell(source, silent=True)
        if error := result.error_before_exec or result.error_in_exec:
            line = source.splitlines()[0]
            raise WorkshopError(f"{section[-1]!r} isn't ready: the cell that begins {line!r} failed: {error}")
    print(f"ready ({time.perf_counter() - began:.0f} s)")


def _missing(name: str, section: tuple[str, ...]) -> tuple[set, list[str]]:
    """The variables that are missing for this section, and the sources of all cells that the section needs."""
    code = routes.Code.of(name)
    own = [number for number, under in enumerate(code.under) if under[1:] == section]
    there = {(needs.NOTEBOOK, variable) for variable in get_ipython().user_ns}
    try:
        of_ranks = ranks.current().run(engine.variables, show=False)
        there |= {(needs.RANKS, variable) for variable in set.intersection(*of_ranks)}
    except ranks.RankError:
        there.discard(needs.TEAM)
    needed = [code.sources[each] for each in code.before(own)]
    defined = set().union(*(needs.names(source).defines for source in needed))
    return {(where, variable) for where, variable in defined - there if where != needs.FILES}, needed


def parts(what: str, sections: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(notebook, sections) for each file of slides for a route, for a notebook, or for these sections of a notebook.

    Raises InputError for an unknown name or section.
    """
    if what in (known := [source.stem for source in sources()]):
        cells = pristine(what)[0].cells
        there = dict.fromkeys(under[-1] for _, _, under in routes.pieces(cells) if len(under) > 1)
        if wrong := [each for each in sections if each not in there]:
            raise InputError(f"{what} has no section {wrong[0]!r}; it has {', '.join(map(repr, there))}.")
        yield what, sections or (routes.CORE,)
    elif what not in (names := routes.load()):
        raise InputError(f"{what!r} is neither a notebook nor a route. There are {', '.join([*names, *known])}.")
    elif sections:
        raise InputError(f"{what} is a route: give --section with a notebook.")
    else:
        for name, steps in groupby(names[what].steps, key=lambda step: step.notebook):
            if name:
                yield name, tuple(section for step in steps for section in step.sections)


def write(what: str, sections: tuple[str, ...] = ()) -> list[Path]:
    """Write slides to build/stage; return their files in order."""
    all_parts = list(parts(what, sections))
    files = [STAGE / what / f"{number:02}_{name}.ipynb" for number, (name, _) in enumerate(all_parts, 1)]
    following = [*(file.stem for file in files[1:]), ""]
    for (name, chosen), file, after in zip(all_parts, files, following, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(slides(name, chosen, after), file)
    return files


def lab(file: Path) -> tuple[list[str], dict[str, str]]:
    """The command that opens JupyterLab on slides, at a projector's size, and its environment."""
    settings = Path(__file__).with_name("projector.json")
    for name, values in json.loads(settings.read_text(encoding="utf-8")).items():
        kept = SETTINGS / "config" / "lab" / "user-settings" / f"{name}.jupyterlab-settings"
        if not kept.exists():  # a presenter's own changes stay
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(values), encoding="utf-8")
    env = {**os.environ, "WORKSHOP_LEARNER_FILE": str(SETTINGS / "progress.jsonl")}
    env |= dict.fromkeys(("JUPYTER_CONFIG_PATH", "JUPYTER_PATH"), str(JUPYTER))
    env |= {f"JUPYTER_{each.upper()}_DIR": str(SETTINGS / each) for each in ("config", "data", "runtime")}
    command = [sys.executable, "-m", "jupyterlab", "--allow-root", f"--ServerApp.root_dir={file.parent}"]
    command += [f"--LabApp.default_url=/doc/tree/{file.name}"]
    return command, env
