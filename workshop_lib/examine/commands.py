"""The command `workshop examine`."""

import argparse
import itertools
import json as as_json
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workshop_lib.arguments import Parser
from workshop_lib.errors import InputError
from workshop_lib.findings import EXIT_CODES, as_data, show, worst

RANKS = 2
LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
MODULES = ("torch.distributed.run", "torch.distributed.launch")
RANKS_OPTIONS = ("nproc-per-node", "num-processes", "num-gpus")
FAILED = 1  # exit code when nothing was examined, because 2 says that something is worth a look
PYTHON_S = 60.0  # for another Python to import PyTorch
AGAIN_S = 60.0  # at most, for the first step on one rank


def examine_arguments(parser: Parser) -> None:
    parser.runs(examine)
    parser.wrong_usage = FAILED
    parser.add_argument("--ranks", type=int, metavar="N", help="How many processes to start. (default: 2)")
    parser.add_argument(
        "--steps", type=int, default=0, metavar="N", help="Stop after this many steps; 0: no limit of steps."
    )
    parser.add_argument(
        "--seconds", type=float, default=120.0, metavar="X", help="Stop the script after this many seconds."
    )
    parser.add_argument(
        "--against-one", action="store_true", help="Run the first step again on one rank, and compare the gradients."
    )
    parser.add_argument(
        "--pretend-gpu", action="store_true", help="Run a script for CUDA on the CPU, where no GPU is needed."
    )
    parser.add_argument("--python", default=sys.executable, help="The Python of the script's environment.")
    parser.add_argument("--json", action="store_true", help="Machine-readable output.")
    parser.add_argument(
        "script", nargs=argparse.REMAINDER, metavar="-- SCRIPT ...", help="Your script and its options."
    )


def examine(
    ranks: int | None,
    steps: int,
    seconds: float,
    against_one: bool,
    pretend_gpu: bool,
    python: str,
    json: bool,
    script: list[str],
) -> int:
    """Run your own PyTorch script on several ranks, and report what is wrong with it.

    The script really runs and writes its files, and what it prints goes to stderr. The exit code is 0 if all is well,
    1 if examine couldn't run, 2 if something is worth a look, and 3 if something is wrong.
    """
    command, launched = without_launcher(script[1:] if script[:1] == ["--"] else script)
    if not command:
        raise InputError("which script? Give it after the options: workshop examine --ranks 2 -- train.py.")
    ranks = ranks if ranks is not None else launched or RANKS
    if ranks < 1:
        raise InputError(f"--ranks {ranks}: give a whole number of at least 1.")
    if seconds <= 0 or steps < 0:
        raise InputError("--seconds must be above 0, and --steps at least 0.")
    if command[0] != "-m" and not Path(command[0]).is_file():
        raise InputError(f"{command[0]}: there is no such file. After -- come your script and its own options.")
    _check_python(python)
    from workshop_lib.examine.checks import examine as check
    from workshop_lib.examine.run import observe
    from workshop_lib.examine.sections import SECTIONS

    with tempfile.TemporaryDirectory(prefix="workshop-examine-") as folder:
        first_step = Path(folder) if against_one and ranks > 1 else None
        how: dict[str, Any] = {"python": python, "first_step": first_step, "pretend_gpu": pretend_gpu}
        run = observe(ranks, command, steps, seconds, **how)
        if first_step is not None:
            from workshop_lib.examine.on_ranks.first_step import compare  # imports PyTorch

            run.repeated = observe(1, command, 1, min(seconds, AGAIN_S), show=False, **how)
            run.against_one = compare(first_step)
    findings = check(run)
    if json:
        result = {"ranks": ranks, "worst": worst(findings), "findings": as_data(findings, SECTIONS)}
        print(as_json.dumps(result, indent=2))
    else:
        show(findings, SECTIONS)
    return EXIT_CODES[worst(findings)]


def without_launcher(command: list[str]) -> tuple[list[str], int | None]:
    """The script and its options without a launcher in front of it, and the number of ranks that the launcher got.

    Raises InputError for a launch on several nodes.
    """
    if not command:
        return [], None
    if Path(command[0]).name.startswith("python"):
        command = command[1:]
    if len(command) > 1 and command[0] == "-m" and command[1] in MODULES:
        command = command[1:]
    if not command or Path(command[0]).name not in (*LAUNCHERS, *MODULES):
        return command, None
    start = next((place for place, word in enumerate(command) if word == "-m" or word.endswith(".py")), len(command))
    options = " ".join(command[1:start]).replace("_", "-").replace("=", " ").split()
    given = {name.lstrip("-"): value for name, value in itertools.pairwise(options)}
    if given.get("nnodes", "1") not in ("1", "1:1"):
        raise InputError(f"--nnodes {given['nnodes']}: examine watches ranks on this machine. Leave --nnodes out.")
    counts = [given[name] for name in RANKS_OPTIONS if name in given]
    return command[start:], int(counts[0]) if counts and counts[0].isdigit() else None


def _check_python(python: str) -> None:
    if shutil.which(python) is None:
        raise InputError(f"--python {python}: there is no such program.")
    if python == sys.executable:
        if find_spec("torch") is None:
            raise InputError(
                f"{sys.prefix} has no PyTorch. Name the Python that your script runs with: --python .venv/bin/python"
            )
        return
    needs = f"--python {python}: examine needs PyTorch 2.6 or newer and NumPy there"
    asks = [python, "-c", "import numpy, torch.accelerator"]  # PyTorch 2.6 brought the second
    try:
        asked = subprocess.run(asks, capture_output=True, text=True, timeout=PYTHON_S)
    except subprocess.TimeoutExpired as error:
        raise InputError(f"{needs}, and importing it took more than {PYTHON_S:g} seconds.") from error
    if asked.returncode:
        *_, says = asked.stderr.strip().splitlines() or ["it failed"]
        raise InputError(f"{needs}. It says: {says}")
