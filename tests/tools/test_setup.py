"""The set-up: one source for every list of packages, one sentence for every thing that is missing."""

import ast
import errno
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from shell_programs import program

from workshop_lib.machine import installation
from workshop_lib.paths import ROOT

from tools import bootstrap, lock

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
READ_BY_ANY_PYTHON = (
    "workshop_lib/machine/installation",
    *("tools/bootstrap", "tools/pip_settings", "tools/torch_build", "tools/uv_settings"),
)
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
PLAIN = dict.fromkeys(bootstrap.SETTINGS, "")
SYSTEM = PLAIN | {"MPI": "system"}


def pins(name="constraints.txt"):
    rows = [row for row in (ROOT / name).read_text().splitlines() if re.match(r"\w", row)]
    assert all(re.match(r"[\w.-]+==[\w.]+( ; .*?)?( \\)?$", row) for row in rows), "every row is an exact pin"
    return {row.partition("==")[0]: re.split(r"==| ", row)[1] for row in rows}


def test_the_lock_and_the_constraints_are_the_same_versions():
    assert pins("lock.txt") == pins("constraints.txt")
    rows = re.split(r"\n(?=\w)", (ROOT / "lock.txt").read_text())[1:]
    without_hash = [row for row in rows if "--hash=sha256:" not in row]
    assert [row.partition("=")[0] for row in without_hash] == ["torch"], "each of PyTorch's builds has its own"


@pytest.fixture
def steps(monkeypatch):
    """What a set-up would run, as pairs (words for the reader, command). Nothing is run."""
    ran = []
    monkeypatch.setattr(bootstrap, "step", lambda what, command, log=None: ran.append((what, command)))
    monkeypatch.setattr(bootstrap, "find_uv", lambda: "uv")
    return ran


def optional_dependencies(steps) -> set[str]:
    """Those that a set-up without settings installs, in its core and its extras."""
    bootstrap.install_packages(PLAIN, None, "")
    commands = [command for _, command in steps]
    for extra in installation.NEEDED_BY:
        commands += [command for _, command in bootstrap.extra_steps(extra, PLAIN)]
    editable = [command[command.index("--editable") + 1] for command in commands if "--editable" in command]
    return {name for what in editable for name in re.findall(r"[\w-]+", what.partition("[")[2])}


def test_conda_and_make_install_the_same(steps):
    pip_section = next(item["pip"] for item in CONDA if isinstance(item, dict))
    first, *names, last = pip_section
    assert first == "-c constraints.txt"
    wanted = optional_dependencies(steps)
    assert set(last.removeprefix("-e .[").removesuffix("]").split(",")) == wanted
    assert wanted | {"book"} <= set(PROJECT["optional-dependencies"])
    assert set(names) <= set(pins()) and {"mpi4py", "torch", "tensorflow-cpu", "deepspeed", "ipyparallel"} <= set(names)
    text = (ROOT / "environment.yml").read_text()
    assert "`python tools/horovod_wheel.py`" in text, "the one more command"
    python = next(item for item in CONDA if isinstance(item, str) and item.startswith("python "))
    assert SpecifierSet(python.removeprefix("python ")) == SpecifierSet(PROJECT["requires-python"])
    assert {"cxx-compiler", "cmake", "make", "pip"} <= {item for item in CONDA if isinstance(item, str)}


def test_supported_pythons_agree():
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert [minor for minor in range(8, 20) if f"3.{minor}" in allowed] == [v[1] for v in installation.PYTHONS]


def test_every_direct_dependency_is_pinned_within_its_bounds():
    pinned = pins()
    everything = PROJECT["dependencies"] + sum(PROJECT["optional-dependencies"].values(), [])
    others = [each for each in map(Requirement, everything) if each.name != PROJECT["name"]]
    for requirement in others:
        assert pinned[requirement.name] in requirement.specifier, f"{requirement}: run `make lock`"


