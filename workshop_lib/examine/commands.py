"""The command `workshop examine`."""

import json as as_json
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from workshop_lib.errors import InputError
from workshop_lib.examine import report
from workshop_lib.examine.checks import examine as check
from workshop_lib.examine.findings import LEVELS, worst
from workshop_lib.examine.run import observe

app = typer.Typer()  # cli/commands.py adds its commands to `workshop`
# Options after the script's name are the script's own.
TO_THE_SCRIPT = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
ALONE_STEPS = 20
ALONE_S = 60.0


@app.command(context_settings=TO_THE_SCRIPT)
def examine(
    context: typer.Context,
    script: Annotated[
        str, typer.Argument(help="Your training script, as torchrun would start it; its options follow.")
    ],
    ranks: Annotated[int, typer.Option(help="How many processes to start.")] = 2,
    steps: Annotated[int, typer.Option(help="Stop after this many steps; 0: at the end of the script.")] = 0,
    seconds: Annotated[float, typer.Option(help="Stop after this time.")] = 120.0,
    alone: Annotated[bool, typer.Option(help="Run some steps on one rank first, to compare the speed.")] = False,
    python: Annotated[str, typer.Option(help="The Python of the script's environment.")] = sys.executable,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Run your own PyTorch script on several ranks, and report what is wrong with it.

    Put `--` before the script. The script isn't changed, and what it prints goes to stderr. The exit code is 0 if all
    is well, 2 if something is worth a look, and 3 if something is wrong.
    """
    if ranks < 1:
        raise InputError(f"--ranks {ranks}: give a whole number of at least 1.")
    if seconds <= 0 or steps < 0:
        raise InputError("--seconds must be above 0, and --steps at least 0.")
    if script != "-m" and not Path(script).is_file():
        raise InputError(f"{script}: there is no such file. Give the script that torchrun would start.")
    if shutil.which(python) is None:
        raise InputError(f"--python {python}: there is no such program.")
    command = [script, *context.args]
    one = observe(1, command, ALONE_STEPS, min(seconds, ALONE_S), python, show=False) if alone and ranks > 1 else None
    run = observe(ranks, command, steps, seconds, python)
    run.alone = one
    findings = check(run)
    if json:
        print(as_json.dumps(report.as_json(findings, ranks), indent=2))
    else:
        print(report.as_text(findings))
    raise typer.Exit((0, 2, 3)[LEVELS.index(worst(findings))])
