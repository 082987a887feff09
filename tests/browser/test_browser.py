"""A learner's way through a notebook: open it in JupyterLab, run all cells, see the plot."""

import json
import re

import pytest
from browser.lab import IDLE, Lab

from workshop_lib.classroom import generate

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


SWEEP = """\
# %%
from workshop_lib import ranks
from workshop_lib.notebook.live_sweep import sweep
from workshop_lib.notebook.prediction import predict
from workshop_lib.training.options import TrainOptions
options = [TrainOptions(backend=name, epochs=2, train_samples=2000) for name in ("mpi", "ddp")]
measured = []
unanswered = predict("Nobody answers this.", 0, 10)
unanswered

# %%
guess = predict("Will it be stopped?", 0, 100, "%")
guess

# %%
for record in sweep(ranks.start, [1, 2], options, repeats=20):
    measured.append(record)

# %%
ranks.stop()
print(len(measured), "runs, cut off:", sum(record["stopped"] for record in measured))
guess.compare(100)
"""


@pytest.mark.timeout(300)
def test_a_sweep_takes_a_guess_and_a_stop_while_it_runs_and_what_it_shows_stays_for_the_next_day(open_in):
    lab = open_in("sweep.ipynb", generate.notebook_json(SWEEP))
    page = lab.page
    lab.begin_all()
    dashboard = page.locator(DASHBOARD)
    late = r"run ([4-9]|\d\d) of 80, on 1 rank.* · about \d+ (s|min) left"
    lab._wait_for("fourth run", lambda: dashboard.count() and re.search(late, dashboard.inner_text()), 120)
    lab.guess(0.3)
    focused = "document.activeElement.textContent"
    lab._wait_for("a committed guess", lambda: "Committed ✓" in page.evaluate(focused), 10)
    page.keyboard.press("Shift+Enter")  # runs the question's cell again once the sweep is over
    lab._wait_for("a cell that runs again", lambda: lab.prompts()[1] == "[*]:", 10)
    place = "e => e.getBoundingClientRect().x"
    assert page.eval_on_selector(".workshop-stop", place) < 400, "the bar beside it doesn't move the button"
    page.evaluate("document.body.style.setProperty('--jp-content-font-size1', '20px')")  # as Settings > Theme does
    size = page.eval_on_selector(f"{DASHBOARD} button", "button => getComputedStyle(button).fontSize")
    assert size == "20px", "widgets are as large as the text"
    lab.press("Stop")
    lab.wait_done(60)
    assert lab.errors() == []
    assert page.evaluate(focused) == "Stopped ✓", "the focus stays, so the keyboard goes on"
    assert lab.too_wide() == []
    lab.choose("Settings", "Theme", "JupyterLab Dark")
    darkened = "image => getComputedStyle(image).filter"
    lab._wait_for("a dark figure", lambda: "invert" in page.eval_on_selector(PLOT, darkened), 20)
    page.emulate_media(media="print")
    assert page.eval_on_selector(PLOT, darkened) == "none", "paper is white"
    page.emulate_media(media="screen")
    lab.choose("Settings", "Theme", "JupyterLab Light")
    lab.save()
    lab.end_kernels()
    lab.open("sweep.ipynb")
    text = "\n".join(output.text for output in lab.outputs())
    [done] = re.findall(r"(\d+) of 80 runs · stopped", text)
    assert f"{done} runs, cut off: 0" in text
    assert re.search(r"Will it be stopped\? \(0 to 100 %\)(29|30|31) % \(committed\)", text)
    assert page.locator(".workshop-left img:visible").count() == 1, "the sweep's curve is still there"
    assert page.locator(PLOT).count() == 1, "and the guess beside the outcome"
    dead = ".jp-OutputArea-output.jupyter-widgets:not(:has(*)):visible"
    lab._wait_for("only one question that says how to go on", lambda: page.locator(dead).count() == 1, 20)
    rest = page.eval_on_selector(
        ".jp-OutputArea-output.jupyter-widgets", "one => getComputedStyle(one, '::after').content"
    )
    assert rest == '"Run this cell again to use its controls."', "in place of an error"
    assert not lab.is_changed()


LONG_CALL = """\
# %%
from workshop_lib import notebook, ranks
team = ranks.start(2)

# %%
# %%ranks --timeout 600
import time
time.sleep(600)
"""


@pytest.mark.timeout(300)
def test_a_page_opened_during_a_call_can_stop_it_and_one_whose_kernel_is_restarted_says_so(open_in):
    lab = open_in("long_call.ipynb", generate.notebook_json(LONG_CALL))
    page = lab.page
    dashboard = page.locator(f"{DASHBOARD}:visible")

    def wait_for_ranks_at_work() -> None:
        lab._wait_for("a call", lambda: dashboard.count() and "2 of 2 ranks running" in dashboard.inner_text(), 90)

    lab.begin_all()
    wait_for_ranks_at_work()
    lab.save()
    page.reload()
    wait_for_ranks_at_work()
    assert page.locator(IDLE.replace("idle", "busy")).count() == 1, "the page knows that the kernel is busy"
    assert page.locator(".workshop-left:visible").count() == 0
    lab.press("Stop")
    lab.wait_idle(60)
    assert "stopped" in dashboard.inner_text()
    lab.begin_all()
    wait_for_ranks_at_work()
    lab.choose("Kernel", "Restart Kernel…")
    page.locator(".jp-Dialog button.jp-mod-accept").click()
    left = page.locator(".workshop-left:visible")
    lab._wait_for("words about the kernel", left.count, 60)
    assert "If the kernel was restarted, the ranks ended with it" in left.inner_text() and dashboard.count() == 0
    lab.wait_idle(60)


EXERCISE = """\
# %%
from workshop_lib import notebook, ranks
from lessons import start_here as lesson
team = ranks.start(2)

# %%
def whoami(comm):
    raise NotImplementedError("your code here")

# %%
lesson.check.whoami(whoami)

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
        lab.edit_and_run("lesson.check.whoami", "lesson.check.whoami(whoami)")
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
