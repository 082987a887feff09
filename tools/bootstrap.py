"""Set everything up in .venv. This is quick if there is nothing left to do.

`make setup` runs this file with whatever Python there is, before anything is installed. So the file uses only the
standard library, and syntax that an old Python can read. uv does the work: the one on PATH, or else one that the set-up
gets for itself. The core (JupyterLab, MPI, PyTorch and the workshop) has to succeed. The extras (DeepSpeed, Horovod
with TensorFlow) come after it, and may fail: then one sentence says what is missing, and everything else works.

    bootstrap.py                  the core, then the extras
    bootstrap.py --extras-later   the core, then the extras in the background (`make lab`)
    bootstrap.py --extras-again   the core, then the extras, including those that failed before (`make extras`)
    bootstrap.py --book           the core, then what makes the book (`make book`)

The settings are variables of the environment, which book/setup.md explains: PYTHON, MPI, MPICC, TORCH_INDEX, HOROVOD
and HOROVOD_GPU_OPERATIONS. A setting that is not given keeps its last value, so that `make lab` after
`make setup MPI=system` leaves the MPI alone. An empty setting (`MPI=`) goes back to the default. If a setting other
than HOROVOD changes, .venv is made anew, because uv would mistake another build of the same version for the wanted one.
"""

import fcntl
import filecmp
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time

if __package__:
    from workshop_lib.machine import installation

    from tools import pip_settings, torch_build, uv_settings
else:  # run as a script, which can import its neighbors, but not yet the library's files
    sys.path.append(
        os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "workshop_lib", "machine")
    )
    import installation  # type: ignore[no-redef]
    import pip_settings  # type: ignore[no-redef]
    import torch_build  # type: ignore[no-redef]
    import uv_settings  # type: ignore[no-redef]

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARY = os.path.join(ROOT, "workshop_lib")
VENV = os.path.join(ROOT, ".venv")
PYTHON_IN_VENV = os.path.join(VENV, "bin", "python")
BUILD = os.path.join(ROOT, "build")
LOG = os.path.join(BUILD, "setup.log")
EXTRAS_LOG = os.path.join(BUILD, "extras.log")
LOCK = os.path.join(ROOT, "lock.txt")
HOROVOD_WHEEL = os.path.join(ROOT, "tools", "horovod_wheel.py")
STARTUP = os.path.join(LIBRARY, "notebook", "startup.py")
# The uv and the Python that the set-up gets where this machine has none.
OWN_UV = os.path.join(ROOT, ".uv")
OLDEST_UV = (0, 9)
SETTINGS = ("PYTHON", "MPI", "MPICC", "TORCH_INDEX", "HOROVOD_GPU_OPERATIONS", "HOROVOD")
# Variables that would make Python load packages of a different Python, or make pip install other files or elsewhere.
NOT_HANDED_ON = (
    *("PYTHONHOME", "PYTHONPATH", "PYTHONUSERBASE", "__PYVENV_LAUNCHER__"),
    *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON", "PIP_NO_DEPS", "PIP_DRY_RUN", "PIP_REQUIRE_HASHES"),
    *("PIP_CONSTRAINT", "PIP_NO_BINARY", "PIP_ONLY_BINARY"),
)
# A program that fails in a Python that is not supported, or that was built without some of the standard library.
CHECK = "import bz2, ctypes, lzma, sqlite3, ssl, sys, zlib; sys.exit(sys.version_info[:2] not in {})"


class SetupError(Exception):
    """An error of the set-up. Its text says in one sentence what is missing and what to do."""


