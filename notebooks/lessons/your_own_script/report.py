"""Examines a script in 15_your_own_script, as `workshop examine` does, and runs it with several seeds."""

import contextlib
import io
import re
import time
from dataclasses import dataclass
from pathlib import Path

from workshop_lib.examine.checks import examine as check
from workshop_lib.examine.observations import Run
from workshop_lib.examine.run import observe
from workshop_lib.examine.sections import SECTIONS
from workshop_lib.findings import Finding, as_text
from workshop_lib.ranks.launch import scripts

ACCURACY = re.compile(r"accuracy ([\d.]+)%")


@dataclass
class Examined:
    """What `workshop examine` found in a script. A notebook shows it as the command prints it."""

    path: Path
    run: Run
    findings: list[Finding]

    def __repr__(self) -> str:
        return as_text(self.findings, SECTIONS)


def examine(script: str | Path, *options: object, ranks: int = 2, timeout_s: float = 120.0) -> Examined:
    """Run a script with these options on several ranks, print how long it took, and return what is wrong with it."""
    began = time.monotonic()
    run = observe(ranks, [str(script), *map(str, options)], seconds=timeout_s, show=False)
    print(f"{ranks} ranks ran {Path(script).name} in {time.monotonic() - began:.0f} s.")
    return Examined(Path(script), run, check(run))


def accuracies(*command: object, seeds: int, timeout_s: float = 120.0) -> list[float]:
    """Run a command with --seed 1, 2, … and return the last accuracy that each run prints, in percent.

    Raises RankError if a run fails.
    """
    found = []
    for seed in range(1, seeds + 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            scripts.run(*command, "--seed", seed, timeout_s=timeout_s)
        found.append(float(ACCURACY.findall(printed.getvalue())[-1]))
    return found
