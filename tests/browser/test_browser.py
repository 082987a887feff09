"""A learner's way through a notebook: open it in JupyterLab, run all cells, see the plot."""

import os
import shutil

import pytest
from browser.lab import Lab, NoBrowser, launch

from workshop_lib.notebook import generate
from workshop_lib.paths import BUILD

SCREENSHOTS = BUILD / "screenshots"
SIZES = {"laptop": (1366, 768), "projector": (1920, 1080)}
PLOT = '.jp-OutputArea-output[data-mime-type="image/png"] img'
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


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "plots"), [("02_synchronous_sgd", 0), ("08_scaling_curves", 3)])
def test_run_all_shows_plots_and_widgets_and_no_error(browser, tmp_path, name, plots):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    shutil.copy(generate.NOTEBOOKS / f"{name}.ipynb", folder)
    with Lab(browser, folder, tmp_path) as lab:
        lab.start()
        lab.open(f"{name}.ipynb")
        lab.run_all(timeout_s=400)
        assert lab.errors() == []
        assert len(lab.images()) == plots
        shown = ("plot", PLOT) if plots else ("live", WIDGETS)
        assert plots or lab.widgets(), "the live view is not in the notebook"
        for size, (width, height) in SIZES.items():
            lab.screenshot(SCREENSHOTS / f"{name}-{shown[0]}-{size}.png", width, height, shown[1])
        assert lab.foreign == [], "the page asked for something outside this machine"


STOPPED = """\
# %%
from workshop_lib import notebook, ranks
from workshop_lib.training.options import TrainOptions
team = ranks.start(2)

# %%
record = team.train(TrainOptions(epochs=50), timeout=300)

# %%
print("stopped:", record["stopped"], "identical:", record["ranks_identical"])
print("still works:", team.run(max, 1, 2))
ranks.stop()
"""


@pytest.mark.timeout(300)
def test_the_stop_button_ends_a_training_cleanly(browser, tmp_path):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    (folder / "stop.ipynb").write_text(generate.notebook_json(STOPPED))
    with Lab(browser, folder, tmp_path) as lab:
        lab.start()
        lab.open("stop.ipynb")
        lab.begin_all()
        lab.press("Stop")
        lab.wait_done(60)
        assert lab.errors() == []
        text = "\n".join(output.text for output in lab.outputs())
        lab.screenshot(SCREENSHOTS / "stopped-laptop.png", *SIZES["laptop"], WIDGETS)
    assert "stopped: True" in text
    assert "identical: True" in text
    assert "still works: [2, 2]" in text
