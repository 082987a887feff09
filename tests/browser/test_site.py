"""The book in a browser, opened from files: no broken link, nothing from outside, and everybody can read it."""

import shutil
from pathlib import Path
from urllib.parse import unquote, urlparse

import nbformat
import pytest
from needs import needs

from workshop_lib.classroom import generate
from workshop_lib.notebook import prediction
from workshop_lib.paths import ROOT

from tools import book

pytestmark = needs("book")
SIZES = {"desktop": (1366, 900), "phone": (390, 844)}
# The Web Content Accessibility Guidelines, levels A and AA; without reading style sheets, which files don't allow.
RULES = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]},
    "rules": {"scrollable-region-focusable": {"enabled": False}},  # browsers put them in the Tab order by themselves
    "preload": False,
}
EVERY_LINK = "all => all.map(one => [one.href, one.textContent])"


class Visit:
    """A window of the browser, and what goes wrong on the page in it."""

    def __init__(self, browser, size: str = "desktop", theme: str = "light"):
        width, height = SIZES[size]
        self.page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
        self.errors: list[str] = []
        self.page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("requestfailed", lambda request: self.errors.append(f"not loaded: {request.url}"))
        self.page.on("request", self._note_request)

    def _note_request(self, request) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.errors.append(f"asked for {request.url}")

    def open(self, path: Path) -> list[str]:
        """What is wrong with the page in this file."""
        self.errors.clear()
        self.page.goto(path.as_uri())
        wide = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        return [*self.errors, *([f"{wide} pixels wider than the window"] if wide > 0 else [])]

    def audit(self) -> list[str]:
        """What axe finds on the page: contrast, missing alternative texts, names and labels."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page, options=RULES).response["violations"]
        return [f"{each['id']}: {node['html'][:150]}" for each in found for node in each["nodes"]]


def broken_links(visit: Visit, pages: list[Path]) -> list[str]:
    """The links between these pages whose file, or whose place in it, does not exist."""
    places, links = {}, []
    for path in pages:
        visit.page.goto(path.as_uri())
        places[path] = set(visit.page.eval_on_selector_all("[id]", "all => all.map(one => one.id)"))
        links += [(path, *link) for link in visit.page.eval_on_selector_all("a[href]", EVERY_LINK)]
    broken = []
    for path, address, text in links:
        parts = urlparse(address)
        target, place = Path(unquote(parts.path)), unquote(parts.fragment)
        there = target.is_file() and (not place or place in places.get(target, {place}))
        if parts.scheme == "file" and not there:
            broken.append(f"{path.name}: {text.strip()!r} leads to {target.name}#{place}")
    return broken


TINY = """\
# %% [markdown]
# # A tiny notebook
#
# An *allreduce* takes $\\frac{2(p-1)}{p}$ of the bytes. **Time** 5 minutes.
#
# ## A question
#
# Everybody knows the quokka.

# %%
def total(numbers):
    # <solution>
    return sum(numbers)
    # </solution>

# %%
print("the total is", total([20, 22]))

# %%
guess = predict("How many?", 0, 50, "legs")

