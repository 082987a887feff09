"""A learner's way through a notebook: open it in JupyterLab, run all cells, see the plot."""

import json
import re

import pytest
from browser.lab import Lab

from workshop_lib.maintain import generate

PLOT = '.jp-OutputArea-output[data-mime-type="image/png"] img'
DASHBOARD = ".workshop-dashboard"


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory):
    """One JupyterLab for all tests, on a folder of its own."""
    private = tmp_path_factory.mktemp("lab")
    folder = private / "notebooks"
    (folder / "solutions").mkdir(parents=True)
    for source in generate.sources():  # for their names
        (folder / f"{source.stem}.ipynb").touch()
    with Lab(browser, folder, private) as lab:
        lab.start()
        yield lab


@pytest.fixture
def open_in(lab):
    """Opens a notebook, given its name and content; ends its kernel after the test."""

    def open_notebook(name: str, content: str) -> Lab:
        (lab.folder / name).write_text(content)
        lab.open(name)
        return lab

    yield open_notebook
    assert lab.foreign == [], "the page asked for something outside this machine"
    lab.end_kernels()


def check_the_list_of_notebooks(lab):
    """What jupyter_server_config.py and the settings beside it are for; there is a folder `solutions` too."""
    assert f"{lab.url}/lab/tree/00_start_here.ipynb" in lab.log.read_text(), "the address that it prints"
    assert lab.page.locator(".Toastify__toast").count() == 0, "a pop-up about news"
    names = lab.page.locator(".jp-DirListing-itemText")
    assert "00_start_here.ipynb" in names.all_inner_texts() and "solutions" not in names.all_inner_texts()
    cut = "all => all.filter(one => one.scrollWidth > one.clientWidth).length"
    assert lab.page.eval_on_selector_all(".jp-DirListing-itemText", cut) == 0


STOPPED = """\
# %%
from workshop_lib import notebook, ranks
from workshop_lib.notebook.prediction import predict
from workshop_lib.training.options import TrainOptions
team = ranks.start(4)
unanswered = predict("Nobody answers this.", 0, 10)
unanswered

# %%
guess = predict("Will it be stopped?", 0, 100, "%")
guess

# %%
record = team.train(TrainOptions(epochs=50), timeout=300)

# %%
print("stopped:", record["stopped"], "identical:", record["ranks_identical"])
print("still works:", team.run(max, 1, 2))
ranks.stop()
guess.compare(100)
"""


def dashboard(lab) -> dict[str, list[str]]:
    """The ranks that have lines and strips in the page, and the words of the dashboard."""
    page, place = lab.page, f"{DASHBOARD} svg "
    read = {"data-rank": "polyline", "data-strip": "g"}
    found = {
        name: page.eval_on_selector_all(f"{place}{tag}[{name}]", f"all => all.map(one => one.getAttribute('{name}'))")
        for name, tag in read.items()
    }
    return found | {"words": page.locator(DASHBOARD).inner_text().split("\n")}


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_the_dashboard_shows_every_rank_and_its_button_stops_them_cleanly(open_in):
    lab = open_in("stop.ipynb", generate.notebook_json(STOPPED))
    lab.begin_all()
    lab.page.wait_for_selector(f'{DASHBOARD} [data-strip="3"]', state="attached", timeout=90_000)
    lab.page.wait_for_timeout(2000)
    early = dashboard(lab)
    assert early["data-rank"] == ["0", "1", "2", "3", "all"] * 2, "loss and accuracy of each rank"
    assert early["data-strip"] == ["0", "1", "2", "3"]
    lab.page.wait_for_timeout(1500)
    assert dashboard(lab)["words"] != early["words"], "the dashboard does not move"
    assert lab.too_wide() == []
    lab.guess(0.3)  # while the cell runs
    focused = "document.activeElement.textContent"
    lab._wait_for("a committed guess", lambda: "Committed ✓" in lab.page.evaluate(focused), 10)
    lab.page.keyboard.press("Shift+Enter")  # runs the question's cell again once the training is over
    lab._wait_for("a cell that runs again", lambda: lab.prompts()[1] == "[*]:", 10)
    place = "e => e.getBoundingClientRect().x"
    assert lab.page.eval_on_selector(".workshop-stop", place) < 400, "the bar beside it doesn't move the button"
    lab.page.evaluate("document.body.style.setProperty('--jp-content-font-size1', '20px')")  # as Settings > Theme does
    size = lab.page.eval_on_selector(f"{DASHBOARD} button", "button => getComputedStyle(button).fontSize")
    assert size == "20px", "widgets are as large as the text"
    lab.press("Stop")
    lab.wait_done(60)
    assert lab.errors() == []
    assert lab.page.evaluate(focused) == "Stopped ✓", "the focus stays, so the keyboard goes on"
    text = "\n".join(output.text for output in lab.outputs())
    assert "stopped: True" in text
    assert "identical: True" in text
    assert "still works: [2, 2, 2, 2]" in text
    lab.save()
    lab.end_kernels()
    lab.open("stop.ipynb")
    text = "\n".join(output.text for output in lab.outputs())
    assert re.search(r"Will it be stopped\?(29|30|31) % \(committed\)", text)
    assert "of 50, step" in text and "· stopped" in text and "running" not in text
    lines = lab.page.eval_on_selector_all("svg polyline[data-rank]", "all => all.map(one => one.dataset.rank)")
    assert lines == ["0", "1", "2", "3", "all"] * 2, "the run's curves are still there"
    assert len(lab.images()) == 1, "and the guess beside the outcome"
    dead = ".jp-OutputArea-output.jupyter-widgets:not(:has(*)):visible"
    assert lab.page.locator(dead).count() == 1, "only the question without an answer says how to go on"
    rest = lab.page.eval_on_selector(
        ".jp-OutputArea-output.jupyter-widgets", "one => getComputedStyle(one, '::after').content"
    )
    assert rest == '"Run this cell again to use its controls."', "in place of an error"
    assert not lab.is_changed()


