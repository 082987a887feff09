"""The scripts, submitted to stand-ins for their machines, run here: training, a sweep, engines, a Lab."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request

import pytest
from needs import needs_backend
from submissions.jobs import FakeMachine, submission
from submissions.scheduler_rules import MACHINES

from workshop_lib.paths import BUILD, ROOT
from workshop_lib.results import records

LAUNCHERS = {
    "polaris": "mpiexec",
    "aurora": "mpiexec",
    "sophia": "mpirun",
    "thetagpu": "mpirun",
    "theta": "aprun",
    "perlmutter": "srun",
    "slurm": "srun",
}
ON_TWO_RANKS = {"polaris": "ddp", "theta": "mpi"}  # the others on one, for the time that it takes


def elsewhere(machine: str) -> list:
    """The other machines: their jobs run in `make test-all`, and their directives are checked always."""
    return [pytest.param(name, marks=pytest.mark.exhaustive) for name in MACHINES if name != machine]


@pytest.fixture(scope="module")
def small(small_mnist):
    """Options for a run of a second, on few samples."""
    return f"--epochs 1 --train-samples 640 --data-dir {small_mnist}"


@pytest.fixture
def fake_machine(request, tmp_path):
    machine = getattr(request, "param", "polaris")
    out = BUILD / f"{machine}-4711"
    shutil.rmtree(out, ignore_errors=True)
    yield FakeMachine(machine, tmp_path)
    shutil.rmtree(out, ignore_errors=True)


def one_record(path):
    [record] = records.read(path)
    return record


@pytest.mark.parametrize("fake_machine", ["polaris", *elsewhere("polaris")], indirect=True)
def test_train(fake_machine, small):
    """One rank a GPU is started, with the machine's own line, and leaves a record; here two at most run."""
    machine, backend = fake_machine.machine, ON_TWO_RANKS.get(fake_machine.machine, "mpi")
    here = 2 if machine in ON_TWO_RANKS else 1
    # Without a real Slurm the library's own way to start ranks there cannot be had: see tests/slurm.
    own = {"WORKSHOP_MPIEXEC": "srun --ntasks-per-node=4"} if machine == "slurm" else {}
    ran = fake_machine.run(
        *submission(machine),
        f"submissions/{machine}/train.sh",
        **own,
        FAKE_MACHINE_MOST_RANKS=str(here),
        WORKSHOP_JOB_BACKENDS=backend,
        WORKSHOP_JOB_OPTIONS=small,
    )
    assert ran.returncode == 0, ran.stdout
    [job] = fake_machine.calls("qsub", "sbatch")
    [launch] = fake_machine.calls(LAUNCHERS[machine])
    assert launch["ranks"] == job["nodes"] * (MACHINES[machine].gpus or 4)
    record = one_record(BUILD / f"{machine}-4711" / "train.jsonl")
    assert record["what"]["world_size"] == here and record["what"]["launcher"] == "mpiexec"
    assert record["what"]["backend"] == backend and record["what"]["binding"]
    assert record["ranks_identical"]


def test_a_backend_that_fails_does_not_stop_the_others(fake_machine, small):
    ran = fake_machine.run(
        *submission("polaris"),
        "submissions/polaris/train.sh",
        FAKE_MACHINE_MOST_RANKS="1",
        WORKSHOP_JOB_BACKENDS="nccl:mpi",
        WORKSHOP_JOB_OPTIONS=small,
    )
    assert ran.returncode == 1
    assert "submissions/polaris: these backends failed: nccl; the output above says why." in ran.stdout
    assert one_record(BUILD / "polaris-4711" / "train.jsonl")["what"]["backend"] == "mpi"


@pytest.mark.parametrize("fake_machine", ["slurm", *elsewhere("slurm")], indirect=True)
def test_interactive_is_granted(fake_machine):
    account = ["-A", "project"] if fake_machine.machine not in ("theta", "thetagpu") else []
    script = f"submissions/{fake_machine.machine}/interactive.sh"
    ran = fake_machine.run("bash", script, *account, typed="echo granted")
    assert (ran.returncode, ran.stdout) == (0, "granted\n")


@pytest.mark.exhaustive
@pytest.mark.timeout(200)
@pytest.mark.parametrize("fake_machine", ["polaris"], indirect=True)
def test_preflight_keeps_its_record(fake_machine):
    """On two ranks: the stand-in has no room for the job's eight."""
    script = "submissions/polaris/preflight.sh"
    ran = fake_machine.run(*submission("polaris"), script, WORKSHOP_JOB_OPTIONS="--ranks 2")
    assert [call["ranks"] for call in fake_machine.calls("mpiexec")] == [2], ran.stdout
    assert (BUILD / "polaris-4711" / "preflight.json").exists(), ran.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("fake_machine", ["polaris"], indirect=True)
def test_sweep_leaves_records_and_the_figure(fake_machine, small):
    ran = fake_machine.run(
        *submission("polaris"),
        "submissions/polaris/sweep.sh",
        WORKSHOP_JOB_RANKS="1:2",
        WORKSHOP_JOB_BACKENDS="mpi",
        WORKSHOP_JOB_OPTIONS=small + " --repeats 1",
    )
    assert ran.returncode == 0, ran.stdout
    assert [call["ranks"] for call in fake_machine.calls("mpiexec")] == [1, 2]
    found = records.read(BUILD / "polaris-4711" / "sweep.jsonl")
    assert [record["what"]["world_size"] for record in found] == [1, 2]
    assert (BUILD / "polaris-4711" / "scaling.png").stat().st_size > 10_000