def test_what_is_installed_is_what_is_pinned():
    pinned = pins()
    for package in importlib.metadata.distributions():
        name = package.name.lower().replace("_", "-").replace(".", "-")
        if name in ("distributed-dl-workshop", "horovod") or re.match(r"(nvidia|cuda|triton)\b", name):
            continue  # PyTorch's builds for CUDA say themselves which of NVIDIA's libraries they need
        assert pinned.get(name) == package.version.split("+")[0], name


def test_a_set_up_checkout_is_done_at_once():
    if not bootstrap.is_done(bootstrap.wanted_settings({})):
        pytest.skip("this checkout was not set up with make setup since its requirements changed")
    # With the user's own HOME: tools that the set-up may start write their settings there, not here.
    ran = run_bootstrap(ROOT, timeout=2, HOME=os.environ.get("HOME", "/"))
    assert (ran.returncode, ran.stderr) == (0, "")
    missing = [name for name in installation.NEEDED_BY if installation.why_missing(name, bootstrap.VENV)]
    assert ran.stdout.count("Everything else works.") == ran.stdout.count("\n") == len(missing)


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


def run_bootstrap(folder, timeout=30, **environment):
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **environment}
    return subprocess.run(
        [sys.executable, str(Path(folder) / "tools" / "bootstrap.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=folder,
    )


@pytest.fixture
def checkout(tmp_path):
    """A checkout in which nothing is installed."""
    for room in ("tools", "workshop_lib/machine"):
        (tmp_path / room).mkdir(parents=True)
    for name in (*READ_BY_ANY_PYTHON, "tools/horovod_wheel"):
        shutil.copy(ROOT / f"{name}.py", tmp_path / f"{name}.py")
    for name in ("pyproject.toml", "lock.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


@pytest.fixture
def bare_path(tmp_path):
    """A PATH that has uv and nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "uv").symlink_to(bootstrap.find_uv())
    return folder


def says(ran, *words):
    """One sentence on stderr, exit code 1, no traceback."""
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert ran.stderr.count("\n") == 1 and ran.stderr.startswith("setup: "), ran.stderr
    for word in words:
        assert word in ran.stderr


def test_wrong_python(checkout, bare_path):
    """The named Python runs but isn't supported, or there's no such program."""
    for wrong in (program(bare_path / "old", "exit 1"), "/nonexistent/python"):
        ran = run_bootstrap(checkout, PATH=str(bare_path), PYTHON=str(wrong))
        says(ran, "Python 3.11, 3.12 or 3.13 with a complete", f"is needed, and PYTHON={wrong} is none.")


def test_where_no_python_is_right_uv_brings_one(monkeypatch, steps, capsys):
    monkeypatch.setattr(bootstrap, "is_right", lambda python: False)
    bootstrap.make_venv("")
    (_, found), (_, brought) = steps
    assert found[-3:] == ["--no-python-downloads", "--python", ">=3.11,<3.14"]
    assert brought[-3:] == ["--managed-python", "--python", "3.11"]
    assert "so uv brings one, a download of about 35 MB" in capsys.readouterr().out


def test_a_python_without_some_of_the_standard_library_is_not_right(tmp_path):
    assert bootstrap.is_right(sys.executable)
    lacking = program(tmp_path / "python", f"exec {sys.executable} -c \"import sys; sys.modules['lzma'] = None; $2\"")
    assert not bootstrap.is_right(str(lacking))


def test_uv_comes_from_path_or_from_pip_or_with_advice(checkout, tmp_path, monkeypatch):
    ours = bootstrap_of(checkout)
    ran = []
    monkeypatch.setattr(ours, "step", lambda what, command: ran.append(command))
    recent = program(tmp_path / "recent" / "uv", "echo uv 0.99.1")
    old = program(tmp_path / "old" / "uv", "echo uv 0.1.2")
    monkeypatch.setenv("PATH", str(recent.parent))
    assert ours.find_uv() == str(recent) and not ran
    monkeypatch.setenv("PATH", str(old.parent))
    assert ours.find_uv() == str(checkout / ".uv" / "bin" / "uv")
    assert ran[-1][:4] == [sys.executable, "-m", "pip", "install"] and ran[-1][-1] == "uv==" + pins()["uv"]
    without_pip = "case $* in *' pip '*) exit 1;; esac"
    monkeypatch.setattr(sys, "executable", str(program(tmp_path / "no pip", without_pip)))
    ours.find_uv()
    assert ran[-1][0] == str(checkout / ".uv" / "pip" / "bin" / "python"), "pip of a virtual environment"
    monkeypatch.setattr(sys, "executable", str(program(tmp_path / "neither", "exit 1")))
    with pytest.raises(ours.SetupError, match=r"neither has neither venv nor pip.*install python3-venv.*or uv itself"):
        ours.find_uv()


def test_system_mpi_without_its_compiler(checkout, bare_path):
    says(run_bootstrap(checkout, PATH=str(bare_path), MPI="system"), "needs mpicc on PATH")
    says(run_bootstrap(checkout, PATH=str(bare_path), MPI="system", MPICC="cc -shared"), "needs cc on PATH")
    says(run_bootstrap(checkout, MPI="lam"), "MPI=lam is not known")
    says(run_bootstrap(checkout, HOROVOD="maybe"), "HOROVOD=maybe is not known")


def test_unwritable_folder(checkout, monkeypatch):
    ours = bootstrap_of(checkout)
    os.mkdir(ours.VENV)
    monkeypatch.setattr(os, "access", lambda path, mode: path != ours.VENV)  # root may write anywhere
    with pytest.raises(ours.SetupError, match=f"^{ours.VENV} is not writable"):
        ours.check_checkout()


def test_a_linked_venv_is_set_up_beside_another_checkout(checkout, tmp_path):
    """Several accounts share one, and can't write into it."""
    shared = tmp_path / "shared" / ".venv"
    shared.mkdir(parents=True)
    (checkout / ".venv").symlink_to(shared)
    says(run_bootstrap(checkout), f"is a link to {shared}, which has no Python: run `make setup` beside that folder")
    program(shared / "bin" / "python", "exit 1")
    ran = run_bootstrap(checkout)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_incomplete_checkout(checkout):
    (checkout / "lock.txt").unlink()
    says(run_bootstrap(checkout), "lock.txt", "check that the checkout is complete")


def bootstrap_of(checkout):
    """The set-up's functions, for this checkout."""
    path = checkout / "tools" / "bootstrap.py"
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
    done = {"settings": settings, "kind": ours.kind_of_venv(settings), "done": ours.describe(settings)}
    Path(ours.PYTHON_IN_VENV).parent.mkdir(parents=True, exist_ok=True)
    if not os.path.lexists(ours.PYTHON_IN_VENV):
        os.symlink(sys.executable, ours.PYTHON_IN_VENV)
    ours.write_stamp(done)
    return settings


def test_a_set_up_is_done_until_a_setting_or_a_version_changes(checkout):
    ours = bootstrap_of(checkout)
    done_with(ours, MPI="system", MPICC="cc -shared")
    assert ours.is_done(ours.wanted_settings({})), "a setting that is not given stays"
    assert not ours.is_done(ours.wanted_settings({"MPI": ""}))
    with open(checkout / "lock.txt", "a") as file:
        file.write("# renewed\n")
    assert not ours.is_done(ours.wanted_settings({}))


def installing(ours, monkeypatch, failing=None):
    """Let `install_core` run without uv. Returns the list in which it notes each .venv that it makes."""
    made = []
    monkeypatch.setattr(ours, "make_venv", made.append)
    monkeypatch.setattr(ours, "is_right", lambda python: True)

    def packages(settings, build, why):
        if failing:
            raise failing
        return why

    monkeypatch.setattr(ours, "install_packages", packages)
    (Path(ours.BUILD)).mkdir(exist_ok=True)
    return made


def test_another_setting_or_folder_gets_a_venv_of_its_own(checkout, monkeypatch, capsys):
    """uv would take the build that is there for the one that is wanted, and programs in .venv name their folder."""
    ours = bootstrap_of(checkout)
    other = PLAIN | {"PYTHON": "x"}
    made = installing(ours, monkeypatch)
    done_with(ours)
    ours.install_core(PLAIN, afresh=False)
    assert not made and "made anew" not in capsys.readouterr().out
    ours.install_core(other, afresh=False)
    assert made == ["x"] and ours.is_done(other)
    monkeypatch.setattr(ours, "describe", lambda settings: "for elsewhere")
    monkeypatch.setattr(ours, "ROOT", str(checkout) + "/elsewhere")
    ours.install_core(other, afresh=False)
    assert made == ["x", "x"]
    assert capsys.readouterr().out.count("This .venv was made in another folder or for other settings") == 2


def test_after_an_interruption_nothing_is_kept(checkout, monkeypatch):
    """A killed uv leaves packages of which files are missing, and later takes them for complete."""
    ours = bootstrap_of(checkout)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    made = installing(ours, monkeypatch, failing=KeyboardInterrupt())
    assert not ours.was_interrupted(), "there was nothing yet"
    done_with(ours)
    assert not ours.was_interrupted()
    with pytest.raises(KeyboardInterrupt):
        ours.install_core(PLAIN, afresh=False)
    assert ours.was_interrupted() and not ours.is_done(PLAIN)
    installing(ours, monkeypatch)
    monkeypatch.setattr(ours, "install_extras", lambda *_: [])
    monkeypatch.setattr(ours, "add_startup_file", lambda: None)
    monkeypatch.setattr(ours, "make_venv", made.append)
    assert ours.main() == 0
    assert made == [""] and ours.is_done(PLAIN)


@pytest.mark.parametrize(
    ("reason", "afresh", "stays"),
    [
        ("error: no network", False, True),
        ("error: Failed to install: x.whl", False, False),
        ("error: no network", True, False),
    ],
)
def test_what_worked_stays_if_a_new_set_up_cannot_begin(checkout, monkeypatch, reason, afresh, stays):
    """Somebody without a network pulls a change of the lock: they can go on with what they have."""
    ours = bootstrap_of(checkout)
    done_with(ours)
    stamp = ours.read_stamp()
    with open(checkout / "lock.txt", "a") as file:
        file.write("# renewed\n")
    installing(ours, monkeypatch, failing=ours.StepError("Installing", ours.LOG, reason))
    with pytest.raises(ours.StepError):
        ours.install_core(PLAIN, afresh)
    assert (ours.read_stamp() == stamp) is stays and ours.was_interrupted() is not stays


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            "Resolved 9\nerror: Failed to download `six`\n  cause: Hash mismatch for `six`\n\n    Expected:\n",
            "Failed to download `six`: Hash mismatch for `six`",
        ),
        (
            "error: No solution found\n  cause: there is no six\n\nhint: `six` was filtered by `exclude-newer`.\n",
            "No solution found: there is no six: `six` was filtered by `exclude-newer`",
        ),
        ("ERROR: Horovod needs a C++ compiler.\n", "Horovod needs a C++ compiler"),
        ("make: nothing\nKilled\n", "Killed"),
        ("", "it said nothing"),
    ],
)
def test_a_failed_step_gives_its_reason_in_one_sentence(output, reason):
    error = bootstrap.StepError("Installing x", bootstrap.LOG, output)
    assert str(error) == f"Installing x failed: {reason} (build/setup.log has more); run it again to continue."


