"""Build the book: the whole workshop as a static site, with every notebook and its outputs on this machine.

    python -m workshop_lib.maintain.book [NAME …]     to build/book/html/index.html

Sphinx builds the site from pages that this module writes to build/book/pages: the folder book/, and around it the
notebooks, the README and the clusters' pages, so that the links between them work. All links are checked before any
notebook runs. A notebook is executed in the quick profile, and again only when its code or the library has changed. If
notebooks are named, only these are executed.
"""

import argparse
import csv
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from workshop_lib import paths
from workshop_lib.course import exercises
from workshop_lib.errors import InputError
from workshop_lib.maintain import book_page, book_tables, course_map, execute, generate

BOOK = paths.BUILD / "book"
UNSOLVED = BOOK / "notebooks"  # as the sources give them, whatever a learner did to those of the checkout
CELL_TIMEOUT_S = 180.0
TO_BOOK = re.compile(r"\]\(((?:\.\./)*)book/(?=\w)")  # the start of a link to a page of book/
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")
MAP = "{table of the tracks}"
TOPICS = """\
# Where each topic is taught

This workshop grew out of five documents. Here is every topic in them, and where you find it now.
"""


def digest(notebook: NotebookNode) -> str:
    """A digest of all that determines a notebook's outputs: its code, the library's and the scripts', and pictures."""
    files = [path for path in (paths.ROOT / "workshop_lib").rglob("*") if path.suffix in (".py", ".toml")]
    files = [path for path in files if path not in (Path(__file__), Path(book_page.__file__))]
    content = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    files += [path for path in paths.SCRIPTS.iterdir() if path.suffix in (".py", ".sh")]
    files += (paths.ROOT / "assets" / "pictures").glob("*.svg")
    content += [path.read_text(encoding="utf-8") for path in sorted(files)]
    return hashlib.sha256("\0".join(content).encode()).hexdigest()[:16]


def executed(name: str, solution: NotebookNode, env: dict[str, str] | None) -> NotebookNode | None:
    """The notebook `solution` with its outputs, from an earlier run or, with `env`, from a run now. None if there is no
    earlier run and no `env`, or if a cell fails."""
    kept = BOOK / "executed" / f"{name}-{digest(solution)}.ipynb"
    if not kept.exists() and env is None:
        return None
    if not kept.exists():
        output = BOOK / "executed" / f"{name}.ipynb"
        outcome = execute.run_notebook(exercises.solutions_of(UNSOLVED / output.name), output, CELL_TIMEOUT_S, env)
        print(outcome, flush=True)
        if outcome.error:
            return None
        for old in kept.parent.glob(f"{name}-*.ipynb"):
            old.unlink()
        output.replace(kept)
    # Readers of the book need not know where the checkout and its owner's files are on this machine.
    text = kept.read_text(encoding="utf-8").replace(f"{paths.ROOT}/", "").replace(str(paths.ROOT), ".")
    text = text.replace(f"{Path.home()}/", "~/")
    return nbformat.reads(text, as_version=4)


def write_pages(pages: Path) -> None:
    """Write everything that Sphinx reads to `pages`; the notebooks as long as they have no outputs."""
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(paths.ROOT / "book", pages)
    of_book = {path.name for path in pages.glob("*.md")}
    linked_to = ("assets", "submissions", "tests", "workshop_lib", ".binder", ".devcontainer", ".github")
    for name in (*linked_to, "notebooks/scripts"):
        shutil.copytree(paths.ROOT / name, pages / name, ignore=shutil.ignore_patterns("*.gz", "__pycache__"))
    of_root = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "AGENTS.md", "CITATION.cff", "LICENSE")
    for name in (*of_root, "Makefile", "pyproject.toml"):
        shutil.copy(paths.ROOT / name, pages)
    for name in ("book", "notebooks/source", "notebooks/solutions"):  # these are linked to, but have no page
        (pages / name).mkdir()
    shutil.copy(generate.NOTEBOOKS / generate.MAP, pages / "notebooks")
    for folder in (pages / "notebooks" / "scripts", *(pages / "submissions").iterdir()):
        if folder.is_dir():
            add_files(folder)
    for name in generate.chosen(()):
        write_notebook(name, None, pages)
    index = pages / "index.md"
    table = course_map.table(generate.stops(), folder="notebooks/")
    index.write_text(index.read_text(encoding="utf-8").replace(MAP, table), encoding="utf-8")
    (pages / "coverage.md").write_text("\n".join(topics()), encoding="utf-8")
    for path in pages.rglob("*.md"):
        text = path.read_text(encoding="utf-8").replace("- [ ] ", "- ☐ ")
        for name, make in book_tables.TABLES.items():
            if f"{{{name}}}" in text:
                text = text.replace(f"{{{name}}}", make())
        text = links_in_site(text, from_book=path.name in of_book and path.parent == pages)
        path.write_text(links_to_pages(text, path.parent), encoding="utf-8")


