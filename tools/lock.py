"""Write down the exact versions of everything, for all supported platforms and Pythons: lock.txt and constraints.txt.

`make lock` keeps the versions that are locked already, as far as pyproject.toml allows. `make lock UPGRADE=1` takes the
newest ones. uv installs what lock.txt says and compares each file's hash. constraints.txt has the same versions for pip
and conda, which cannot install a checkout and compare hashes at the same time.
"""

import re
import subprocess
import sys

from workshop_lib.machine import installation
from workshop_lib.paths import ROOT

from tools import bootstrap

# PyTorch's builds say themselves which of these libraries they need.
OF_PYTORCHS_BUILD = re.compile(r"(nvidia|cuda|triton)\b")
HEADER = "# Exact versions of everything, for {}. Written by `make lock`.\n"


def main(options: list[str]) -> int:
    lock = ROOT / "lock.txt"
    uv = [
        bootstrap.find_uv(),
        "pip",
        "compile",
        "--quiet",
        "pyproject.toml",
        "--all-extras",
        "--output-file",
        lock.name,
    ]
    oldest = ".".join(map(str, installation.PYTHONS[0]))
    shape = ["--universal", "--python-version", oldest, "--generate-hashes", "--no-header", "--no-annotate"]
    upgrade = ["--upgrade"] if "--upgrade" in options else []
    ran = subprocess.run([*uv, *shape, *upgrade], cwd=ROOT, timeout=600)
    if ran.returncode == 0:
        lines = re.split(r"\n(?=\S)", lock.read_text().strip())
        locked = [line for line in lines if not OF_PYTORCHS_BUILD.match(line)]
        # Each of PyTorch's builds has hashes of its own, and the lock has only those of the default one.
        locked = [without_hashes(line) if line.startswith("torch==") else line for line in locked]
        header = HEADER.format("Python " + installation.pythons_in_words())
        lock.write_text(header + "\n".join(locked) + "\n")
        (ROOT / "constraints.txt").write_text(header + "\n".join(map(without_hashes, locked)) + "\n")
    return ran.returncode


def without_hashes(requirement: str) -> str:
    return requirement.partition(" \\\n")[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
