"""Draw the README's picture: a real session, in a real browser.

python tests/browser/picture.py [FILE]

Runs notebook 00 with its exercises solved, in JupyterLab and in the laptop profile, and photographs its first training.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from browser.lab import Lab, launch
from PIL import Image
from playwright.sync_api import sync_playwright

from workshop_lib.notebook import generate
from workshop_lib.paths import ROOT

PICTURE = ROOT / "assets" / "session.png"
NOTEBOOK = "00_start_here.ipynb"
SIZE = (1240, 760)
COLOURS = 64  # enough for text and curves, and a third of the bytes


def main(target: Path = PICTURE) -> None:
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        private = Path(name)
        folder = private / "notebooks"
        folder.mkdir()
        (folder / NOTEBOOK).write_bytes((generate.NOTEBOOKS / "solutions" / NOTEBOOK).read_bytes())
        browser = launch(playwright)
        with Lab(browser, folder, private, profile="laptop") as lab:
            lab.start()
            lab.open(NOTEBOOK)
            lab.page.keyboard.press("Control+b")  # without the list of files
            lab.run_all(timeout_s=420)
            lab.screenshot(private / "page.png", *SIZE, show=".workshop-dashboard")
        browser.close()
        Image.open(private / "page.png").convert("RGB").quantize(COLOURS).save(target, optimize=True)
    print(f"{target}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
