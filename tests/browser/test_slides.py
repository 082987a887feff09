"""Slides on a projector: a jump to a section, read from the back of the room."""

import re
import subprocess

import pytest
from browser.lab import Lab

from workshop_lib.classroom import present

SECTIONS = ("Ranks", "Each rank has its own memory", "When a rank fails")
JUMP = "When a rank fails"  # needs ranks and their `comm`


class Stage(Lab):
    """The JupyterLab that `workshop present` opens."""

    def _serve(self, profile: str) -> subprocess.Popen:
        command, env = present.lab(self.folder / "any.ipynb")
        env |= {"WORKSHOP_PROFILE": profile, "JUPYTER_TOKEN": self.token, "IPYTHONDIR": str(self.private / "ipython")}
        command += ["--no-browser", "--ip=127.0.0.1", f"--port={self.port}", "--ServerApp.port_retries=0"]
        with open(self.log, "w") as log:
            return subprocess.Popen(command, cwd=self.folder, env=env, stdout=log, stderr=log)


@pytest.fixture
def stage(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(present, "STAGE", tmp_path / "stage")
    monkeypatch.setattr(present, "SETTINGS", tmp_path / "stage" / ".jupyter")
    [file] = present.write("00_start_here", SECTIONS)
    with Stage(browser, file.parent, tmp_path) as stage:
        stage.start()
        stage.page.set_viewport_size({"width": 1280, "height": 720})
        stage.page.goto(f"{stage.url}/doc/tree/{file.name}?token={stage.token}")
        stage.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=90_000)
        stage._wait_for("a kernel with this page on it", stage._kernel_is_connected, 90)
        stage.wait_idle(90)
        yield stage


@pytest.mark.exhaustive
@pytest.mark.timeout(400)
def test_a_talk_jumps_to_a_section_with_live_ranks(stage):
    page = stage.page
    assert page.locator(".jp-CodeCell:visible").count() == 0, "all sections are folded up"
    page.locator(".jp-Notebook h2", has_text=JUMP).click()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")  # the first picture of a talk must not end in a NameError
    for _ in range(6):
        page.keyboard.press("Shift+Enter")
        page.wait_for_timeout(200)
    stage.wait_idle(120)
    shown = [output.text for output in stage.outputs()]
    assert re.match(r"getting ready … ready \(\d+ s\)", shown[0]), shown
    assert page.locator(".lm-MenuBar-item:visible").count() == 0, "no menus"
    assert any("something is wrong with my data" in text for text in shown), shown
    assert stage.errors() == [] and stage.too_wide() == []
    places = ".jp-MarkdownCell p, .jp-CodeCell .cm-content, .jp-OutputArea-output pre"
    sizes = "all => all.filter(one => one.offsetHeight).map(one => getComputedStyle(one).fontSize)"
    smallest = min(float(size.removesuffix("px")) for size in page.eval_on_selector_all(places, sizes))
    assert smallest >= 19, "for the last row"
    code = ".jp-CodeCell .cm-scroller"
    wide = "all => all.filter(one => one.offsetHeight && one.scrollWidth > one.clientWidth).length"
    assert page.eval_on_selector_all(code, wide) == 0, "a line of code is cut off"
