"""The command line as its user meets it: what it does, what it says, and that it always ends."""

import os
import subprocess
import sys
import time

import command_line
import pytest

from workshop_lib.notebook.results import records
from workshop_lib.paths import ROOT
from workshop_lib.ranks.launch import which_mpi

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("only_small_mnist")]
SMALL = ("--epochs", "1")


def workshop(*arguments, launcher=(), limit_s=120, **environment):
    return subprocess.run(
        [*launcher, sys.executable, "-m", "workshop_lib", *arguments],
        cwd=ROOT,
        env=os.environ | which_mpi.environment() | environment,
        text=True,
        timeout=limit_s,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )


def test_an_error_that_only_ranks_can_meet_is_one_sentence():
    ran = workshop("train", "--ranks", "2", WORKSHOP_MNIST="/nowhere")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    lines = [line for line in ran.stderr.splitlines() if "Other programs were using" not in line]
    assert len(lines) == 1 and lines[0].startswith("workshop: /nowhere/train-images-idx3-ubyte: expected this file")


def test_a_training_that_diverges_still_leaves_its_record(tmp_path):
    out = tmp_path / "runs.jsonl"
    ran = workshop("train", "--lr", "1e6", "--out", str(out), *SMALL)
    assert ran.returncode == 0, ran.stderr
    assert "train loss not finite" in ran.stdout and "The training has diverged" in ran.stdout
    (record,) = records.read(out)
    assert record["epochs"][0]["train_loss"] is None


def test_records_of_engines_and_of_mpiexec_say_what_ran_and_where_and_have_the_same_weights(tmp_path):
    out = tmp_path / "runs.jsonl"
    options = ("--backend", "ddp", "--out", str(out), "--seed", "3", *SMALL)
    for arguments, launcher in ((("--ranks", "2"), ()), ((), [*which_mpi.mpiexec(), "-n", "2"])):
        ran = workshop("train", *arguments, *options, launcher=launcher)
        assert ran.returncode == 0, ran.stderr
        assert "weights identical on all ranks" in ran.stdout
        assert "Warning" not in ran.stdout + ran.stderr
    engines, plain = records.read(out)
    assert (engines["what"]["launcher"], plain["what"]["launcher"]) == ("engines", "mpiexec")
    for record in (engines, plain):
        what = record["what"]
        assert (what["backend"], what["world_size"], what["seed"]) == ("ddp", 2, 3)
        assert (what["threads_per_rank"], what["global_batch"]) == (1, 128)
        assert {"hosts", "cpu_model", "cores", "versions", "mpi_library"} <= set(record["where"])
        assert not record["stopped"]
    assert len(set(engines["weights_sha256"])) == 1 and len(engines["weights_sha256"]) == 2
    assert engines["weights_sha256"] == plain["weights_sha256"]


def test_sweep_and_plot(tmp_path):
    out = tmp_path / "sweep.jsonl"
    sizes = ("--epochs", "2", "--zero-stages", "1,3")
    backends = ("--backends", "mpi,deepspeed")  # all of them in one process: test_in_turn
    ran = workshop("sweep", "--ranks", "1,2", "--brief", "--out", str(out), *backends, *sizes, limit_s=250)
    assert ran.returncode == 0, ran.stderr
    results = [line for line in ran.stdout.splitlines() if "; run " in line]
    assert [line.split("; run ")[1][:6] for line in results] == [f"{number} of 6" for number in range(1, 7)]
    assert all(line.endswith(" left") for line in results[:-1]) and results[-1].endswith("run 6 of 6")
    assert "epoch 1" not in ran.stdout and "\r" not in ran.stdout
    runs = records.read(out)
    names = ["mpi", "deepspeed-1", "deepspeed-3"]
    assert [records.name_of(run["what"]) for run in runs] == 2 * names
    for run in runs:
        difference = run["ladder"]["largest_relative_difference"]
        assert difference < 1e-4, run["what"]
        if run["what"]["world_size"] == 1 and run["what"]["backend"] == "mpi":
            assert difference == 0.0
    for word in (*names, "KB of", "samples/s", "ciency", "differ"):
        assert word in ran.stdout
    assert command_line.workshop("plot", out, "--out-dir", tmp_path).exit_code == 0
    for name in ("scaling.png", "accuracy.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_one_failing_rank_under_mpiexec_ends_them_all():
    program = (
        "import sys; from mpi4py import MPI\n"
        "from workshop_lib import cli; from workshop_lib.training.backends.pytorch import TorchReplica\n"
        "def broken(*_): raise ZeroDivisionError('on rank 1')\n"
        "if MPI.COMM_WORLD.rank == 1: TorchReplica.step = broken\n"
        "sys.argv = ['workshop', 'train']; cli.main()"
    )
    started = time.monotonic()
    ran = subprocess.run(
        [*which_mpi.mpiexec(), "-n", "2", sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | which_mpi.environment(),
        text=True,
        timeout=60,
        capture_output=True,
    )
    assert ran.returncode != 0
    assert "ZeroDivisionError" in ran.stderr and "on rank 1" in ran.stderr
    assert time.monotonic() - started < 30


@pytest.mark.exhaustive
def test_deepspeed_starts_without_a_compiler(tmp_path):
    """Each of its own operations that DeepSpeed compiles when it is first used costs more than a minute."""
    called, shims = tmp_path / "called", tmp_path / "bin"
    shims.mkdir()
    for name in ("cc", "gcc", "c++", "g++", "clang", "clang++", "ld", "ninja"):
        (shims / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {called}\nexit 1\n')
        (shims / name).chmod(0o755)
    options = ("--ranks", "2", "--backend", "deepspeed", "--zero-stage", "3", "--max-steps", "1")
    environment = {"PATH": f"{shims}:{os.environ['PATH']}", "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}
    ran = workshop("train", *options, **environment)
    assert ran.returncode == 0, ran.stderr
    assert not called.exists(), called.read_text()
    assert not (tmp_path / "extensions").exists()