# %%
guess.compare(42)
"""


def ran_as(solved: str) -> nbformat.NotebookNode:
    """The tiny notebook, as if its cells had run."""
    ran = nbformat.reads(solved, as_version=4)
    lines = "\n".join(f"line {n}" for n in range(100))
    printed, asked, compared = [cell for cell in ran.cells if cell.cell_type == "code"][1:]
    printed.outputs = [nbformat.v4.new_output("stream", name="stdout", text=f"the total is 42\n{lines}\n")]
    guess = prediction.predict("How many?", 0, 50, "legs")
    question = {"text/plain": "?", prediction.NUMBERS: guess._numbers()}
    answer = {"text/plain": "?", **guess.compare(42).numbers}
    asked.outputs = [nbformat.v4.new_output("display_data", question)]
    compared.outputs = [nbformat.v4.new_output("display_data", nbformat.from_dict(answer))]
    return ran


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The site with one tiny notebook instead of those of the workshop."""
    folder = tmp_path_factory.mktemp("tiny")
    source = folder / "notebooks" / "source" / "99_tiny.py"
    source.parent.mkdir(parents=True)
    source.write_text(TINY)
    shutil.copy(generate.NOTEBOOKS / generate.MAP, folder / "notebooks")
    ran = ran_as(generate.of_source(source)[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(book.generate, "NOTEBOOKS", folder / "notebooks")
        patch.setattr(book.generate, "sources", lambda: [source])
        patch.setattr(book.generate, "stops", lambda: [])
        patch.setattr(book.gallery, "current", lambda name: ran)
        book.build(folder / "book")  # warns of many links, which lead to the other notebooks
    return folder / "book" / "html"


def test_a_broken_link_fails_the_build(tmp_path):
    pages = tmp_path / "pages"
    shutil.copytree(ROOT / "book" / "_static", pages / "_static")
    shutil.copy(ROOT / "book" / "conf.py", pages)
    (pages / "glossary.md").write_text("# Glossary\n\n- **rank**: A process.\n")
    text = "# Book\n\n[words](glossary.md#glossary)\n\n```{toctree}\nglossary\n```\n"
    (pages / "index.md").write_text(text)
    assert book.sphinx(tmp_path) == 0
    (pages / "index.md").write_text(text.replace("#glossary", "#gone"))
    assert book.sphinx(tmp_path) != 0


def test_a_page_has_outputs_solutions_formulas_and_terms(browser, tiny):
    visit = Visit(browser)
    assert visit.open(tiny / "notebooks" / "99_tiny.html") == []
    article = visit.page.locator("article")
    assert "the total is 42" in article.inner_text() and "return sum" not in article.inner_text()
    article.locator("details", has_text="Solution").locator("summary").click()
    assert "return sum" in article.inner_text()
    assert article.locator("math mfrac").count() == 1
    meaning = article.locator("a.term").first.get_attribute("title")
    assert "sum" in meaning and meaning.endswith("(Taught in 01.)")
    assert "line 9" in article.inner_text() and "line 99" not in article.inner_text()
    article.locator("summary", has_text="89 more lines").click()
    assert "line 99" in article.inner_text()


def test_a_guess_is_made_with_the_keyboard_and_stands_beside_the_measured_value(browser, tiny):
    visit = Visit(browser)
    assert visit.open(tiny / "notebooks" / "99_tiny.html") == []
    page = visit.page
    button = page.get_by_role("button", name="Commit")
    assert button.is_disabled() and not page.get_by_text("42 legs").is_visible()
    page.get_by_role("slider", name="How many?").focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.textContent") == "Committed ✓"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    answer = page.locator(".workshop-measured")
    rows = [" ".join(row.split()) for row in answer.locator("tr").all_inner_texts()]
    assert rows == ["measured 42 legs", "your guess 49 legs"]
    assert page.get_by_text("42 legs").is_visible()
    assert visit.errors == []


def test_without_scripts_a_question_is_text_and_its_answer_can_be_opened(browser, tiny):
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto((tiny / "notebooks" / "99_tiny.html").as_uri())
    assert page.get_by_text("How many? (0 to 50 legs)").is_visible()
    page.locator("summary", has_text="Reveal what we measured").click()
    assert page.get_by_text("42 legs").is_visible()


def test_the_search_shows_sections_and_excerpts(browser, tiny):
    visit = Visit(browser)
    visit.page.goto((tiny / "search.html").as_uri() + "?q=quokkas")
    visit.page.locator(".search a", has_text="99 · A tiny notebook").first.wait_for(timeout=10_000)
    found = visit.page.locator(".workshop-found").first
    found.wait_for(timeout=10_000)
    assert found.locator("a").get_attribute("href") == "notebooks/99_tiny.html#a-question"
    assert found.locator("a").inner_text() == "A question"
    assert found.locator("p").inner_text().startswith("Everybody knows the quokka. def total(numbers):")
    assert found.locator("mark").inner_text() == "quokka"
    assert visit.errors == []


@pytest.fixture(scope="module")
def pages():
    """The pages of the whole book, made anew."""
    assert book.build() == 0
    return sorted((book.BOOK / "html").rglob("*.html"))


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_no_link_of_the_book_is_broken(browser, pages):
    assert broken_links(Visit(browser), pages) == []


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_every_page_of_the_book_can_be_read(browser, pages, size, theme):
    visit, found = Visit(browser, size, theme), {}
    for path in pages:
        if problems := [*visit.open(path), *(visit.audit() if size == "desktop" else [])]:
            found[str(path.relative_to(book.BOOK / "html"))] = problems
    assert found == {}
