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
        assert lab.widgets(), "no widget in the notebook"
        for size, (width, height) in SIZES.items():
            for what, show in [("plot", PLOT)] * (plots > 0) + [("live", WIDGETS)]:
                lab.screenshot(SCREENSHOTS / f"{name}-{what}-{size}.png", width, height, show)
        assert lab.foreign == [], "the page asked for something outside this machine"