SWEEP = """\
# %%
from workshop_lib import ranks
from workshop_lib.notebook.figures.scaling import serial_part
from workshop_lib.notebook.live_sweep import sweep
from workshop_lib.training.options import TrainOptions
options = [TrainOptions(backend=name, epochs=2, train_samples=2000) for name in ("mpi", "ddp")]
measured = []

# %%
for record in sweep(ranks.start, [1, 2], options, repeats=20):
    measured.append(record)

# %%
ranks.stop()
print(len(measured), "runs, cut off:", sum(record["stopped"] for record in measured))
serial_part(0.05)
"""


@pytest.mark.timeout(300)
def test_a_sweep_fills_its_curve_in_until_it_is_stopped_and_figures_are_dark_in_a_dark_theme(open_in):
    lab = open_in("sweep.ipynb", generate.notebook_json(SWEEP))
    lab.begin_all()
    runs = lab.page.locator(f"{DASHBOARD} g[data-runs] path")
    lab._wait_for("three runs in the curve", lambda: runs.count() >= 3, 120)
    words = lab.page.locator(DASHBOARD).inner_text()
    assert re.search(r"run \d+ of 80, on 1 rank.* · about \d+ (s|min) left", words), words
    lab.press("Stop")
    lab.wait_done(60)
    assert lab.errors() == []
    assert lab.page.evaluate("document.activeElement.textContent") == "Stopped ✓"
    text = "\n".join(output.text for output in lab.outputs())
    assert f"{runs.count()} of 80 runs · stopped" in text and f"{runs.count()} runs, cut off: 0" in text
    assert lab.too_wide() == []
    lab.choose("Settings", "Theme", "JupyterLab Dark")
    darkened = "image => getComputedStyle(image).filter"
    lab._wait_for("a dark figure", lambda: "invert" in lab.page.eval_on_selector(PLOT, darkened), 20)
    lab.page.emulate_media(media="print")
    assert lab.page.eval_on_selector(PLOT, darkened) == "none", "paper is white"
    lab.page.emulate_media(media="screen")
    lab.choose("Settings", "Theme", "JupyterLab Light")


EXERCISE = """\
# %%
from workshop_lib import notebook, ranks
from workshop_lib.lessons.start_here import judge as check
team = ranks.start(2)

# %%
def whoami(comm):
    raise NotImplementedError("your code here")

# %%
check.whoami(whoami)

# %%
# %%ranks --catch --timeout 30
from mpi4py import MPI
import numpy as np
comm = MPI.COMM_WORLD
comm.Ssend(np.zeros(1), dest=1 - comm.rank)
"""


@pytest.mark.core
@pytest.mark.timeout(300)
def test_from_stub_to_solution_with_a_hint_and_a_deadlock_on_the_way(open_in):
    lab = open_in("exercise.ipynb", generate.notebook_json(EXERCISE))
    solutions = lab.folder / "solutions" / "exercise_solutions.ipynb"
    solutions.write_text(generate.notebook_json("# %% [markdown]\n# # Solved"))
    lab.learner.unlink(missing_ok=True)

    def says(part: str) -> str:
        return "\n".join(output.text for output in lab.outputs() if part in output.text)

    check_the_list_of_notebooks(lab)
    lab.run_all(90)
    assert "not solved yet" in says("whoami")
    deadlock = says("deadlock: every rank waits for another one")
    assert "ranks 0, 1: at In[4], line 5" in deadlock, "the number beside the cell, the line in it"
    assert "ranks 0, 1: at " in deadlock and "comm.Ssend(np.zeros(1), dest=1 - comm.rank)" in deadlock
    lab.edit_and_run("ranks.start(2)", "team.restart()")
    for answer, verdict in (("0, comm.size", "Hint: "), ("comm.rank, comm.size", "correct")):
        lab.edit_and_run("def whoami", f"def whoami(comm):\n    return {answer}")
        lab.edit_and_run("check.whoami", "check.whoami(whoami)")
        assert verdict in says("whoami")
        breaks = lab.page.eval_on_selector(".workshop-check", "check => getComputedStyle(check).wordBreak")
        assert breaks == "normal", "hints break between words"
        if verdict == "Hint: ":
            lab.page.locator(".workshop-check a").click()
            lab.page.wait_for_selector(".jp-Notebook h1:has-text('Solved')")
            tab = lab.page.locator(".lm-TabBar-tab.jp-mod-current .lm-TabBar-tabLabel").last
            assert tab.inner_text() == "exercise_solutions.ipynb", "not the name of the learner's own notebook"
            lab.page.locator(".lm-TabBar-tab.jp-mod-current .lm-TabBar-tabCloseIcon").click()
    kept = [(check["exercise"], check["passed"]) for check in map(json.loads, lab.learner.open())]
    assert kept == [("whoami", False), ("whoami", True)]
