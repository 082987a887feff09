"""What the workshop wants of JupyterLab; read wherever JUPYTER_CONFIG_PATH names this folder, as in `make lab`."""

from pathlib import Path

HERE = Path(__file__).parent
c = get_config()  # type: ignore[name-defined]  # noqa: F821 - Jupyter defines it
c.ServerApp.root_dir = str(HERE.parents[2] / "notebooks")
c.LabApp.default_url = "/lab/tree/00_start_here.ipynb"
c.LabApp.custom_css = True
c.ServerApp.tornado_settings = {"static_custom_path": [str(HERE / "custom")]}
# The solutions are a click away from a check that failed.
c.ContentsManager.hide_globs = ["source", "solutions", "__pycache__", "*.pyc", "*~", ".DS_Store"]