def check_scale(folder, backend, ranks):
    """One run of the published recipe on each number of ranks, and the figure of them."""
    found = sorted(records.read(sorted(folder.glob("scale*.jsonl"))), key=lambda record: record["what"]["world_size"])
    assert [record["what"]["world_size"] for record in found] == ranks
    for what in (record["what"] for record in found):
        assert (what["backend"], what["network"], what["optimizer"]) == (backend, "classic", "sgd")
        assert (what["lr"], what["lr_scaling"], what["warmup_epochs"], what["momentum"]) == (0.01, "linear", 0, 0.5)
    assert (folder / "solution.png").stat().st_size > 10_000


LIVE = [name for name in MACHINES if name not in ("theta", "thetagpu")]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "fake_machine",
    [name if name == "polaris" else pytest.param(name, marks=pytest.mark.exhaustive) for name in LIVE],
    indirect=True,
)
def test_scale_leads_to_its_figure(fake_machine, small):
    machine = fake_machine.machine
    ran = fake_machine.run(
        *submission(machine),
        f"submissions/{machine}/scale.sh",
        WORKSHOP_JOB_RANKS="2 3",
        WORKSHOP_JOB_BACKENDS="mpi",
        WORKSHOP_JOB_OPTIONS=small + " --device cpu",
        FAKE_MACHINE_MOST_RANKS="3",
    )
    assert ran.returncode == 0, ran.stdout
    assert [call["ranks"] for call in fake_machine.calls(LAUNCHERS[machine])] == [2, 3]
    check_scale(BUILD / f"{machine}-4711", "mpi", [2, 3])


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@needs_backend("horovod-keras")
@pytest.mark.parametrize("fake_machine", ["theta"], indirect=True)
@pytest.mark.parametrize(("script", "backend"), [("pytorch", "horovod"), ("keras", "horovod-keras")])
def test_the_documents_scaling_jobs_run_all_sizes_at_once_to_their_figure(fake_machine, small, script, backend):
    job = f"submissions/theta/qsub_{script}_mnist_scale.sh"
    ran = fake_machine.run("qsub", job, WORKSHOP_JOB_RANKS="4:512")
    assert ran.returncode == 1
    assert "ranks 4:512 need 129 nodes at the same time, and the job has 128." in ran.stdout
    ran = fake_machine.run(
        "qsub", job, limit_s=580, WORKSHOP_JOB_RANKS="2:3", WORKSHOP_JOB_OPTIONS=small, FAKE_MACHINE_MOST_RANKS="3"
    )
    assert ran.returncode == 0, ran.stdout
    assert sorted(call["ranks"] for call in fake_machine.calls("aprun")) == [2, 3]
    check_scale(BUILD / "theta-4711", backend, [2, 3])


@contextlib.contextmanager
def running(fake_machine, *command, **settings):
    """A job in the background, ended as a scheduler ends it."""
    log = fake_machine.folder / "output"
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=ROOT,
            env=fake_machine.environment(**settings),
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        yield process, log
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def wait_for(pattern: str, process, log, limit_s: float = 150.0) -> re.Match:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if found := re.search(pattern, log.read_text()):
            return found
        if process.poll() is not None:
            break
        time.sleep(0.1)
    pytest.fail(f"no {pattern!r} in {limit_s:.0f} s:\n{log.read_text()}")


@pytest.mark.exhaustive
@pytest.mark.parametrize("fake_machine", ["sophia"], indirect=True)
def test_engines_are_held_for_a_notebook_outside(fake_machine, monkeypatch):
    from workshop_lib import ranks

    with running(fake_machine, *submission("sophia"), "submissions/sophia/engines.sh", WORKSHOP_JOB_RANKS="2") as (
        process,
        log,
    ):
        folder = wait_for(r"ranks\.attach\('([^']+)'\)", process, log)[1]
        team = ranks.attach(folder)
        assert team.run(os.getpid, show=False) and team.n == 2
        ranks.stop()
    assert [call["ranks"] for call in fake_machine.calls("mpirun")] == [2]


def answers(address: str, limit_s: float = 60.0) -> dict:
    """What JupyterLab says at an address, once it listens."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError:
            raise
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("fake_machine", ["perlmutter"], indirect=True)
def test_lab_answers(fake_machine):
    host = os.uname().nodename
    with running(
        fake_machine, *submission("perlmutter"), "submissions/perlmutter/lab.sh", WORKSHOP_JOB_PORT="18642"
    ) as (process, log):
        found = wait_for(r"http://\S+:(\d+)/lab\S*\?token=(\w{48})", process, log)
        assert f"ssh -L 18642:{host}:18642 USER@perlmutter.nersc.gov" in log.read_text()
        for name in (host, "localhost"):  # as seen from the login node, and through the tunnel
            assert "kernels" in answers(f"http://{name}:{found[1]}/api/status?token={found[2]}")
        first = answers(f"http://localhost:{found[1]}/api/contents/00_start_here.ipynb?content=0&token={found[2]}")
        assert first["type"] == "notebook", "it opens where `make lab` does"
        with pytest.raises(urllib.error.HTTPError, match="403"):
            answers(f"http://{host}:{found[1]}/api/status")


def test_outside_a_job_it_says_so(fake_machine):
    ran = fake_machine.run("bash", "submissions/polaris/train.sh")
    assert ran.returncode == 1
    sentence = "PBS_NODEFILE is not set: submit this script, or run it inside an interactive job."
    assert ran.stdout == f"submissions/polaris: {sentence}\n"


def test_without_an_environment_it_says_so(fake_machine, tmp_path):
    ran = fake_machine.run(
        *submission("polaris"), "submissions/polaris/train.sh", WORKSHOP_PYTHON=str(tmp_path / "none")
    )
    assert ran.returncode == 1
    assert f"{tmp_path / 'none'} is missing: run make setup on a login node" in ran.stdout
