"""The workshop's settings for JupyterLab, read if JUPYTER_CONFIG_PATH names this folder, as in `make lab`."""

import atexit
import os
import shutil
import tempfile
import webbrowser
from pathlib import Path

from jupyter_core.paths import jupyter_runtime_dir

from workshop_lib.machine.forks import unless_forked
from workshop_lib.paths import keeps_secrets

HERE = Path(__file__).parent
TEXT_BROWSERS = {"www-browser", "links", "links2", "elinks", "lynx", "w3m"}


def _browser() -> str:
    """The name of the browser that Jupyter would open; "" if there is none."""
    try:
        return Path(webbrowser.get().name).name
    except webbrowser.Error:
        return ""


# Jupyter writes keys into its runtime folder, and refuses to do so where other users can read them.
if not keeps_secrets(jupyter_runtime_dir()):
    os.environ["JUPYTER_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="workshop-jupyter-")
    atexit.register(unless_forked(shutil.rmtree, os.environ["JUPYTER_RUNTIME_DIR"], True))
c = get_config()  # type: ignore[name-defined]  # noqa: F821 - Jupyter defines it
# Over SSH there may be only a text browser. It cannot show JupyterLab, and would take the terminal from the URL.
if _browser() in TEXT_BROWSERS:
    c.ServerApp.open_browser = False
c.ServerApp.root_dir = str(HERE.parents[2] / "notebooks")
c.LabApp.default_url = "/lab/tree/00_start_here.ipynb"
c.LabApp.custom_css = True
# Many ranks may print more in a second than the server passes on by default. How much each may print is limited.
c.ZMQChannelsWebsocketConnection.limit_rate = False
c.ServerApp.tornado_settings = {"static_custom_path": [str(HERE / "custom")]}
# The solutions are hidden here, because a check that failed links to them.
c.ContentsManager.hide_globs = ["source", "lessons", "solutions", "map.svg", "__pycache__", "*.pyc", "*~", ".DS_Store"]
