"""The board of a room in a browser: readable in light, in the dark and on a phone."""

import json
import random

import pytest

from workshop_lib.classroom import board
from workshop_lib.exercises.exercises import by_notebook

SIZES = {"projector": (1920, 1080), "phone": (390, 844)}
# That it renews itself is what it's for.
RULES = {"rules": {"meta-refresh": {"enabled": False}}}
QUESTIONS = [
    ("01_mpi_basics", "How many times longer do 2,048 bytes take than 8?", "times", 1.4),
    ("02_synchronous_sgd", "What share of the time will the ranks spend in Allreduce, waiting included?", "%", 30.0),
    ("05_ddp", "How much shorter does DDP make backward and averaging?", "%", -4.0),
]


def learner(n: int) -> dict:
    """A made-up result."""
    draw = random.Random(n)
    guesses = [
        {"notebook": notebook, "question": question, "unit": unit}
        | {"guess": draw.randrange(60), "measured": near + draw.gauss(0, 2)}
        for notebook, question, unit, near in QUESTIONS
    ]
    names = [name for name in by_notebook()["01_mpi_basics"] if draw.random() < 0.7]
    return {"predictions": guesses, "solved": [{"notebook": "01_mpi_basics", "exercise": name} for name in names]}


@pytest.fixture
def room(tmp_path):
    folder = tmp_path / "room"
    folder.mkdir()
    for n in range(40):
        (folder / f"otter-{n}.json").write_text(json.dumps(learner(n)))
    (folder / "<img src=x onerror=alert(1)>.json").write_text("<script>alert(1)</script>")
    return folder


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("size", "theme"), [("projector", "light"), ("phone", "dark")])
def test_the_board_can_be_read(browser, room, tmp_path, size, theme):
    width, height = SIZES[size]
    address = (tmp_path / "board.html").as_uri()
    board.write(room, tmp_path / "board.html")
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
    errors = []
    page.on("console", lambda said: errors.append(said.text) if said.type in ("error", "warning") else None)
    page.on("dialog", lambda dialog: errors.append("a file's script ran") or dialog.dismiss())
    page.on("request", lambda request: errors.append(request.url) if request.url != address else None)
    page.goto(address)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.locator("article .measured:visible").count() == 0
    page.locator("article a", has_text="Reveal").first.click()
    assert page.locator("article .measured:visible").count() == 40
    page.locator("nav a", has_text="02").click()
    assert page.evaluate("document.querySelector('h2:target').innerText") == "02 synchronous sgd"
    errors.clear()
    assert page.locator("article circle:visible").count() == 40 * len(QUESTIONS)
    color = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (color == "rgb(255, 255, 255)") == (theme == "light"), "the page's own style is applied"
    assert "onerror=alert(1)" in page.locator("#problems + ul").inner_text()
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:  # comes with the book
        pass
    else:
        found = Axe().run(page, options=RULES).response["violations"]
        assert [f"{each['id']}: {each['nodes'][0]['html']}" for each in found] == []
    assert errors == []
    page.close()
