"""Slides on a projector: a jump to a section, read from the back of the room."""

import re
import subprocess
from pathlib import Path

import pytest
from browser.lab import Lab

from workshop_lib.classroom import present

SIZE = (1280, 720)
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

    def open_section(self, file: Path, heading: str) -> None:
        """Open slides and one of their sections, as a presenter does with the keyboard."""
        self.page.goto(f"{self.url}/doc/tree/{file.relative_to(self.folder)}?token={self.token}")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=90_000)
        self._wait_for("a kernel with this page on it", self._kernel_is_connected, 90)
        self.wait_idle(90)
        assert self.page.locator(".jp-CodeCell:visible").count() == 0, "all sections are folded up"
        self.page.locator(".jp-Notebook h2", has_text=heading).click()
        self.page.keyboard.press("ArrowRight")

    def run_section(self, cells: int) -> list[str]:
        """Press Shift+Enter once for each cell; the texts of all outputs."""
        for _ in range(cells):
            self.page.keyboard.press("Shift+Enter")
            self.page.wait_for_timeout(200)
        self.wait_idle(120)
        return [output.text for output in self.outputs()]


@pytest.fixture
def stage(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(present, "STAGE", tmp_path / "stage")
    monkeypatch.setattr(present, "SETTINGS", tmp_path / "stage" / ".jupyter")
    [file] = present.write("00_start_here", SECTIONS)
    with Stage(browser, file.parent, tmp_path) as stage:
        stage.start()
        stage.page.set_viewport_size(dict(zip(("width", "height"), SIZE, strict=True)))
        yield stage, file


def size_of_text(stage: Stage) -> set[str]:
    places = ".jp-MarkdownCell p, .jp-CodeCell .cm-content, .jp-OutputArea-output pre"
    sizes = "all => all.filter(one => one.offsetHeight).map(one => getComputedStyle(one).fontSize)"
    return set(stage.page.eval_on_selector_all(places, sizes))


@pytest.mark.exhaustive
@pytest.mark.timeout(400)
def test_a_talk_jumps_to_a_section_with_live_ranks(stage):
    stage, file = stage
    stage.open_section(file, JUMP)
    stage.page.keyboard.press("ArrowDown")  # the first picture of a talk must not end in a NameError
    shown = stage.run_section(6)
    assert re.match(r"getting ready … ready \(\d+ s\)", shown[0]), shown
    assert stage.page.locator(".lm-MenuBar-item:visible").count() == 0, "no menus"
    assert any("something is wrong with my data" in text for text in shown), shown
    assert stage.errors() == [] and stage.too_wide() == []
    assert min(float(size.removesuffix("px")) for size in size_of_text(stage)) >= 19, "for the last row"
    code = ".jp-CodeCell .cm-scroller"
    wide = "all => all.filter(one => one.offsetHeight && one.scrollWidth > one.clientWidth).length"
    assert stage.page.eval_on_selector_all(code, wide) == 0, "a line of code is cut off"
