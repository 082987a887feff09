"""Programs that 01_mpi_basics starts with mpiexec. One of them, hello.py, is an exercise, judged by what it prints.

This file starts processes, so only the notebook imports it, never a rank.
"""

import contextlib
import io
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from workshop_lib.exercises.judge import Property, Verdict
from workshop_lib.paths import BUILD
from workshop_lib.ranks.faults.rank_errors import RankError
from workshop_lib.ranks.launch import scripts, which_mpi

PROCESSES = 3


def folder() -> Path:
    """The folder for the programs that the notebook writes. It is created if it does not exist."""
    path = BUILD / "01_mpi_basics"
    path.mkdir(parents=True, exist_ok=True)
    return path


def mpiexec(processes: int, *command: str | Path, timeout_s: float = 6.0) -> None:
    """Run `mpiexec -n PROCESSES COMMAND`, and print what it prints and, if it fails or takes too long, that."""
    try:
        scripts.run(*which_mpi.mpiexec(), "-n", processes, *command, timeout_s=timeout_s)
    except RankError as error:
        print(error)


def hello(script: Path) -> Verdict:
    """Start the learner's program with mpiexec, and judge what it prints."""
    verdict = Verdict(script.name)
    if "NotImplementedError" in script.read_text(encoding="utf-8"):
        return verdict
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            scripts.run(*which_mpi.mpiexec(), "-n", PROCESSES, sys.executable, "-m", "mpi4py", script, timeout_s=30)
    except RankError as error:
        verdict.passed = False
        verdict.failed = f"it did not run to its end.\n{error}"
    print(output.getvalue())
    if verdict.passed is None:
        verdict.follow((prop.text, "" if prop.holds else prop.hint) for prop in hello_properties(output.getvalue()))
    return verdict.recorded()


def hello_properties(output: str) -> Iterator[Property]:
    lines = Counter(line.strip() for line in output.splitlines())
    example = f"'rank 0 of {PROCESSES} on {socket.gethostname()}'"
    named = {
        rank: [line for line in lines if line.startswith(f"rank {rank} of {PROCESSES}")] for rank in range(PROCESSES)
    }
    hint = f"let each process print a line such as {example}, with rank and size of `MPI.COMM_WORLD`."
    once = all(sum(lines[line] for line in own) == 1 for own in named.values())
    yield Property("each process says exactly once which rank it is", once, hint)
    hosts = [own[0].partition(f"rank {rank} of {PROCESSES} on ")[2] for rank, own in named.items()]
    hint = f"for example {example}: `socket.gethostname()` returns the name."
    yield Property("and on which host", socket.gethostname() in hosts and all(hosts), hint)
    wanted = f"{PROCESSES} ranks on {len(set(hosts))} host"
    total = lines[wanted] + lines[wanted + "s"]
    hint = f"gather the names on rank 0, count how many differ, and print '{wanted}s' there and nowhere else."
    yield Property("rank 0 alone says how many hosts there are", total == 1, hint)