def test_the_machines_mpi_gets_an_mpi4py_built_here(steps):
    bootstrap.install_packages(PLAIN, None, "")
    ((_, ours),) = steps
    steps.clear()
    bootstrap.install_packages(SYSTEM, None, "")
    (_, building), (_, systems) = steps
    assert {"--no-cache", "--reinstall-package", "--no-binary"} <= set(building) and building[-1] == "mpi4py"
    assert "[notebooks," in ours[-1] and "[notebooks-system-mpi," in systems[-1] and "--no-binary" not in ours


def test_a_second_set_up_waits_for_the_first_and_pip_keeps_the_lock(checkout):
    """Also when the first set-up itself is killed while pip still works for it."""
    ours = bootstrap_of(checkout)
    with ours.lock():
        pip = subprocess.Popen(["sleep", "1"], close_fds=False)
    code = "import sys; sys.path.insert(0, 'tools'); import bootstrap\nbootstrap.lock(); print('mine')"
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


def test_each_command_of_make_installs_what_it_says(checkout, monkeypatch):
    """`make setup`, `make lab`, `make extras` and `make book`, in this order, where something goes on failing."""
    ours = bootstrap_of(checkout)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    done_with(ours)
    asked = []
    monkeypatch.setattr(ours, "add_startup_file", lambda: None)
    monkeypatch.setattr(ours, "leave_to_the_background", lambda extras, settings: asked.append((extras, "later")))
    monkeypatch.setattr(ours, "install_extras", lambda extras, _, again=False: asked.append((extras, again)) or extras)
    codes = [ours.set_up(options) for options in ([], ["--extras-later"], ["--extras-again"], ["--book"])]
    assert codes == [0, 0, 1, 1]
    assert asked == [(EXTRAS, False), (EXTRAS, "later"), (EXTRAS, True), (["book"], True)]
    monkeypatch.setenv("HOROVOD", "no")
    ours.set_up([])
    assert asked[-1] == (["deepspeed"], False)


