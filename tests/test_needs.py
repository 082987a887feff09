"""A test whose needs are missing is skipped with what to install, a run ends with what it left out, and it fails where
everything is required."""

import os
import subprocess
import sys

import pytest

from workshop_lib.paths import ROOT

TESTS = """\
import needs
needs.MACHINE["sun"] = (lambda: False, "there is no sun: wait for the morning")

@needs.needs("sun")
def test_one(): raise ValueError("ran")

@needs.needs("pytest", "sun")
def test_two(): raise ValueError("ran")

@needs.needs("no_such_package")
def test_three(): raise ValueError("ran")

@needs.needs("pytest")
def test_four(): pass
"""


@pytest.mark.parametrize(
    ("required", "lanes", "last"),
    [("nothing", "2", "1 passed, 3 skipped"), ("SUN", "0", "1 skipped, 2 errors"), ("ALL", "0", "1 passed, 3 errors")],
)
def test_what_is_missing_is_said_last_or_fails(tmp_path, required, lanes, last):
    (tmp_path / "test_sun.py").write_text(TESTS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WORKSHOP_REQUIRE_")}
    environment |= {"PYTHONPATH": str(ROOT / "tests"), f"WORKSHOP_REQUIRE_{required}": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "needs",
        "-n",
        lanes,
        "-c",
        os.devnull,
        "--rootdir",
        tmp_path,
        tmp_path,
    ]
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert last in ran.stdout.splitlines()[-1], ran.stdout
    skipped = ran.stdout.partition("not everything was tested: ")[2]
    assert ("    2 there is no sun: wait for the morning\n" in skipped) == (required == "nothing")
    assert ("    1 no_such_package is not installed" in skipped) == (required != "ALL")
