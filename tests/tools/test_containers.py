"""The dev container and Binder build what `make setup` builds: with a Python and tools that it accepts."""

import json
import os
import re
import subprocess

import pytest

from workshop_lib.machine import installation
from workshop_lib.paths import ROOT

from tools import bootstrap

CONTAINER = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
BINDER = ROOT / ".binder"
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def make_lines(text: str) -> list[list[str]]:
    """The words after `make` of each line that calls it."""
    return [line.split()[1:] for line in text.splitlines() if line.startswith("make ")]


BUILDS = {
    "dev container": make_lines(CONTAINER["onCreateCommand"]),
    "binder": make_lines((BINDER / "postBuild").read_text()),
}


@pytest.mark.parametrize("where", BUILDS)
def test_the_build_is_that_of_the_makefile(where):
    [[target, *settings]] = BUILDS[where]
    assert target == "setup" and target in TARGETS
    assert {setting.partition("=")[0] for setting in settings} <= set(bootstrap.SETTINGS)


def test_the_pythons_are_ones_that_the_set_up_accepts():
    image = re.fullmatch(r"python:(3)\.(\d+)-bookworm", CONTAINER["image"])
    runtime = re.fullmatch(r"python-(3)\.(\d+)\n", (BINDER / "runtime.txt").read_text())
    assert {tuple(map(int, found.groups())) for found in (image, runtime)} <= set(installation.PYTHONS)


def test_binder_has_what_the_set_up_needs():
    assert {"g++", "make"} <= set((BINDER / "apt.txt").read_text().split())
    for name in ("postBuild", "start"):
        assert os.access(BINDER / name, os.X_OK)
        subprocess.run(["bash", "-n", BINDER / name], check=True, timeout=10)


def test_binder_starts_jupyter_as_make_lab_does():
    lab = dict(re.findall(r"^lab: export (\w+) = \$\(CURDIR\)/(\S+)$", MAKEFILE, re.MULTILINE))
    start = dict(re.findall(r"(\w+)=\$PWD/(\S+)", (BINDER / "start").read_text()))
    assert lab and lab.items() <= start.items()
    command = ["bash", BINDER / "start", "bash", "-c", "command -v python; printenv JUPYTER_PATH"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10)
    assert ran.stdout.split() == [str(ROOT / bootstrap.PYTHON_IN_VENV), str(ROOT / lab["JUPYTER_PATH"])]