def test_horovod_and_tensorflow_use_gpus_if_asked(steps):
    (_, tensorflow), (_, build) = bootstrap.extra_steps("horovod", PLAIN | {"HOROVOD_GPU_OPERATIONS": "NCCL"})
    assert "[tensorflow-gpu,horovod]" in tensorflow[-1] and "HOROVOD_GPU_OPERATIONS=NCCL" in build


def test_old_pythons_can_read_the_set_up_far_enough_to_refuse():
    """No syntax newer than Python 3.6, so that the message about the version can be reached."""
    for name in READ_BY_ANY_PYTHON:
        ast.parse((ROOT / f"{name}.py").read_text(), feature_version=(3, 6))


def test_variables_that_lead_elsewhere_do_not_reach_uv_or_pip(monkeypatch):
    """Each of these once had packages land elsewhere, or a set-up fail without saying why."""
    harmful = {"PIP_TARGET": "/tmp/x", "PIP_PREFIX": "/x", "PIP_ROOT": "/x", "PIP_DRY_RUN": "1", "PIP_NO_DEPS": "1"}
    harmful |= {"PIP_PYTHON": "/usr/bin/python3", "PYTHONHOME": "/x", "PYTHONPATH": "/x", "UV_SYSTEM_PYTHON": "1"}
    monkeypatch.setattr(os, "environ", {"PIP_USER": "1", "PIP_INDEX_URL": "https://example.org/simple"} | harmful)
    bootstrap.prepare_environment(PLAIN | {"MPICC": "cc -shared"})
    assert not set(harmful) & set(os.environ)
    assert os.environ["MPICC"] == "cc -shared", "for mpi4py's build, also where it's kept from the last time"
    assert os.environ["PIP_USER"] == "0" and os.environ["UV_DEFAULT_INDEX"] == "https://example.org/simple"


