"""Starting ranks for a test, each start with a time limit and no process left behind."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from workshop_lib.ranks.launch import which_mpi
from workshop_lib.ranks.launch.scratch import MPIEXECS_PLACE

TRAIN_RUNS = Path(__file__).with_name("train_runs.py")


def rank_environment(**extra: str) -> dict[str, str]:
    """The environment of a rank, without what a launcher around the tests may have set."""
    foreign = ("SLURM_", "OMPI_COMM", "PMI_", "PMIX_", "TORCHELASTIC_", "MASTER_")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    timeouts = {"PYTHONPATH": which_mpi.python_path(), "WORKSHOP_GLOO_TIMEOUT_S": "30"}
    return inherited | which_mpi.environment() | timeouts | extra


def run_bounded(commands: list[list[str]], environments: list[dict], timeout_s: float) -> list:
    """Run commands at the same time; (exit status, output) of each. Kills them at the limit."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        own = {MPIEXECS_PLACE: place}  # for the reason that scratch.py gives
        return _run_bounded(commands, [environment | own for environment in environments], timeout_s)


def _run_bounded(commands, environments, timeout_s):
    processes = [
        subprocess.Popen(
            [str(word) for word in command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for command, environment in zip(commands, environments, strict=True)
    ]
    outcomes = []
    try:
        for process in processes:
            output, _ = process.communicate(timeout=timeout_s)
            outcomes.append((process.returncode, output))
    except subprocess.TimeoutExpired:
        pytest.fail(f"still running after {timeout_s} s: {commands}")
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)
    return outcomes


def run_training(folder: Path, runs: list[dict], ranks: int, timeout_s: float = 180) -> dict:
    """Several runs (see train_runs.py) under one mpiexec; one rank is started without MPI.
    Returns the outcome of each rank, by name of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "runs.json").write_text(json.dumps(runs))
    run_script(ranks, TRAIN_RUNS, folder, timeout_s=timeout_s)
    return read_outcomes(folder, runs, ranks)


def run_script(ranks: int, script: Path, *arguments, timeout_s: float) -> None:
    """Run a script to its end on so many ranks; one rank is started without MPI."""
    command = [sys.executable, script, *arguments]
    if ranks > 1:
        command = [*which_mpi.mpiexec(), "-n", ranks, *command]
    [(status, output)] = run_bounded([command], [rank_environment()], timeout_s)
    assert status == 0, output


def read_outcomes(folder: Path, runs: list[dict], ranks: int) -> dict:
    return {
        run["name"]: [json.loads((folder / f"{run['name']}.{rank}.json").read_text()) for rank in range(ranks)]
        for run in runs
    }
