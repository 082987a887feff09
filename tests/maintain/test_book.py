"""The pages of the book, before Sphinx makes a site of them; and the map of topics that one of them shows."""

import base64
import csv
import re

import nbformat

from workshop_lib.maintain import book, generate
from workshop_lib.notebook.figures import new_figure
from workshop_lib.paths import ROOT

TOPICS = list(csv.DictReader((ROOT / "assets" / "coverage.csv").open(encoding="utf-8", newline="")))
HEADING = re.compile(r"^# #+ (.+)$", re.MULTILINE)
SOURCE = """\
# %% [markdown]
# # Sums
#
# **Time** is short.
#
# <details><summary>Hint</summary>
#
# Python has a function for it.
#
# </details><details><summary>Solution</summary>
#
# ```python
# def total(numbers):
#     return sum(numbers)
# ```
#
# </details>

# %%
def total(numbers):
    # <solution>
    return sum(numbers)
    # </solution>

# %%
total([1, 2])
"""


def notebooks() -> tuple[nbformat.NotebookNode, nbformat.NotebookNode]:
    return tuple(nbformat.reads(generate.notebook_json(text), 4) for text in generate.split(SOURCE, "sums"))


def test_a_page_has_the_stub_and_below_it_the_solution_folded():
    asked, solved = notebooks()
    ran = nbformat.from_dict(solved)
    ran.cells[2].outputs = [nbformat.v4.new_output("execute_result", {"text/plain": "3"})]
    page = book.page("03b_sums", asked, solved, ran)
    nbformat.validate(page)
    title, note, stub, solution, call = page.cells
    assert title.source.startswith("# 03b · Sums")
    assert title.source.endswith("Python has a function for it.\n\n</details>")
    assert "make lab NOTEBOOK=notebooks/03b_sums.ipynb" in note.source and "didn't run" not in note.source
    assert "your code here" in stub.source and "sum(numbers)" not in stub.source
    assert "sum(numbers)" in solution.source and solution.metadata["tags"] == ["hide-input"]
    assert call.outputs[0].data["text/plain"] == "3" and "tags" not in call.metadata


def test_a_page_without_outputs_says_so():
    page = book.page("03b_sums", *notebooks(), None)
    assert "didn't run" in page.cells[1].source


def test_outputs_are_kept_until_code_changes():
    asked, solved = notebooks()
    before = book.digest(solved)
    solved.cells[0].source += " More words."
    assert book.digest(solved) == before != book.digest(asked)


def test_a_figure_tells_its_words_to_those_who_cannot_see_it():
    figure, axes = new_figure("Two ranks are faster.", "measured here")
    axes.set(xlabel="ranks", ylabel="samples/s")
    axes.set_title("mpi", loc="left")
    image = base64.b64encode(figure.png()).decode()
    output = nbformat.v4.new_output("display_data", {"image/png": image})
    assert book.alternative_text([output]) == "Two ranks are faster. measured here. mpi. samples/s against ranks."


def test_links_to_folders_lead_to_their_page(tmp_path):
    (tmp_path / "with").mkdir()
    (tmp_path / "with" / "README.md").touch()
    (tmp_path / "without").mkdir()
    text = "[a](with), [b](without), [c](file.py), [d](https://example.org/with)"
    linked = "[a](with/README.md), `b`, [c](file.py), [d](https://example.org/with)"
    assert book.links_to_pages(text, tmp_path) == linked


def test_links_to_and_from_the_pages_of_book_are_as_in_the_site():
    assert book.links_in_site("[a](book/setup.md), [b](book)", from_book=False) == "[a](setup.md), [b](book)"
    assert book.links_in_site("[a](../../book/setup.md)", from_book=False) == "[a](../../setup.md)"
    assert book.links_in_site("[a](../README.md), [b](memory.md)", from_book=True) == "[a](README.md), [b](memory.md)"


def test_places_of_topics_are_links():
    assert book.place_link("README.md") == "[README.md](README.md)"
    place = "10_compute_nodes#Deeper: what you tell a launcher"
    anchor = "notebooks/10_compute_nodes.ipynb#deeper-what-you-tell-a-launcher"
    assert book.place_link(place) == f"[10: Deeper: what you tell a launcher]({anchor})"


def test_each_entry_of_the_glossary_is_short_and_stands_once():
    entries = re.findall(r"^- (\*\*.+?): (.+)$", (ROOT / "book" / "glossary.md").read_text(), re.MULTILINE)
    words = [word for terms, _ in entries for word in re.findall(r"\*\*(.+?)\*\*", terms + "")]
    assert 40 <= len(entries) <= 70 and len(words) == len(set(words))
    assert [meaning for _, meaning in entries if len(meaning.split()) > 30 or not meaning.endswith(".")] == []


def places(row: dict[str, str]) -> list[str]:
    return [place for place in row["where"].split("; ") if place]


def exists(place: str) -> bool:
    """A file or folder of the checkout; a notebook, or NOTEBOOK#HEADING."""
    stem, _, heading = place.partition("#")
    source = generate.NOTEBOOKS / "source" / f"{stem}.py"
    if not source.is_file():
        return not heading and (ROOT / place).exists()
    return not heading or heading in HEADING.findall(source.read_text(encoding="utf-8"))


def test_each_topic_is_listed_once_with_a_status():
    assert len(TOPICS) == 225 == len({(row["document"], row["topic"]) for row in TOPICS})
    assert {row["status"] for row in TOPICS} == {"well", "thin", "absent"}


def test_each_place_exists_and_each_topic_that_is_not_absent_has_one():
    missing = {row["topic"]: [place for place in places(row) if not exists(place)] for row in TOPICS}
    assert {topic: where for topic, where in missing.items() if where} == {}
    assert [row["topic"] for row in TOPICS if bool(places(row)) == (row["status"] == "absent")] == []