def let_steps_fail(monkeypatch, ours, *reasons):
    """Let a step fail with the first reason, the next one with the second and so on; later steps do nothing."""
    left = list(reasons)

    def step(what, command, log):
        if left:
            raise ours.StepError(what, log, f"ERROR: {left.pop(0)}")

    monkeypatch.setattr(ours, "step", step)
    monkeypatch.setattr(ours, "find_uv", lambda: "uv")


EXTRAS = list(installation.NEEDED_BY)


def test_an_extra_that_fails_costs_nobody_the_workshop(checkout, monkeypatch, capsys):
    ours = bootstrap_of(checkout)
    settings = done_with(ours)
    let_steps_fail(monkeypatch, ours, "no wheel.", "CMake Error at x.")
    assert ours.install_extras(EXTRAS, settings) == ["deepspeed", "horovod"]
    said = capsys.readouterr().out
    assert "DeepSpeed could not be installed: no wheel (build/setup.log). Notebook 06b needs it" in said
    assert said.count("`make extras` tries again.") == 2
    assert "Horovod could not be installed: CMake Error at x (build/setup.log). Notebooks 03 and 04 need it" in said
    assert said.count("Everything else works.") == 2 and "make setup HOROVOD=no" in said
    assert ours.install_extras(EXTRAS, settings) == ["deepspeed", "horovod"], (
        "not tried again by itself: it takes minutes"
    )
    assert capsys.readouterr().out == said, "but not forgotten either"
    assert ours.install_extras(EXTRAS, settings, again=True) == []


