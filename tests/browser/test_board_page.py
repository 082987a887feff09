"""The board of a room in a browser: readable in light, in the dark and on a phone, and it renews itself."""

import json
import random
import threading

import pytest

from workshop_lib.classroom import board

SIZES = {"projector": (1920, 1080), "phone": (390, 844)}
# That it renews itself is what it's for, and a link stops it.
RULES = {"rules": {"meta-refresh": {"enabled": False}}}
QUESTIONS = [
    ("01_mpi_basics", "How many times longer do 2,048 bytes take than 8?", "times", 1.4),
    ("02_synchronous_sgd", "What share of the time will the ranks spend in Allreduce, waiting included?", "%", 30.0),
    ("05_ddp", "How much shorter does DDP make backward and averaging?", "%", -4.0),
]
EXERCISES = ["whoami", "my_part", "exchange", "ring_allreduce", "hello.py", "average_gradients", "train_epoch"]


def learner(n: int) -> dict:
    """A made-up result."""
    draw = random.Random(n)
    guesses = [
        {
            "notebook": notebook,
            "question": question,
            "unit": unit,
            "guess": draw.randrange(60),
            "measured": near + draw.gauss(0, 2),
        }
        for notebook, question, unit, near in QUESTIONS
    ]
    speeds = [
        {"backend": backend, "world_size": ranks, "samples_per_s": draw.gauss(9000, 900) * ranks**0.8}
        for backend in ("ddp", "mpi")
        for ranks in (1, 2)
    ]
    solved = [
        {"notebook": "00_start_here" if at < 2 else "01_mpi_basics", "exercise": each}
        for at, each in enumerate(EXERCISES)
        if draw.random() < 1 - at / 9
    ]
    scores = [
        {"exercise": "best_mesh", "score": draw.choice([1.0, 1.31, 1.44])},
        {"exercise": "my_buckets", "score": draw.randint(2, 4)},
    ]
    about = {"schema": 1, "name": f"otter-{n}", "made": "2026-01-01T00:00:00+00:00", "cores": draw.choice([2, 4, 8])}
    return about | {"predictions": guesses, "solved": solved, "speeds": speeds, "scores": scores}


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    folder = tmp_path_factory.mktemp("room")
    for n in range(40):
        (folder / f"otter-{n}.json").write_text(json.dumps(learner(n)))
    (folder / "<img src=x onerror=alert(1)>.json").write_text("<script>alert(1)</script>")
    (folder / "nan.json").write_text("[NaN]")
    with board.Server(folder, 0) as server:
        threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("size", "theme"), [("projector", "light"), ("projector", "dark"), ("phone", "light")])
def test_the_board_can_be_read(browser, room, size, theme):
    _, address = room
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
    errors = []
    page.on("console", lambda said: errors.append(said.text) if said.type in ("error", "warning") else None)
    page.on("dialog", lambda dialog: errors.append("a file's script ran") or dialog.dismiss())
    page.on("request", lambda request: errors.append(request.url) if not request.url.startswith(address) else None)
    page.goto(address)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.locator("article circle").count() + page.locator("article .beyond").count() >= 40 * len(QUESTIONS)
    color = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (color == "rgb(255, 255, 255)") == (theme == "light"), "the page's own style is applied"
    assert "onerror=alert(1)" in page.locator("#problems + ul").inner_text()
    page.locator("nav a", has_text="05").click()
    assert page.locator("h3").count() == 1
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:  # comes with the book
        pass
    else:
        page.goto(address)
        found = Axe().run(page, options=RULES).response["violations"]
        assert [f"{each['id']}: {each['nodes'][0]['html']}" for each in found] == []
    assert [each for each in errors if "favicon" not in each] == []
    page.close()


@pytest.mark.timeout(120)
def test_the_board_renews_itself_and_stays_where_it_was(browser, room):
    folder, address = room
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(address)
    page.evaluate("window.scrollTo(0, 600)")
    (folder / "heron.json").write_text(json.dumps(learner(99) | {"name": "heron"}))
    page.locator(".counts", has_text="41").wait_for(timeout=30_000)
    assert page.evaluate("window.scrollY") == 600
    page.locator("nav a", has_text="pause").click()
    assert page.locator("meta[http-equiv]").count() == 0
    page.locator("nav a", has_text="go on").click()
    assert page.locator("meta[http-equiv]").count() == 1
    page.close()