def write_notebook(name: str, ran: NotebookNode | None, pages: Path) -> None:
    """Write a notebook's page, with the outputs of its executed solution `ran` if there is one."""
    made = book_page.page(name, *generate.pristine(name), ran)
    for cell in made.cells:
        if cell.cell_type == "markdown":
            cell.source = links_to_pages(links_in_site(cell.source, from_book=False), pages / "notebooks")
    nbformat.write(made, pages / "notebooks" / f"{name}.ipynb")


def add_outputs(names: list[str], pages: Path) -> bool:
    """Give the notebooks' pages their outputs, and run the named ones if need be; return whether all of these ran."""
    env = execute.without_learner(UNSOLVED) | {"WORKSHOP_PROFILE": "quick"}
    whole = True
    for name in generate.chosen(()):
        ran = executed(name, generate.pristine(name)[1], env if name in names else None)
        if ran is not None:
            write_notebook(name, ran, pages)
        elif name in names:
            whole = False
    return whole


def links_in_site(text: str, from_book: bool) -> str:
    """`text` with links that lead to the same files in the site, where the pages of book/ are one folder higher up.

    from_book: whether the text is one of these pages.
    """
    return text.replace("](../", "](") if from_book else TO_BOOK.sub(r"](\1", text)


def links_to_pages(text: str, folder: Path) -> str:
    """`text` in which links to folders lead to the folder's page, or are removed if it has none."""

    def link(match: re.Match) -> str:
        if not (folder / match[2]).is_dir():
            return match[0]
        page = f"{match[2]}/README.md"
        return f"[{match[1]}]({page})" if (folder / page).exists() else f"`{match[1]}`"

    return LINK.sub(link, text)


def add_files(folder: Path) -> None:
    """Show the scripts of a folder at the end of its page, each folded."""
    readme = folder / "README.md"
    lines = [readme.read_text(encoding="utf-8")] if readme.exists() else [""]
    for path in sorted([*folder.glob("*.sh"), *folder.glob("*.py")]):
        language = {".sh": "bash", ".py": "python"}[path.suffix]
        lines += [f"<details><summary><code>{path.name}</code></summary>", ""]
        lines += [f"```{{literalinclude}} {path.name}", f":language: {language}", "```", "", "</details>", ""]
    if lines[0]:
        readme.write_text("\n".join(lines), encoding="utf-8")


def topics() -> Iterator[str]:
    """The lines of the page that says where each topic of the documents is taught."""
    yield TOPICS
    document = ""
    with (paths.ROOT / "assets" / "coverage.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["document"] != document:
                document = row["document"]
                yield f"\n## {document.partition(' ')[2]}\n\n| topic | where |\n|---|---|"
            places = ", ".join(place_link(place) for place in row["where"].split("; ") if place) or "not taught here"
            yield f"| {cell(row['topic'])} | {places} |"


def cell(text: str) -> str:
    """Plain text, escaped for a cell of a Markdown table."""
    return re.sub(r"([\\|*_$<`\[])", r"\\\1", text)


def place_link(place: str) -> str:
    """A place of coverage.csv as a link: NOTEBOOK, NOTEBOOK#HEADING, or a file or folder."""
    stem, _, heading = place.partition("#")
    number = stem.partition("_")[0]
    if (generate.NOTEBOOKS / "source" / f"{stem}.py").exists():
        anchor = re.sub(r"[^\w\u4e00-\u9fff\- ]", "", heading.strip().lower().replace(" ", "-"))
        if heading:
            return f"[{number}: {heading}](notebooks/{stem}.ipynb#{anchor})"
        return f"[{number}](notebooks/{stem}.ipynb)"
    if place.startswith("book/"):
        title = (paths.ROOT / place).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        return f"[{title}]({place})"
    return f"[{place}]({place})"


def sphinx(builder: str, folder: Path, target: str) -> int:
    """Let Sphinx read the pages and write them to `target`; return its exit code, which isn't 0 after a warning."""
    options = ["-q", "-W", "--keep-going", "-b", builder, "-d", folder / "doctrees", folder / "pages", folder / target]
    return subprocess.run([sys.executable, "-m", "sphinx", *map(str, options)], check=False).returncode


def build(names: list[str], folder: Path = BOOK) -> int:
    """Write the pages and build the site; return 0 if all of the named notebooks ran and no link is broken."""
    write_pages(folder / "pages")
    if sphinx("dummy", folder, "nothing"):  # the same checks as at the end
        print("No notebook was run: fix what Sphinx says above first.", file=sys.stderr)
        return 1
    whole = add_outputs(names, folder / "pages")
    made = sphinx("html", folder, "html")
    print(f"The book is in {os.path.relpath(folder / 'html' / 'index.html')}.")
    return made or 1 - whole


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m workshop_lib.maintain.book")
    parser.add_argument("names", nargs="*", metavar="NAME", help="execute only these notebooks (all if none is named)")
    try:
        sys.exit(build(generate.chosen(parser.parse_args().names)))
    except InputError as error:
        sys.exit(str(error))