class StepError(SetupError):
    """A command of the set-up failed.

    `reason` is what it said: its last error, the innermost cause of that, and uv's hint.
    """

    def __init__(self, what, log, output):
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        errors = [number for number, line in enumerate(lines) if line.lower().startswith("error: ")]
        shown = lines[-1:] or ["it said nothing"]
        if errors:
            causes = [line for line in lines[errors[-1] :] if line.startswith("cause: ")]
            hints = [line for line in lines[errors[-1] :] if line.startswith("hint: ")]
            shown = [line.partition(": ")[2] for line in [lines[errors[-1]]] + causes[-1:] + hints[:1]]
        self.reason = ": ".join(line.rstrip(".:") for line in shown)
        place = os.path.relpath(log, ROOT)
        super().__init__(f"{what} failed: {self.reason} ({place} has more); run it again to continue.")


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
    if os.path.islink(VENV):  # several accounts share one .venv, which is set up beside another checkout
        if os.access(PYTHON_IN_VENV, os.X_OK):
            return 0
        shared = os.path.realpath(VENV)
        raise SetupError(f"{VENV} is a link to {shared}, which has no Python: run `make setup` beside that folder.")
    prepare_environment(settings)
    extras = [name for name in installation.NEEDED_BY if name != "horovod" or settings["HOROVOD"] != "no"]
    if "--in-background" in arguments:
        be_polite()
        return 1 if install_extras(extras, settings, log=EXTRAS_LOG) else 0
    broken = was_interrupted()
    if broken or not is_done(settings):
        with lock():
            if broken or not is_done(settings):
                install_core(settings, afresh=broken)
    if read_stamp()["settings"] != settings:
        write_stamp(dict(read_stamp(), settings=settings))
    add_startup_file()
    if "--extras-later" in arguments:
        leave_to_the_background(extras, settings)
        return 0
    if "--book" in arguments:
        return 1 if install_extras(["book"], settings, again=True) else 0
    again = "--extras-again" in arguments
    missing = install_extras(extras, settings, again)
    return 1 if missing and again else 0


def wanted_settings(environment):
    """Each setting's value: the given one, or if none is given, the one from the last time."""
    last = read_stamp().get("settings", {})
    return {name: environment.get(name, last.get(name, "")) for name in SETTINGS}


def kind_of_venv(settings):
    """What a .venv is made for. Its programs contain its path, and other settings need other builds of packages."""
    return repr([ROOT] + [settings[name] for name in SETTINGS if name != "HOROVOD"])


def describe(settings):
    """A text that changes whenever the set-up has to be done again."""
    digest = hashlib.sha256()
    for path in (os.path.join(ROOT, "pyproject.toml"), LOCK, HOROVOD_WHEEL):
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest() + kind_of_venv(settings)


def is_done(settings):
    return read_stamp().get("done") == describe(settings) and os.access(PYTHON_IN_VENV, os.X_OK)


def was_interrupted():
    """Whether an installation was killed. It may have left packages of which files are missing, and uv won't notice."""
    if read_stamp() and "done" not in read_stamp():
        return True
    notes = read_extras().values()
    return any(note["state"] == installation.UNDER_WAY and not installation.is_under_way(note, VENV) for note in notes)


def read_stamp():
    return installation.read_notes(installation.CORE, VENV)


def write_stamp(stamp):
    installation.write_notes(installation.CORE, stamp, VENV)


def check_checkout():
    """Raise SetupError if this checkout cannot be worked in at all, set up or not."""
    for folder in (ROOT, VENV, BUILD):
        if os.path.isdir(folder) and not os.path.islink(folder) and not os.access(folder, os.W_OK):
            raise SetupError(
                f"{folder} is not writable; make it yours with chown -R, or make a checkout of your own, which can "
                'share its .venv: "Many accounts, one .venv" in assets/instructor/room.md says how.'
            )


def prepare_environment(settings):
    """Set the variables that uv and the builds get, and remove those that would lead them elsewhere."""
    for name in NOT_HANDED_ON:
        os.environ.pop(name, None)
    uv_settings.keep(os.environ, os.path.join(BUILD, "uv.toml"))
    os.environ.update(PYTHONNOUSERSITE="1", PIP_USER="0", UV_PYTHON_INSTALL_DIR=os.path.join(OWN_UV, "python"))
    os.environ.update(pip_settings.for_uv(os.environ))
    if settings["MPICC"]:
        os.environ["MPICC"] = settings["MPICC"]  # for mpi4py's build, also where it's kept from the last time


