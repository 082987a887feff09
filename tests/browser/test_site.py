"""The book in a browser, opened from files: no broken link, nothing from outside, and everybody can read it."""

import importlib.util
from pathlib import Path
from urllib.parse import unquote, urlparse

import nbformat
import pytest

from workshop_lib.maintain import book, generate

if not importlib.util.find_spec("myst_nb"):
    pytest.skip("what makes the book is not installed: `make book` does that", allow_module_level=True)

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
# An *allreduce* takes $\\frac{2(p-1)}{p}$ of the bytes.

# %%
def total(numbers):
    # <solution>
    return sum(numbers)
    # </solution>

# %%
print("the total is", total([20, 22]))
"""


@pytest.mark.timeout(120)
def test_a_book_of_one_tiny_notebook(browser, tmp_path, monkeypatch):
    folder = tmp_path / "notebooks"
    (folder / "source").mkdir(parents=True)
    source = folder / "source" / "99_tiny.py"
    source.write_text(TINY)
    _, solved = generate.of_source(source)
    ran = nbformat.reads(solved, as_version=4)
    ran.cells[2].outputs = [nbformat.v4.new_output("stream", name="stdout", text="the total is 42\n")]
    monkeypatch.setattr(book.generate, "NOTEBOOKS", folder)
    monkeypatch.setattr(book.generate, "sources", lambda: [source])
    monkeypatch.setattr(book, "executed", lambda name, solution, env: ran)
    book.build(["99_tiny"], tmp_path / "book")
    visit, site = Visit(browser), tmp_path / "book" / "html"
    assert visit.open(site / "notebooks" / "99_tiny.html") == []
    article = visit.page.locator("article")
    assert "the total is 42" in article.inner_text() and "return sum" not in article.inner_text()
    article.locator("details", has_text="Solution").locator("summary").click()
    assert "return sum" in article.inner_text()
    assert article.locator("math mfrac").count() == 1
    assert "sum" in article.locator("a.term").first.get_attribute("title")
    visit.open(site / "search.html")
    visit.page.goto((site / "search.html").as_uri() + "?q=tiny")
    visit.page.locator(".search a", has_text="99 · A tiny notebook").first.wait_for(timeout=10_000)
    assert visit.errors == []


@pytest.fixture(scope="module")
def pages():
    """The pages of the whole book, made anew from what has been executed."""
    assert book.build(generate.chosen(())) == 0
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
