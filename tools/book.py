"""Build the book: the whole workshop as a static site, with every notebook and its outputs.

    python -m tools.book     to build/book/html/index.html

Sphinx builds the site from pages that this module writes to build/book/pages: the folder book/, and around it the
notebooks, the README and the clusters' pages, so that the links between them work. No notebook runs: the outputs are
those of assets/gallery, if the code there is still that of the notebook's source.
"""

import csv
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat

from workshop_lib import paths
from workshop_lib.classroom import course_map, generate

from tools import book_page, book_tables, gallery

BOOK = paths.BUILD / "book"
TO_BOOK = re.compile(r"\]\(((?:\.\./)*)book/(?=\w)")  # the start of a link to a page of book/
TO_GALLERY = re.compile(r"\]\(assets/gallery/(?=\w+\.ipynb)")
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")
MAP = "{table of the tracks}"
TOPICS = """\
# Where each topic is taught

This workshop grew out of five documents. Here is every topic in them, and where you find it now.
"""


def write_pages(pages: Path) -> None:
    """Write everything that Sphinx reads to `pages`."""
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(paths.ROOT / "book", pages)
    of_book = {path.name for path in pages.glob("*.md")}
    linked_to = ("assets", "submissions", "tests", "tools", "workshop_lib", ".binder", ".devcontainer", ".github")
    for name in (*linked_to, "notebooks/lessons", "notebooks/scripts"):
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
        write_notebook(name, pages)
    index = pages / "index.md"
    table = course_map.course_table(generate.stops(), link="notebooks/{}".format)
    index.write_text(index.read_text(encoding="utf-8").replace(MAP, table), encoding="utf-8")
    (pages / "coverage.md").write_text("\n".join(topics()), encoding="utf-8")
    for path in pages.rglob("*.md"):
        text = path.read_text(encoding="utf-8").replace("- [ ] ", "- ☐ ")
        for name, make in book_tables.TABLES.items():
            if f"{{{name}}}" in text:
                text = text.replace(f"{{{name}}}", make())
        text = links_in_site(text, from_book=path.name in of_book and path.parent == pages)
        path.write_text(links_to_pages(text, path.parent), encoding="utf-8")


def write_notebook(name: str, pages: Path) -> None:
    """Write a notebook's page, with the outputs that the gallery has."""
    ran = gallery.current(name)
    if ran is None:
        print(f"{name} has no outputs: `make gallery NAME={name}` runs it.", file=sys.stderr)
    made = book_page.page(name, *generate.pristine(name), ran)
    for cell in made.cells:
        if cell.cell_type == "markdown":
            cell.source = links_to_pages(links_in_site(cell.source, from_book=False), pages / "notebooks")
    nbformat.write(made, pages / "notebooks" / f"{name}.ipynb")


def links_in_site(text: str, from_book: bool) -> str:
    """`text` with links that lead to the same files in the site, where the pages of book/ are one folder higher up.

    from_book: whether the text is one of these pages.
    """
    text = TO_GALLERY.sub("](notebooks/", text)
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


def sphinx(folder: Path) -> int:
    """Let Sphinx make folder/html of folder/pages; return its exit code, which isn't 0 after a warning."""
    options = ["-q", "-W", "--keep-going", "-d", folder / "doctrees", folder / "pages", folder / "html"]
    return subprocess.run([sys.executable, "-m", "sphinx", *map(str, options)], check=False).returncode


def build(folder: Path = BOOK) -> int:
    """Write the pages and build the site; return 0 if no link is broken."""
    write_pages(folder / "pages")
    made = sphinx(folder)
    print(f"The book is in {os.path.relpath(folder / 'html' / 'index.html')}.")
    return made


if __name__ == "__main__":
    sys.exit(build())
