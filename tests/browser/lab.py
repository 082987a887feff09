"""A real JupyterLab in a real headless browser, driven as a learner would drive it."""

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from workshop_lib.paths import ROOT

SYSTEM_BROWSERS = ("chromium", "google-chrome", "google-chrome-stable", "chromium-browser")
BROWSER_ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
# Every cell in the page, seen or not, so that all can be checked.
SETTINGS = {"@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"}}
IDLE = '.jp-Notebook-ExecutionIndicator[data-status="idle"]'
STDERR = "application/vnd.jupyter.stderr"


def launch(playwright):
    """The system's Chromium or Chrome if there is one, else Playwright's own."""
    found = next(filter(None, map(shutil.which, SYSTEM_BROWSERS)), None)
    return playwright.chromium.launch(executable_path=found, args=BROWSER_ARGUMENTS, timeout=60_000)


@dataclass(frozen=True)
class Output:
    """One output in the page: the MIME type it is shown as, and its text."""

    cell: int
    mime: str
    text: str


class Lab:
    """A JupyterLab server of its own on a folder, and a page of `browser` on it. A context manager."""

    def __init__(self, browser, folder: Path, private: Path, profile: str = "quick"):
        self.folder, self.private, self.learner = folder, private, private / "progress.jsonl"
        self.port, self.token = _free_port(), secrets.token_hex(16)
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = private / "jupyter.log"
        self.server = self._serve(profile)
        self.page = browser.new_page(viewport={"width": 1366, "height": 768})
        self.foreign = []  # addresses outside this machine that the page asked for
        self.page.on("request", self._note_request)

    def __enter__(self) -> "Lab":
        return self

    def __exit__(self, *_) -> None:
        try:
            self.page.close()
        finally:
            self.stop()

    def _note_request(self, request) -> None:
        if not request.url.startswith((self.url, "data:", "blob:", self.url.replace("http", "ws", 1))):
            self.foreign.append(request.url)

    def _serve(self, profile: str) -> subprocess.Popen:
        """Start the server with its own settings, so that neither it nor the user's are touched."""
        for name, values in SETTINGS.items():
            path = self.private / "settings" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values))
        env = {key: value for key, value in os.environ.items() if key not in ("WORKSHOP_WIDGETS", "MPLBACKEND")}
        env |= {"WORKSHOP_PROFILE": profile, "JUPYTER_TOKEN": self.token}
        env["WORKSHOP_LEARNER_FILE"] = str(self.learner)
        env |= dict.fromkeys(("JUPYTER_CONFIG_PATH", "JUPYTER_PATH"), str(ROOT / "workshop_lib/notebook/jupyter"))
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
        env |= {
            variable: str(self.private / folder)
            for variable, folder in {
                "JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "IPYTHONDIR": "ipython",
                "JUPYTER_RUNTIME_DIR": "runtime", "JUPYTERLAB_SETTINGS_DIR": "settings",
                "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
            }.items()
        }  # fmt: skip
        command = [
            sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1",
            f"--port={self.port}", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={self.folder}",
        ]  # fmt: skip
        with open(self.log, "w") as log:
            return subprocess.Popen(command, cwd=self.folder, env=env, stdout=log, stderr=log)

    def start(self, timeout_s: float = 60) -> None:
        """Wait until the server answers."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if self.server.poll() is not None:
                break
            try:
                urllib.request.urlopen(f"{self.url}/api?token={self.token}", timeout=5).close()
                return
            except OSError:
                time.sleep(0.2)
        raise RuntimeError(f"JupyterLab did not start in {timeout_s:.0f} s:\n{self.log.read_text()}")

    def stop(self) -> None:
        """Shut the kernels down, as a learner does by closing the lab, then the server."""
        with contextlib.suppress(OSError):
            self._request("POST", "/api/shutdown")
        try:
            self.server.wait(20)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait(10)

    def _request(self, method: str, path: str) -> bytes:
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(self.url + path, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()

    def open(self, notebook: str, timeout_s: float = 90) -> None:
        """Open a notebook of the folder and wait until its kernel is idle."""
        # A workspace of its own, so that the tabs of an earlier notebook do not come back.
        workspace = f"{self.url}/lab/workspaces/{Path(notebook).stem}"
        self.page.goto(f"{workspace}/tree/{notebook}?token={self.token}", timeout=timeout_s * 1000)
        self.page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=timeout_s * 1000)
        # The page says "idle" for a moment before it has a kernel, so the server is asked first.
        self._wait_for("a kernel with this page on it", self._kernel_is_connected, timeout_s)
        self.wait_idle(timeout_s)

    def wait_idle(self, timeout_s: float) -> None:
        """Wait until the page has shown the kernel as idle for a second."""
        seen = []

        def idle() -> bool:
            seen.append(self.page.locator(IDLE).count() == 1)
            return seen[-4:] == [True] * 4

        self._wait_for("an idle kernel", idle, timeout_s)

    def is_changed(self) -> bool:
        """Whether the page marks its notebook as changed since it was saved or opened."""
        return self.page.locator(".lm-TabBar-tab.jp-mod-current.jp-mod-dirty").count() > 0

    def save(self, timeout_s: float = 30) -> None:
        self.page.keyboard.press("Control+s")
        self._wait_for("saved notebook", lambda: not self.is_changed(), timeout_s)

    def end_kernels(self) -> None:
        """Shut every notebook's kernel down, and with it its ranks."""
        for session in json.loads(self._request("GET", "/api/sessions")):
            self._request("DELETE", f"/api/sessions/{session['id']}")

    def _kernel_is_connected(self) -> bool:
        sessions = json.loads(self._request("GET", "/api/sessions"))
        return any(session["kernel"]["connections"] > 0 for session in sessions)

    def _wait_for(self, what: str, ready: Callable[[], bool], timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while not ready():
            if time.monotonic() > end:
                raise TimeoutError(f"no {what.removeprefix('a ')} within {timeout_s:.0f} s.")
            self.page.wait_for_timeout(300)

    def choose(self, *path: str) -> None:
        """Choose an entry of the menus, such as "Settings", "Theme", "JupyterLab Dark"."""
        self.page.locator(".lm-MenuBar-item", has_text=re.compile(f"^{path[0]}$")).click()
        for entry in path[1:]:
            self.page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{entry}$")).click()

    def begin_all(self) -> None:
        """Run all cells, and return at once."""
        self.choose("Run", "Run All Cells")

    def run_all(self, timeout_s: float = 300) -> None:
        """Run all cells, and wait until each has its execution count and the kernel is idle."""
        self.begin_all()
        self.wait_done(timeout_s)

    def wait_done(self, timeout_s: float) -> None:
        """Wait until every code cell has an execution count, or one failed, and the kernel is idle."""

        def done() -> bool:
            return all(re.fullmatch(r"\[\d+\]:", text) for text in self.prompts()) or bool(self.errors())

        try:
            self._wait_for("end of all cells", done, timeout_s)
            self.wait_idle(30)
        except TimeoutError as error:
            raise TimeoutError(f"{error} Prompts: {self.prompts()}; errors: {self.errors()}") from None

    def edit_and_run(self, old: str, new: str, timeout_s: float = 60) -> None:
        """Replace the source of the code cell that holds the text `old` by `new`, and run it."""
        cell = self.page.locator(".jp-Notebook .jp-CodeCell", has_text=old).first
        cell.locator(".cm-content").click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(new)
        self.page.keyboard.press("Shift+Enter")
        self.wait_done(timeout_s)

    def prompts(self) -> list[str]:
        """The prompt of every code cell: "[3]:" when done, "[*]:" while it runs or waits."""
        return self.page.eval_on_selector_all(
            ".jp-Notebook .jp-CodeCell .jp-InputPrompt", "all => all.map(one => one.textContent.trim())"
        )

    def outputs(self) -> list[Output]:
        """All outputs in the page, in order, with the number of their cell from 1."""
        found = self.page.eval_on_selector_all(
            ".jp-Notebook .jp-Cell",
            """cells => cells.flatMap((cell, number) =>
                [...cell.querySelectorAll(".jp-OutputArea-output")].map(output => ({
                    cell: number + 1, mime: output.dataset.mimeType || "", text: output.textContent || ""
                })))""",
        )
        return [Output(**one) for one in found]

    def errors(self) -> list[str]:
        """The text of every output that is an error or holds a traceback."""
        failed = "application/vnd.jupyter.error"
        return [
            f"cell {output.cell}: {output.text}"
            for output in self.outputs()
            if output.mime == failed or (output.mime == STDERR and "Traceback" in output.text)
        ]

    def press(self, button: str, timeout_s: float = 60) -> None:
        """Press a widget's button, such as "Stop", as soon as it can be pressed."""
        name = re.compile(button, re.IGNORECASE)
        buttons = self.page.locator(".jp-OutputArea-output button.jupyter-button:enabled", has_text=name)
        buttons.last.click(timeout=timeout_s * 1000)

    def guess(self, share: float) -> None:
        """Move the last prediction's slider to this share of its length, and commit."""
        track = self.page.locator(".jp-OutputArea-output .noUi-target").last
        track.scroll_into_view_if_needed()
        place = track.bounding_box()
        self.page.mouse.click(place["x"] + share * place["width"], place["y"] + place["height"] / 2)
        self.press("Commit")

    def too_wide(self) -> list[str]:
        """The text of every output under which there is a horizontal scroll bar."""
        return self.page.eval_on_selector_all(
            ".jp-OutputArea-output",
            "all => all.filter(one => one.scrollWidth > one.clientWidth).map(one => one.textContent)",
        )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
