"""The supervisor of a rank writes down when it is stopped, and where it was when a different rank took it along."""

import functools
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from needs import needs

from workshop_lib.ranks import folders, mpi
from workshop_lib.ranks.processes import SUPERVISOR

RANK = """\
import faulthandler, signal, sys, time
faulthandler.register(signal.SIGUSR1, file=open(sys.argv[1], "a"))
print("ready", flush=True), time.sleep(60)
"""


@pytest.fixture
def rank(tmp_path):
    """A supervisor and the process id of its rank, number 1."""
    for kind in folders.NOTES:
        (tmp_path / kind).mkdir()
    program = [sys.executable, "-S", "-c", RANK, str(tmp_path / "stack.1.txt")]
    process = subprocess.Popen(
        [*SUPERVISOR, "--record", str(tmp_path), "--", *program],
        env=os.environ | {"OMPI_COMM_WORLD_RANK": "1"},
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"ready\n"
    children = f"/proc/{process.pid}/task/{process.pid}/children"
    with open(children) as file:
        yield process, int(file.read())
    process.terminate()
    process.wait(10)
    process.stdout.close()


def until(condition):
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@needs("linux")
def test_a_stopped_rank_is_noted_until_it_goes_on(rank, tmp_path):
    _, pid = rank
    os.kill(pid, signal.SIGSTOP)
    until(lambda: folders.stopped_ranks(tmp_path))
    note = folders.stopped_ranks(tmp_path)[1]
    assert (note["pid"], note["signal"]) == (pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGCONT)
    until(lambda: not folders.stopped_ranks(tmp_path))


@needs("linux")
@pytest.mark.parametrize("lost", [True, False])
def test_a_rank_taken_along_by_a_lost_one_says_where_it_was(rank, tmp_path, lost):
    process, pid = rank
    if lost:
        (tmp_path / "exit" / "0.json").write_text(json.dumps({"rank": 0, "asked": False, "returncode": -9, "time": 0}))
    process.terminate()
    process.wait(10)
    record = folders.exit_records(tmp_path)[-1]
    assert (record["rank"], record["pid"], record["asked"], record["returncode"]) == (1, pid, True, -signal.SIGKILL)
    assert ("line 3 in <module>" in (tmp_path / "stack.1.txt").read_text()) == lost


def test_a_killed_mpiexec_leaves_nothing_and_what_another_one_left_is_in_nobodys_way(tmp_path):
    """Open MPI's refuses to start where there's a folder of a killed one with its process number."""
    settings = os.environ | mpi.environment() | {"TMPDIR": str(tmp_path)}
    run = functools.partial(subprocess.run, env=settings, timeout=20)
    kill = ["bash", "-c", "mkdir -p $PRTE_MCA_prte_local_tmpdir_base/ompi.$$ && kill -9 $$"]
    assert run([*SUPERVISOR, "--", *kill]).returncode == 128 + signal.SIGKILL
    assert not list(tmp_path.iterdir())

    planted = 'mkdir -p $TMPDIR/ompi.$$; touch $TMPDIR/ompi.$$/pmix.vm.tool; exec "$0" "$@"'
    command = ["bash", "-c", planted, *mpi.mpiexec(), "-n", "1", "true"]
    assert run([*SUPERVISOR, "--", *command]).returncode == 0
    [other] = tmp_path.iterdir()
    assert [file.name for file in other.iterdir()] == ["pmix.vm.tool"]


def test_a_supervisor_whose_owner_ended_before_it_began_ends_its_command():
    owner = subprocess.Popen(["true"])
    owner.wait(10)
    command = [*SUPERVISOR, "--owner", str(owner.pid), "--", "sleep", "60"]
    assert subprocess.run(command, timeout=20).returncode == 128 + signal.SIGTERM
