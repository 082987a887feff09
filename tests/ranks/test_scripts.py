"""Scripts started from a notebook: their output, their failures, and that nothing of them is left."""

import contextlib
import socket
import subprocess
import sys
import time

import pytest
from our_ranks import our_ranks

from workshop_lib.notebook import take_home
from workshop_lib.ranks import RankError
from workshop_lib.ranks.launch import launchers, scripts, which_mpi
from workshop_lib.ranks.launch.scratch import Scratch


def test_the_command_and_what_it_prints_are_shown(capfd):
    scripts.run("python", "-c", "import os; print(os.environ['OMP_NUM_THREADS'], 'thread')", timeout_s=30)
    shown = capfd.readouterr().out.splitlines()
    assert shown[0].startswith("$ python -c ")
    assert shown[1] == "1 thread"


def test_a_failure_is_an_error_that_names_the_command(capfd):
    with pytest.raises(RankError, match=r"python -c .* ended with exit code 3"):
        scripts.run("python", "-c", "import sys; print('why', file=sys.stderr); sys.exit(3)", timeout_s=30)
    assert "why" in capfd.readouterr().out


def test_a_rank_that_gloo_aborts_at_its_end_is_told_from_a_failure():
    program = f"import sys; print({scripts.GLOO_ABORTED!r}); sys.exit(1)"
    with pytest.raises(RankError, match="gloo aborted a rank that was done.*run it again"):
        scripts.run("python", "-c", program, timeout_s=30)


def test_a_script_that_cannot_start_leaves_no_folder(monkeypatch):
    made = []
    monkeypatch.setattr(scripts, "Scratch", lambda set_id: made.append(Scratch(set_id)) or made[0])
    with scripts.started(["python", "-c", "pass"], "abc", folder="/no/such/folder") as process:
        assert "No such file or directory: '/no/such/folder'" in process.stdout.read()
    assert made[0].folders
    assert not any(folder.exists() for folder in made[0].folders)


@pytest.fixture
def two_nodes(tmp_path, monkeypatch):
    """Variables of a Slurm job with two nodes of four GPUs."""
    for name in ("WORKSHOP_MPIEXEC", "WORKSHOP_RANKS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": f"{socket.gethostname()},n2", "SLURM_GPUS_ON_NODE": "4"}
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WORKSHOP_PROFILE", "cluster")


def test_torchrun_starts_only_this_nodes_ranks_and_says_so(two_nodes, monkeypatch, capfd):
    started = []

    @contextlib.contextmanager
    def fake(words, set_id):
        started.append(words)
        with subprocess.Popen("true", stdout=subprocess.PIPE, text=True) as process:
            yield process

    monkeypatch.setattr(scripts, "started", fake)
    take_home.train("fsdp2.py")
    assert started[0][started[0].index("--nproc-per-node") + 1] == "4", "the job has eight GPUs, and this node four"
    assert "torchrun --standalone stays on this node" in capfd.readouterr().out


def test_mpi_starts_ranks_on_all_nodes_of_a_job(two_nodes, monkeypatch):
    monkeypatch.setattr(which_mpi, "mpiexec", lambda scheduler=None: ["srun"])
    words = scripts.mpiexec(8)
    srun = words[words.index("srun") :]
    assert " -n 8 --nodes=2 --ntasks-per-node=4 " in " ".join(srun)
    assert words[0] == "env" and {"-u", *which_mpi.ON_ONE_HOST} <= set(words), "the network between nodes stays in use"


def test_open_mpi_is_told_only_of_variables_that_a_script_has(two_nodes, monkeypatch):
    """It would print a warning about each of the others."""
    monkeypatch.setattr(launchers, "flavor", lambda words: "openmpi")
    words = scripts.mpiexec(8)
    told = {name for option, name in zip(words, words[1:], strict=False) if option == "-x"}
    assert told and not told & {"IPYTHONDIR", "WORKSHOP_LAUNCHER", "WORKSHOP_CWD"}


def test_without_a_job_mpi_starts_ranks_here(monkeypatch):
    monkeypatch.delenv("WORKSHOP_MPIEXEC", raising=False)
    assert scripts.mpiexec(2) == ["mpiexec", "-n", "2"]
    monkeypatch.setenv("WORKSHOP_MPIEXEC", "srun --mpi=pmix")
    assert scripts.mpiexec(2)[-4:] == ["srun", "--mpi=pmix", "-n", "2"]


def test_what_another_mpiexec_left_is_in_nobodys_way_and_a_killed_one_leaves_nothing(tmp_path, monkeypatch, capfd):
    """Open MPI's refuses to start where there's a folder of a killed one with its process number."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    planted = f'mkdir {tmp_path}/ompi.$$; touch {tmp_path}/ompi.$$/pmix.vm.tool; exec "$0" "$@"'
    scripts.run("bash", "-c", planted, *which_mpi.mpiexec(), "-n", "1", "true", timeout_s=30)
    with pytest.raises(RankError, match="was killed by SIGKILL"):
        scripts.run("bash", "-c", "mkdir $PRTE_MCA_prte_local_tmpdir_base/ompi.$$ && kill -9 $$")
    assert [file.name for file in tmp_path.glob("*/*")] == ["pmix.vm.tool"]


def alive(command):
    return [process for process in our_ranks() if command in " ".join(process.cmdline())]


def test_a_child_in_a_session_of_its_own_is_ended_at_the_limit_and_if_it_outlives_its_parent():
    start = (
        "import subprocess, sys; subprocess.{}([sys.executable, '-c', 'import time; time.sleep({})'], "
        "start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)"
    )
    begun = time.monotonic()
    with pytest.raises(RankError, match="had not finished after 1 s"):
        scripts.run(sys.executable, "-c", start.format("run", 60), timeout_s=1)
    assert time.monotonic() - begun < 20 and not alive("time.sleep(60)")
    scripts.run(sys.executable, "-c", start.format("Popen", 61), timeout_s=30)
    assert not alive("time.sleep(61)")
