"""The supervisor of a rank writes down when it is stopped, and where it was when a different rank took it along."""

import functools
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from needs import needs

from workshop_lib.machine import cgroups
from workshop_lib.ranks import folders, which_mpi
from workshop_lib.ranks.processes import SUPERVISOR
from workshop_lib.ranks.rank_errors import how_it_ended

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
    settings = os.environ | which_mpi.environment() | {"TMPDIR": str(tmp_path)}
    run = functools.partial(subprocess.run, env=settings, timeout=20)
    kill = ["bash", "-c", "mkdir -p $PRTE_MCA_prte_local_tmpdir_base/ompi.$$ && kill -9 $$"]
    assert run([*SUPERVISOR, "--", *kill]).returncode == 128 + signal.SIGKILL
    assert not list(tmp_path.iterdir())

    planted = 'mkdir -p $TMPDIR/ompi.$$; touch $TMPDIR/ompi.$$/pmix.vm.tool; exec "$0" "$@"'
    command = ["bash", "-c", planted, *which_mpi.mpiexec(), "-n", "1", "true"]
    assert run([*SUPERVISOR, "--", *command]).returncode == 0
    [other] = tmp_path.iterdir()
    assert [file.name for file in other.iterdir()] == ["pmix.vm.tool"]


def test_a_supervisor_whose_owner_ended_before_it_began_ends_its_command():
    owner = subprocess.Popen(["true"])
    owner.wait(10)
    command = [*SUPERVISOR, "--owner", str(owner.pid), "--", "sleep", "60"]
    assert subprocess.run(command, timeout=20).returncode == 128 + signal.SIGTERM


def exit_record_of(program, folder, supervisor=SUPERVISOR, before=None):
    """What a supervisor writes about a rank, number 0, that runs this program until it is killed."""
    for kind in folders.NOTES:
        (folder / kind).mkdir()
    words = [*supervisor, "--record", str(folder), "--", sys.executable, "-S", "-c", program]
    subprocess.run(words, preexec_fn=before, timeout=30)
    [record] = folders.exit_records(folder)
    return record


def test_a_rank_that_used_up_its_time_on_the_cores_says_so(tmp_path):
    """Linux kills it, as it does when memory runs out."""
    one_second = functools.partial(resource.setrlimit, resource.RLIMIT_CPU, (1, 1))
    record = exit_record_of("while True: pass", tmp_path, before=one_second)
    assert how_it_ended(record) == (
        "was killed by SIGKILL, because it had computed for 1 s, which is all that a process may here (`ulimit -t`)"
    )


@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_is_killed_because_memory_ran_out_says_so(tmp_path, killed):
    """In a made-up cgroup, whose count of killed processes grows, or not, while the rank runs."""
    counts = tmp_path / "memory.events"
    counts.write_text("oom_kill 3\n")
    supervisor = tmp_path / "ranks" / "supervisor.py"
    supervisor.parent.mkdir()
    supervisor.write_text(Path(SUPERVISOR[-1]).read_text())
    source = Path(cgroups.__file__).read_text()
    assert "/sys/fs/cgroup" in source and "/proc/self/cgroup" in source
    (tmp_path / "own").write_text("0::/\n")
    (tmp_path / "memory.max").write_text("700000000\n")
    source = source.replace("/sys/fs/cgroup", str(tmp_path)).replace("/proc/self/cgroup", str(tmp_path / "own"))
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / "cgroups.py").write_text(source)
    program = f"import os, signal; open({str(counts)!r}, 'w').write('oom_kill {3 + killed}'); os.kill(os.getpid(), 9)"
    record = exit_record_of(program, tmp_path / "ranks", supervisor=[*SUPERVISOR[:-1], str(supervisor)])
    why = ", because the memory of this container, job or machine (0.7 GB) ran out: start fewer ranks, or allow it more"
    assert how_it_ended(record) == "was killed by SIGKILL" + (f"{why} memory" if killed else "")
