"""A learner's way through a notebook: open it in JupyterLab, run all cells, see the plot."""

import os

import pytest
from browser.lab import Lab, NoBrowser, launch

from workshop_lib.notebook import generate
from workshop_lib.paths import BUILD

SCREENSHOTS = BUILD / "screenshots"
SIZES = {"laptop": (1366, 768), "projector": (1920, 1080)}
PLOT = '.jp-OutputArea-output[data-mime-type="image/png"] img'
DASHBOARD = ".workshop-dashboard"
WIDGETS = ".jp-OutputArea-output .jupyter-widgets"


@pytest.fixture(scope="module")
def browser():
    try:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            started = launch(playwright)
            yield started
            started.close()
    except (ImportError, NoBrowser) as error:
        if os.environ.get("WORKSHOP_REQUIRE_BROWSER") == "1":
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory):
    """One JupyterLab for all tests, on a folder of its own."""
    private = tmp_path_factory.mktemp("lab")
    folder = private / "notebooks"
    folder.mkdir()
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


# The others show the same kinds of output.
NAMES = ["00_start_here"] + [
    pytest.param(source.stem, marks=pytest.mark.exhaustive) for source in generate.sources()[1:]
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_run_all_shows_plots_and_widgets_and_no_error(open_in, name):
    lab = open_in(f"{name}.ipynb", (generate.NOTEBOOKS / f"{name}.ipynb").read_text())
    lab.run_all(timeout_s=400)
    assert lab.errors() == []
    assert lab.images(), "no figure is in the notebook"
    assert lab.widgets(), "no widget is in the notebook"
    for size, (width, height) in SIZES.items():
        for shown, where in (("plot", PLOT), ("widget", WIDGETS)):
            lab.screenshot(SCREENSHOTS / f"{name}-{shown}-{size}.png", width, height, where)


STOPPED = """\
# %%
from workshop_lib import notebook, ranks
from workshop_lib.training.options import TrainOptions
team = ranks.start(4)

# %%
record = team.train(TrainOptions(epochs=50), timeout=300)

# %%
print("stopped:", record["stopped"], "identical:", record["ranks_identical"])
print("still works:", team.run(max, 1, 2))
ranks.stop()
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


@pytest.mark.timeout(300)
def test_the_dashboard_shows_every_rank_and_its_button_stops_them_cleanly(open_in):
    lab = open_in("stop.ipynb", generate.notebook_json(STOPPED))
    lab.begin_all()
    lab.page.wait_for_selector(f'{DASHBOARD} [data-strip="3"]', state="attached", timeout=90_000)
    lab.page.wait_for_timeout(6000)
    early = dashboard(lab)
    assert early["data-rank"] == ["0", "1", "2", "3", "all"] * 2, "loss and accuracy of each rank"
    assert early["data-strip"] == ["0", "1", "2", "3"]
    for size, (width, height) in SIZES.items():
        lab.screenshot(SCREENSHOTS / f"dashboard-{size}.png", width, height, DASHBOARD)
    lab.page.wait_for_timeout(1500)
    assert dashboard(lab)["words"] != early["words"], "the dashboard does not move"
    lab.press("Stop")
    lab.wait_done(60)
    assert lab.errors() == []
    text = "\n".join(output.text for output in lab.outputs())
    lab.screenshot(SCREENSHOTS / "stopped-laptop.png", *SIZES["laptop"], WIDGETS)
    assert "stopped: True" in text
    assert "identical: True" in text
    assert "still works: [2, 2, 2, 2]" in text


EXERCISE = """\
# %%
from workshop_lib import notebook, ranks
from workshop_lib.exercises import start_here as check
from workshop_lib.notebook.prediction import predict
team = ranks.start(2)

# %%
guess = predict("How many ranks?", 1, 8, "ranks")
guess

# %%
def whoami(comm):
    raise NotImplementedError("your code here")

# %%
check.whoami(whoami)

# %%
# %%ranks --catch --timeout 3
from mpi4py import MPI
import numpy as np
comm = MPI.COMM_WORLD
comm.Ssend(np.zeros(1), dest=1 - comm.rank)
"""


@pytest.mark.timeout(300)
def test_from_stub_to_solution_with_a_hint_and_a_deadlock_on_the_way(open_in):
    lab = open_in("exercise.ipynb", generate.notebook_json(EXERCISE))

    def says(part: str) -> str:
        return "\n".join(output.text for output in lab.outputs() if part in output.text)

    lab.run_all(90)
    assert "not solved yet" in says("whoami")
    deadlock = says("not finished after 3 s")
    assert "rank 0 was at In[5], line 5" in deadlock, "the number beside the cell, the line in it"
    assert "rank 1 was at In[5], line 5" in deadlock
    assert deadlock.count("comm.Ssend(np.zeros(1), dest=1 - comm.rank)") == 2
    lab.press("Commit")
    lab.screenshot(SCREENSHOTS / "deadlock-laptop.png", *SIZES["laptop"], ".jp-OutputArea-output")
    lab.edit_and_run("ranks.start(2)", "team.restart()")
    for answer, verdict in (("0, comm.size", "Hint: "), ("comm.rank, comm.size", "correct")):
        lab.edit_and_run("def whoami", f"def whoami(comm):\n    return {answer}")
        lab.edit_and_run("check.whoami", "check.whoami(whoami)")
        assert verdict in says("whoami")
        for size, (width, height) in SIZES.items():
            where = SCREENSHOTS / f"exercise-{verdict[:4].lower()}-{size}.png"
            lab.screenshot(where, width, height, ".workshop-check")
        breaks = lab.page.eval_on_selector(".workshop-check", "check => getComputedStyle(check).wordBreak")
        assert breaks == "normal", "hints break between words"
    lab.edit_and_run("guess = predict", "print('committed:', guess.value); ranks.stop()")
    assert "committed: 4.5" in says("committed")