def lock():
    """Wait until no other set-up of this checkout runs, also not one in the background; return the lock's open file.

    uv inherits the lock, and so keeps it if this process is killed.
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


def find_uv():
    """The path of uv: the one on PATH, or else the set-up's own. Raises SetupError if nothing here can get one."""
    own = os.path.join(OWN_UV, "bin", "uv")
    for path in (shutil.which("uv"), own):
        if path and version_of(path) >= OLDEST_UV:
            return path
    with open(LOCK) as file:
        package = next(line.split()[0] for line in file if line.startswith("uv=="))
    folder = os.path.join(OWN_UV, "pip")
    # The Python that runs this file may be too old for uv, although there's a newer one: on many clusters it is 3.6.
    names = ["python%d.%d" % version for version in installation.PYTHONS]
    for python in filter(shutil.which, names + [sys.executable]):
        if not runs([python, "-m", "pip", "--version"]):
            if not runs([python, "-m", "venv", "--clear", folder]):
                continue
            python = os.path.join(folder, "bin", "python")
        step("Getting uv", [python, "-m", "pip", "install", "--upgrade", "--target", OWN_UV, package])
        return own
    raise SetupError(
        f"uv is needed, and {sys.executable} has neither venv nor pip to get it with: install python3-venv (on "
        "Debian), or uv itself, as its documentation says, and run it again."
    )


def version_of(uv):
    """Major and minor version of this uv; (0, 0) if it doesn't run."""
    try:
        text = subprocess.check_output([uv, "--version"], stderr=subprocess.DEVNULL, timeout=60).decode()
    except (OSError, subprocess.SubprocessError):
        return (0, 0)
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def make_venv(named):
    """Make .venv with the interpreter of this name, or with one that uv finds, or with one that uv brings."""
    oldest, newest = installation.PYTHONS[0], installation.PYTHONS[-1]
    venv = [find_uv(), "venv", "--clear", VENV]
    try:
        found = named or ">=%d.%d,<%d.%d" % (*oldest, newest[0], newest[1] + 1)
        step("Making .venv", venv + ["--no-python-downloads", "--python", found])
        if is_right(PYTHON_IN_VENV):
            return
    except StepError:
        pass
    wanted = f"Python {installation.pythons_in_words()} with a complete standard library"
    if named:
        raise SetupError(f"{wanted} is needed, and PYTHON={named} is none.")
    print(f"No {wanted} was found, so uv brings one, a download of about 35 MB.", flush=True)
    step("Making .venv", venv + ["--managed-python", "--python", "%d.%d" % oldest])


def is_right(python):
    return runs([python, "-c", CHECK.format(installation.PYTHONS)])


def install_core(settings, afresh):
    """Install the core into the .venv of an earlier set-up with the same settings, or `afresh` into a new one."""
    compiler = (settings["MPICC"].split() or ["mpicc"])[0]  # options may follow, as in "cc -shared"
    if settings["MPI"] == "system" and not shutil.which(compiler):
        raise SetupError(f"MPI=system needs {compiler} on PATH; load your cluster's MPI module, or set MPICC.")
    open(LOG, "w").close()
    before = read_stamp()
    stays = not afresh and before.get("kind") == kind_of_venv(settings) and is_right(PYTHON_IN_VENV)
    if not stays:
        if before.get("kind") not in (None, kind_of_venv(settings)):
            print("This .venv was made in another folder or for other settings, so it's made anew.", flush=True)
        make_venv(settings["PYTHON"])
    build, why = torch_build.choose(settings["TORCH_INDEX"])
    stamp = {"settings": settings, "kind": kind_of_venv(settings), "torch": why}
    write_stamp(stamp)  # there is no "done" yet: if this set-up is interrupted, the next one starts afresh
    print(why, flush=True)
    try:
        stamp["torch"] = install_packages(settings, build, why)
    except StepError as error:
        if stays and "Failed to install" not in error.reason:
            write_stamp(before)  # uv has installed nothing yet, so what was there before still works
        raise
    write_stamp(dict(stamp, done=describe(settings)))