def test_an_interrupted_extra_is_continued(checkout, monkeypatch):
    ours = bootstrap_of(checkout)
    settings = done_with(ours)
    ours.write_note("horovod", settings, installation.UNDER_WAY)
    assert "make setup` continues it" in installation.why_missing("horovod", ours.VENV)
    with ours.lock():
        assert "being installed in the background" in installation.why_missing("horovod", ours.VENV)
    assert ours.was_interrupted()
    let_steps_fail(monkeypatch, ours)
    assert ours.install_extras(EXTRAS, settings) == []
    assert installation.why_missing("horovod", ours.VENV) == ""
    assert ours.left_over(EXTRAS, settings, again=False) == []


def test_lab_leaves_the_extras_to_a_process_in_the_background(checkout, monkeypatch, capsys):
    ours = bootstrap_of(checkout)
    settings = done_with(ours)
    started = []
    monkeypatch.setattr(ours.subprocess, "Popen", lambda command, **how: started.append((command, how)))
    ours.leave_to_the_background(EXTRAS, settings)
    ((command, how),) = started
    assert command[-1] == "--in-background" and how["start_new_session"]
    assert capsys.readouterr().out.startswith("DeepSpeed and Horovod will be there in some minutes")
    ours.write_note("horovod", settings, installation.UNDER_WAY)
    with ours.lock():
        ours.leave_to_the_background(EXTRAS, settings)
    assert len(started) == 1, "one that is at it is enough"


@pytest.mark.skipif(not os.path.exists("/proc/self/autogroup"), reason="only Linux shares cores among sessions first")
def test_in_the_background_its_whole_session_gives_way():
    """A process in a session of its own has half of a busy machine, however nice it is."""
    code = (
        "import os; from tools import bootstrap; bootstrap.be_polite()\n"
        "print(os.sched_getscheduler(0) == os.SCHED_IDLE, open('/proc/self/autogroup').read())"
    )
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, start_new_session=True)
    assert ran.stdout.startswith("True /autogroup-") and ran.stdout.endswith(" nice 19\n\n"), ran.stdout + ran.stderr


def test_make_lock_writes_both_files(tmp_path, monkeypatch):
    """PyTorch's builds have other hashes, and bring NVIDIA's libraries of other versions."""
    resolved = [
        "six==1.17.0 ; os_name == 'nt' \\\\",
        "    --hash=sha256:ab",
        "torch==2.13.0 \\\\",
        "    --hash=sha256:cd",
    ]
    resolved += ["nvidia-nccl-cu13==2.29.7 \\\\", "    --hash=sha256:ef"]
    uv = program(tmp_path / "uv", f"printf '%s\\n' $* > asked; printf '%b\\n' {shlex.join(resolved)} > lock.txt")
    monkeypatch.setattr(bootstrap, "find_uv", lambda: str(uv))
    monkeypatch.setattr(lock, "ROOT", tmp_path)
    assert lock.main(["--upgrade"]) == 0
    assert {"compile", "--universal", "--generate-hashes", "3.11", "--upgrade"} <= set(
        (tmp_path / "asked").read_text().split()
    )
    _, *locked = (tmp_path / "lock.txt").read_text().splitlines()
    assert locked == ["six==1.17.0 ; os_name == 'nt' \\", "    --hash=sha256:ab", "torch==2.13.0"]
    _, *versions = (tmp_path / "constraints.txt").read_text().splitlines()
    assert versions == ["six==1.17.0 ; os_name == 'nt'", "torch==2.13.0"]
