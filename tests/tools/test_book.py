"""The pages of the book, before Sphinx makes a site of them; and the map of topics that one of them shows."""

import base64
import copy
import csv
import re

import nbformat
import pytest
from needs import needs

from workshop_lib.classroom import generate
from workshop_lib.notebook.figures import new_figure
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import ROOT

from tools import book, book_page, gallery

TOPICS = list(csv.DictReader((ROOT / "assets" / "coverage.csv").open(encoding="utf-8", newline="")))
HEADING = re.compile(r"^# #+ (.+)$", re.MULTILINE)
FIRST = "00_start_here"
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
    page = book_page.page("03b_sums", asked, solved, ran)
    nbformat.validate(page)
    title, note, stub, solution, call = page.cells
    assert title.source.startswith("# 03b · Sums")
    assert title.source.endswith("Python has a function for it.\n\n</details>")
    assert "make lab NOTEBOOK=notebooks/03b_sums.ipynb" in note.source and "no outputs" not in note.source
    assert "your code here" in stub.source and "sum(numbers)" not in stub.source
    assert "sum(numbers)" in solution.source and solution.metadata["tags"] == ["hide-input"]
    assert call.outputs[0].data["text/plain"] == "3" and "tags" not in call.metadata
    assert "it has no outputs" in book_page.page("03b_sums", *notebooks(), None).cells[1].source


def test_a_figure_tells_its_words_to_those_who_cannot_see_it():
    figure, axes = new_figure("Two ranks are faster.", "measured here")
    axes.set(xlabel="ranks", ylabel="samples/s")
    axes.set_title("mpi", loc="left")
    image = base64.b64encode(figure.png()).decode()
    output = nbformat.v4.new_output("display_data", {"image/png": image})
    shown = book_page.image_options([output])
    assert shown["classes"] == "workshop-figure workshop-wide"
    assert shown["alt"] == "Two ranks are faster. measured here. mpi. samples/s against ranks."


def with_prediction() -> list[nbformat.NotebookNode]:
    """An executed notebook's cells that ask for a number and compare it with three measurements."""
    asked = predict("How <fast>?", 0, 4, "times")
    question = nbformat.v4.new_output("display_data", {"text/plain": "?", **{book_page.NUMBERS: asked._numbers()}})
    image = {"image/png": "picture", **asked.compare([1.5, 2, 3]).numbers}
    answer = nbformat.v4.new_output("display_data", nbformat.from_dict(image))
    return [nbformat.v4.new_code_cell(outputs=[each]) for each in (question, answer)]


def test_a_prediction_is_a_slider_and_its_answer_is_revealed():
    cells = with_prediction()
    ran = nbformat.v4.new_notebook(cells=cells)
    predictions = book_page.Predictions(ran)
    for cell in cells:
        predictions.replace(cell.outputs[0])
    question, answer = (cell.outputs[0].data["text/html"] for cell in cells)
    assert "How &lt;fast&gt;?" in question and "0 to 4 times" in question, "also without a script"
    assert 'data-low="0" data-high="4" data-unit="times" data-answer="measured-1"' in question
    assert '<details class="workshop-measured" id="measured-1" data-from="0" data-to="4">' in answer
    assert 'style="width: 50%"' in answer and "<td>2 times (1.5 to 3)</td>" in answer
    assert "no guess was made" not in answer and "image/png" not in cells[1].outputs[0].data
    alone = nbformat.v4.new_notebook(cells=with_prediction()[:1])
    book_page.Predictions(alone).replace(alone.cells[0].outputs[0])
    assert "text/plain" in alone.cells[0].outputs[0].data, "nothing was measured, so nothing could be revealed"


def test_a_page_links_to_the_calculator_where_its_cell_is():
    text = SOURCE.replace("total([1, 2])", "calculator()")
    asked, solved = (nbformat.reads(generate.notebook_json(each), 4) for each in generate.split(text, "sums"))
    page = book_page.page("06_zero_and_fsdp", asked, solved, None)
    assert "](../memory.md)" in page.cells[-1].source and "](../memory.md)" in page.cells[1].source
    asked, solved = notebooks()
    assert "](../" not in "".join(cell.source for cell in book_page.page("03b_sums", asked, solved, None).cells)


@needs("book")
@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_book_is_built_without_a_warning(monkeypatch, tmp_path):
    """Of one notebook, in which a question was answered twice and another one never, and of the gallery's others."""
    ran = generate.pristine(FIRST)[1]
    [cell, *_] = [cell for cell in ran.cells if cell.cell_type == "code"]
    [question], [answer] = [each.outputs for each in with_prediction()]
    answer.data["image/png"] = base64.b64encode(new_figure("How fast?", "")[0].png()).decode()
    never_answered = copy.deepcopy(question)
    never_answered.data[book_page.NUMBERS]["question"] = "How slow?"
    cell.outputs = [question, answer, copy.deepcopy(answer), never_answered]
    current = gallery.current
    monkeypatch.setattr(gallery, "current", lambda name: ran if name == FIRST else current(name))
    monkeypatch.setenv("WORKSHOP_BOOK_URL", "https://example.org/book/")  # .github/workflows/book.yml gives it
    assert book.build(tmp_path) == 0
    assert (
        'rel="canonical" href="https://example.org/book/setup.html"' in (tmp_path / "html" / "setup.html").read_text()
    )
    assert len(list((tmp_path / "html").rglob("*.html"))) > 60
    assert f"](notebooks/{FIRST}.ipynb) (" in (tmp_path / "pages" / "index.md").read_text(), "the table of tracks"


def test_places_of_topics_are_links():
    assert book.place_link("book/measured.md") == "[Measured](book/measured.md)"
    assert book.place_link("README.md") == "[README.md](README.md)"
    place = "10_compute_nodes#Deeper: the same job under PBS"
    anchor = "notebooks/10_compute_nodes.ipynb#deeper-the-same-job-under-pbs"
    assert book.place_link(place) == f"[10: Deeper: the same job under PBS]({anchor})"


def test_each_entry_of_the_glossary_is_short_and_stands_once():
    entries = glossary()
    words = [word for words, _, _ in entries for word in words]
    assert 40 <= len(entries) <= 75 and len(words) == len(set(words))
    assert [meaning for _, meaning, _ in entries if len(meaning.split()) > 30 or not meaning.endswith(".")] == []


def test_the_notebook_that_teaches_a_term_speaks_of_it():
    silent = []
    for terms, _, taught in glossary():
        if taught:
            text = (generate.NOTEBOOKS / "source" / f"{taught}.py").read_text(encoding="utf-8").lower()
            beginnings = [[word[:7] for word in re.split(r"[\s-]", term.lower())] for term in terms]
            if not any(all(beginning in text for beginning in each) for each in beginnings):
                silent.append(f"{terms[0]} in {taught}")
    assert not silent, silent


def glossary() -> list[tuple[list[str], str, str]]:
    """The entries of the glossary: their words, their meaning, and the notebook that teaches them ("" if none does)."""
    text = (ROOT / "book" / "glossary.md").read_text(encoding="utf-8")
    found = re.findall(r"^- (\*\*.+?): (.+?)(?: \[\w+\]\(\.\./notebooks/(\w+)\.ipynb\))?$", text, re.MULTILINE)
    assert len(found) == text.count("\n- ")
    return [(re.findall(r"\*\*(.+?)\*\*", terms), meaning, taught) for terms, meaning, taught in found]


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
