"""The set-up: one source for every list of packages, one sentence for every thing that is missing."""

import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from workshop_lib import bootstrap
from workshop_lib.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]


def pins():
    rows = [row for row in (ROOT / "constraints.txt").read_text().splitlines() if row[:1] not in ("", "#")]
    assert all(row.count("==") == 1 for row in rows), "every constraint is an exact pin"
    return {row.split("==")[0].lower().replace("_", "-"): row.split("==")[1] for row in rows}


def test_conda_and_make_install_the_same():
    pip_section = next(item["pip"] for item in CONDA if isinstance(item, dict))
    assert pip_section == ["-c constraints.txt", f"-e .[{','.join(bootstrap.EXTRAS)}]"]
    python = next(item for item in CONDA if isinstance(item, str) and item.startswith("python "))
    assert SpecifierSet(python.removeprefix("python ")) == SpecifierSet(PROJECT["requires-python"])
    assert {"cxx-compiler", "cmake", "make", "pip"} <= {item for item in CONDA if isinstance(item, str)}


def test_supported_pythons_agree():
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert [minor for minor in range(8, 20) if f"3.{minor}" in allowed] == [v[1] for v in bootstrap.WANTED]


def test_extras_of_the_set_up_exist():
    assert set(bootstrap.EXTRAS) <= set(PROJECT["optional-dependencies"])


def test_every_direct_dependency_is_pinned_within_its_bounds():
    pinned = pins()
    everything = PROJECT["dependencies"] + sum(PROJECT["optional-dependencies"].values(), [])
    for requirement in map(Requirement, everything):
        assert pinned[requirement.name] in requirement.specifier, requirement


def test_what_is_installed_is_what_is_pinned():
    out = subprocess.run(
        [sys.executable, "-m", "pip", "freeze", "--exclude-editable", "--disable-pip-version-check"],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    pinned = pins()
    for row in filter(None, out.splitlines()):
        name, version = re.split(r"==| @ ", row)
        if name.lower() in ("pip", "setuptools", "wheel"):
            continue
        assert pinned.get(name.lower().replace("_", "-")) == version.split("+")[0], row


def test_a_set_up_checkout_is_done_at_once():
    if not bootstrap.is_done(bootstrap.describe({"MPI": "", "TORCH_INDEX": ""})):
        pytest.skip("this checkout was not set up by a plain make setup since its requirements changed")
    ran = run_bootstrap(ROOT, timeout=2)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def run_bootstrap(folder, timeout=30, python=sys.executable, **environment):
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **environment}
    return subprocess.run(
        [python, str(Path(folder) / "workshop_lib" / "bootstrap.py")],
        env=environment, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip


@pytest.fixture
def checkout(tmp_path):
    """A checkout in which nothing is installed."""
    (tmp_path / "workshop_lib").mkdir()
    for name in ("workshop_lib/bootstrap.py", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def bare_path(tmp_path):
    """A PATH that has this Python and nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python3.11").symlink_to(os.path.realpath(sys.executable))
    return folder


def says(ran, *words):
    """One sentence on stderr, exit code 1, no traceback."""
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert ran.stderr.count("\n") == 1 and ran.stderr.startswith("setup: "), ran.stderr
    for word in words:
        assert word in ran.stderr


def test_missing_compiler(checkout, bare_path):
    says(run_bootstrap(checkout, PATH=str(bare_path)), "no C++ compiler", "apt-get install g++")
    assert not (checkout / ".venv").exists()


def fake(folder, name, script):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_wrong_python(checkout, bare_path):
    old = fake(bare_path, "old", "echo 3 9")
    says(run_bootstrap(checkout, PYTHON=str(old)), "Python 3.11 or 3.12 is needed", str(old))
    says(run_bootstrap(checkout, PYTHON="/nonexistent/python"), "Python 3.11 or 3.12 is needed")


def test_system_mpi_without_its_compiler(checkout, bare_path):
    fake(bare_path, "g++", "true")
    says(run_bootstrap(checkout, PATH=str(bare_path), MPI="system"), "needs mpicc on PATH")
    says(run_bootstrap(checkout, MPI="lam"), "MPI=lam is not known")


def test_full_disk(checkout):
    """A file system too small for the set-up: the check reads what the folder's own disk has free."""
    program = (
        "import shutil, sys; sys.argv = ['bootstrap.py']\n"
        "sys.path.insert(0, 'workshop_lib'); import bootstrap\n"
        "free = shutil.disk_usage('.').free\n"
        "bootstrap.NEEDED_BYTES = free + 10**9\n"
        "sys.exit(bootstrap.main())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=checkout, capture_output=True, text=True, timeout=30
    )
    says(ran, "GB are needed", "make room")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable_checkout(checkout):
    checkout.chmod(0o555)
    says(run_bootstrap(checkout), "is not writable")


def test_a_failing_install_says_why_and_can_be_repeated(checkout):
    (checkout / "constraints.txt").write_text("no-such-package-for-the-workshop==1\n")
    text = (checkout / "pyproject.toml").read_text()
    added = text.replace('"cloudpickle>=3"', '"no-such-package-for-the-workshop"')
    (checkout / "pyproject.toml").write_text(added)
    (checkout / "README.md").write_text("x")
    ran = run_bootstrap(checkout, timeout=200, PIP_NO_INDEX="1", PIP_NO_BUILD_ISOLATION="0")
    says(ran, "failed", "build/setup.log", "run it again")
    assert (checkout / "build" / "setup.log").stat().st_size
    assert not (checkout / ".venv" / "workshop-setup").exists()


def test_old_pythons_can_read_the_set_up_far_enough_to_refuse():
    """No syntax newer than Python 3.6, so that the message about the version can be reached."""
    import ast

    ast.parse((ROOT / "workshop_lib" / "bootstrap.py").read_text(), feature_version=(3, 6))


def test_the_top_level_is_as_the_readme_says():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=30).stdout
    if not tracked:
        pytest.skip("not a git checkout")
    allowed = {
        ".ci", ".gitignore", "LICENSE", "Makefile", "README.md", "assets", "constraints.txt",
        "environment.yml", "notebooks", "pyproject.toml", "submissions", "tests", "workshop_lib",
    }  # fmt: skip
    assert {name.split("/")[0] for name in tracked.splitlines()} <= allowed