def install_packages(settings, build, why):
    """Install PyTorch's build, mpi4py and the core; return why PyTorch is what it is."""
    if build:
        # PyTorch alone, because its index has other versions of what PyTorch needs.
        index = ["--default-index", build] if "/" in build else ["--torch-backend", build]
        try:
            step(f"Installing PyTorch's {build} build", install() + ["--no-deps", "torch"] + index)
        except StepError as error:
            if settings["TORCH_INDEX"]:
                raise
            elsewhere = f"It could not be had ({error.reason}), so PyTorch comes from your usual package index."
            print(elsewhere, "On Linux, that may be the build for CUDA, of 3 GB.", flush=True)
            why += " " + elsewhere
    if settings["MPI"] == "system":
        # .venv and uv's cache may hold an mpi4py that was built here against another MPI.
        from_source = ["--reinstall-package", "mpi4py", "--no-binary", "mpi4py", "--no-cache", "--no-deps", "mpi4py"]
        step("Building mpi4py against this machine's MPI (some minutes)", install() + from_source)
    notebooks = "notebooks-system-mpi" if settings["MPI"] == "system" else "notebooks"
    names = [notebooks, "lessons", "torch", "test"]
    step("Installing the workshop and what it needs (minutes the first time)", install(*names))
    return why


def install(*names):
    """The command that installs the workshop with these optional dependencies; without names, its beginning."""
    command = [find_uv(), "pip", "install", "--python", PYTHON_IN_VENV, "--constraints", LOCK]
    return command + ["--editable", "{}[{}]".format(ROOT, ",".join(names))] if names else command


def left_over(extras, settings, again=False):
    """Those of the extras that are still to be installed. Extras that failed before are included only with `again`."""
    ended = [installation.INSTALLED] if again else [installation.INSTALLED, installation.FAILED]
    notes = read_extras()
    wanted = describe(settings)
    left = []
    for name in extras:
        note = notes.get(name, {})
        if note.get("wanted") != wanted or note.get("state") not in ended:
            left.append(name)
    return left


def install_extras(extras, settings, again=False, log=LOG):
    """Install the extras that are left; return the names of those that are missing afterwards."""
    if left_over(extras, settings, again):
        with lock():
            left = left_over(extras, settings, again)
            for name in left:
                write_note(name, settings, installation.UNDER_WAY)
            for name in left:
                install_extra(name, settings, log)
    missing = [name for name in extras if read_extras()[name]["state"] != installation.INSTALLED]
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
    if name != "horovod":
        # The core is installed without bytecode, so that JupyterLab opens sooner. This writes it for all packages.
        return [(f"Installing {installation.TITLES[name]}", install(name) + ["--compile-bytecode"])]
    gpu = settings["HOROVOD_GPU_OPERATIONS"]
    build = ["env", "HOROVOD_GPU_OPERATIONS=" + gpu] if gpu else []
    return [
        ("Installing TensorFlow", install("tensorflow-gpu" if gpu else "tensorflow", "horovod")),
        ("Building Horovod (some minutes the first time)", build + [PYTHON_IN_VENV, HOROVOD_WHEEL]),
    ]


def leave_to_the_background(extras, settings):
    """Start a process that outlives this one and installs the extras that are left, while the learner works."""
    left = left_over(extras, settings)
    if not left:
        return
    if not any(installation.is_under_way(note, VENV) for note in read_extras().values()):
        os.makedirs(BUILD, exist_ok=True)
        command = [sys.executable, "-Es", os.path.abspath(__file__), "--in-background"]
        with open(EXTRAS_LOG, "a") as output:
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd=ROOT
            )
    titles = " and ".join(installation.TITLES[name] for name in left)
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


def step(what, command, log=LOG):
    """Run a command with its output in `log`; print what it does, how far it is, and how long it took.

    Raises StepError if the command fails.
    """
    began = time.time()
    os.makedirs(BUILD, exist_ok=True)
    with open(log, "a+", errors="replace") as output:
        print("$", *command, file=output, flush=True)
        start = output.tell()
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT, close_fds=False)
        while process.poll() is None:
            time.sleep(0.1)
            if sys.stdout.isatty():
                output.seek(start)
                doing = output.read().strip().rpartition("\n")[2].strip()
                line = f"{what} ... {time.time() - began:.0f} s {doing}"
                print("\r\033[K" + line[: shutil.get_terminal_size().columns - 1], end="\r", flush=True)
        output.seek(start)
        said = output.read()
    ended = "failed" if process.returncode else "done"
    print(f"{what} ... {ended}, {time.time() - began:.0f} s", flush=True)
    if process.returncode:
        raise StepError(what.partition(" (")[0], log, said)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
