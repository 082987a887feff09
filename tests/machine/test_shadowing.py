"""Files of the user's that hide modules are named, and don't get in the way of the workshop."""

import os
import subprocess
import sys

import pytest

from workshop_lib.machine import shadowing
from workshop_lib.paths import ROOT
from workshop_lib.ranks.launch import which_mpi

BROKEN = "raise ImportError('of another Python')\n"


@pytest.fixture
def current(tmp_path, monkeypatch):
    """An empty current folder, with no PYTHONPATH."""
    folder = tmp_path / "current"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return folder


@pytest.fixture
def another_python(tmp_path):
    """A folder with packages of another Python."""
    folder = tmp_path / "lib" / "python2.7"
    for name in ("numpy", "zmq"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(BROKEN)
    for name in ("typing", "rich", "nothing_else_has_this_name", "sitecustomize"):
        (folder / f"{name}.py").write_text(BROKEN if name != "sitecustomize" else "")
    return folder


def test_a_file_beside_the_notebook_is_named_with_what_it_hides(current):
    for name in ("random", "torch", "own", "time"):
        (current / f"{name}.py").touch()
    (current / "numpy").mkdir()  # without __init__.py it hides nothing
    (current / "sub").mkdir()
    (current / "sub" / "__init__.py").touch()
    assert list(map(str, shadowing.shadows())) == [
        f"your file {current}/random.py hides Python's own `random`: rename it",
        f"your file {current}/torch.py hides the package `torch`: rename it",
    ]
    assert shadowing.short(str(ROOT / "notebooks" / "random.py")) == "notebooks/random.py"


def test_a_folder_in_pythonpath_is_named_with_the_variable(current, another_python, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(another_python), sys.prefix + "/lib"]))
    (shadow,) = shadowing.shadows()
    hidden = "the package `numpy`, the package `rich`, Python's own `typing`, …"
    assert str(shadow) == f"PYTHONPATH names {another_python}, which hides {hidden}: unset PYTHONPATH"
    assert which_mpi.python_path().split(os.pathsep) == [
        str(ROOT),
        str(ROOT / "notebooks"),
        str(ROOT),
        sys.prefix + "/lib",
    ]


def test_the_workshop_imports_its_own_whatever_lies_before(current, another_python):
    """In a process that looks in the current folder first, and then in PYTHONPATH; both stay on the path, last."""
    for name in ("random", "token", "logging"):
        (current / f"{name}.py").write_text(BROKEN)
    (current / "own.py").touch()
    program = "import workshop_lib, logging, numpy, random, token, zmq, own, nothing_else_has_this_name"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(another_python)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "nothing_else_has_this_name.py" in ran.stderr.splitlines()[-3], ran.stderr
    assert ran.stderr.splitlines()[-1] == "ImportError: of another Python"
