"""Ranks live as long as their notebook, and never longer."""

import contextlib
import gc
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel
from needs import needs
from our_ranks import left_after, our_ranks

from workshop_lib import ranks
from workshop_lib.paths import ROOT
from workshop_lib.ranks.launch import agents, folders, processes, which_mpi

pytestmark = pytest.mark.full

GONE_WITHIN_S = 8.0
BY_THEMSELVES = {agents.FORK: "no"}  # one or two ranks import less than an agent that forks them
ENGINES = [sys.executable, "-m", "workshop_lib", "engines"]
STUCK = """\
from mpi4py import MPI
import time
if MPI.COMM_WORLD.rank == 0:
    MPI.COMM_WORLD.Barrier()
time.sleep(999)
"""


@pytest.fixture(scope="module", autouse=True)
def no_other_ranks(no_ranks_afterwards):
    """None that another file's tests have kept; some tests here leave healthy ones to the next."""
    ranks.stop()


def all_are_gone():
    return not left_after(GONE_WITHIN_S)


@contextlib.contextmanager
def holding(*options, **settings):
    """A process that holds ranks, and the folder of its first ones, once it has said where they are."""
    command = [*ENGINES, "start", *options]
    environment = os.environ | BY_THEMSELVES | settings
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    try:
        for rank, line in enumerate(holder.stdout):
            if line.startswith("In a notebook: ranks.attach("):
                break
            assert line.startswith(f"rank {rank}: ")
        else:
            pytest.fail(f"ended with {holder.wait(10)} before it said where the ranks are")
        yield holder, line.split("'")[1]
        holder.send_signal(signal.SIGINT)
        holder.wait(20)
    finally:
        holder.kill()
        holder.wait(10)
        holder.stdout.close()


def stop_engines(*words):
    return subprocess.run([*ENGINES, "stop", *words], capture_output=True, text=True, timeout=60, cwd=ROOT)


def test_a_restarted_kernel_leaves_no_process_although_its_ranks_are_inside_a_collective():
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(ROOT))
    try:
        client.execute("from workshop_lib import ranks; team = ranks.start(2)", reply=True, timeout=60)
        client.execute(f"team.run_cell({STUCK!r}, timeout=500)")
        time.sleep(0.5)
        assert len(our_ranks()) >= 4
        manager.restart_kernel(now=True)
        assert all_are_gone()
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_start_reaps_what_a_dead_notebook_of_this_host_left(dead_mark):
    in_a_container = dead_mark.replace(processes.pid_namespace(), "another")
    marks = (dead_mark, dead_mark.replace("@", "@another-host-than-"), in_a_container)
    started = [subprocess.Popen(["sleep", "300"], env=os.environ | {processes.VARIABLE: mark}) for mark in marks]
    left, *elsewhere = started
    deadline = time.monotonic() + 5  # just after its start, a program's environment can still read as empty
    while left.pid not in (found := [process.pid for process in processes.strays()]):
        assert time.monotonic() < deadline, found
    try:
        ranks.start(1)
        assert left.wait(5) == -signal.SIGKILL
        assert not processes.strays(), "the ranks of this living process are no strays"
        assert [process.poll() for process in elsewhere] == [None, None]
    finally:
        for process in started:
            process.kill()
            process.wait(5)
        ranks.stop()


FORKS = """\
import contextlib, os, sys
from workshop_lib import ranks
from workshop_lib.ranks.launch import processes, scripts
team = ranks.start(1)
set_id = processes.new_set_id()
with contextlib.ExitStack() as left:
    left.enter_context(scripts.started(["sleep", "60"], set_id))
    if os.fork() == 0:
        try:
            team.run(int)
        except ranks.RankError as error:
            print(error)
        sys.exit()
    os.wait()
    print(team.run(int), len(processes.marked(set_id)))
"""


def test_a_fork_that_exits_leaves_the_ranks_and_scripts_to_its_parent():
    environment = os.environ | BY_THEMSELVES
    output = subprocess.check_output([sys.executable, "-c", FORKS], text=True, timeout=120, cwd=ROOT, env=environment)
    in_fork, in_parent = output.splitlines()
    assert "they belong to the process that this one was forked from. `team.restart()`" in in_fork
    assert in_parent == "[0] 1"


def test_a_rank_that_is_asked_where_it_is_reads_no_other_threads_frames():
    """They change meanwhile, which has crashed ranks."""
    team = ranks.start(1)
    stack = team.folder / "stack.0.txt"
    deadline = time.monotonic() + 5
    team.send_signal([0], signal.SIGUSR1)
    while not stack.read_text():
        assert time.monotonic() < deadline
    assert stack.read_text().startswith("Stack (most recent call first):")


def test_starting_again_keeps_healthy_ranks_and_changes_their_number():
    team = ranks.start(2)
    pids = [about["pid"] for about in team.about()]
    assert [about["pid"] for about in ranks.start(2).about()] == pids
    assert [about["rank"] for about in ranks.start(3, threads_per_rank=1).about()] == [0, 1, 2]
    assert not set(pids) & {process.pid for process in our_ranks()}
    ranks.stop()


def test_a_notebook_has_one_set_of_ranks_also_when_an_old_one_is_restarted():
    old = ranks.start(2)
    new = ranks.start(1)
    old.restart()
    assert ranks.current() is old
    assert old.healthy and not new.healthy
    replaced = weakref.ref(new)
    del new
    gc.collect()
    assert replaced() is None, "nothing keeps it until the kernel ends"
    ranks.stop()
    assert all_are_gone()


def test_attaching_to_ranks_held_by_another_process(monkeypatch, capsys):
    with holding("--ranks", "2") as (holder, folder):
        own = ranks.start(1)
        team = ranks.attach(folder)
        assert not own.healthy, "ranks that nobody can reach any more are stopped"
        assert [about["rank"] for about in team.about()] == [0, 1]
        old = {about["pid"] for about in team.about()}
        monkeypatch.setenv("WORKSHOP_ATTACH", "1")
        assert ranks.start(2, bind="core") is team and {about["pid"] for about in team.about()} == old
        assert "threads_per_rank and bind are those of the ranks' holder" in capsys.readouterr().err
        with pytest.raises(ranks.RankError, match="^deadlock: every rank waits for another one"):
            team.run_cell("from mpi4py import MPI\nMPI.COMM_WORLD.recv(source=1 - MPI.COMM_WORLD.rank)", timeout=30)
        assert ranks.start(1) is team, "their holder starts another number"
        [fresh] = team.about()
        assert fresh["pid"] not in old
        os.kill(fresh["pid"], signal.SIGKILL)
        deadline = time.monotonic() + 3
        while team.healthy and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "SIGKILL" in team.trouble
        assert ranks.start(1) is team, "their holder replaces lost ranks"
        assert team.run(max, 1, 2) == [2]
        ranks.stop()
        with pytest.raises(ranks.RankError, match=r"they were stopped.*restart\(\)"):
            team.run(max, 1, 2)
        assert holder.poll() is None, "detaching leaves the ranks to their holder"
        team = ranks.attach(team.folder)
        holder.send_signal(signal.SIGINT)
        holder.wait(20)
        with pytest.raises(ranks.RankError, match="launcher ended"):
            team.run(max, 1, 2)
        with pytest.raises(ranks.RankError, match="No running ranks were found"):
            ranks.attach(team.folder)
    assert all_are_gone()


def test_engines_fill_the_job_and_end_when_they_are_asked_to(tmp_path):
    """By `workshop engines stop`, and by the signal with which schedulers end a job."""
    (tmp_path / "nodes").write_text(f"{socket.gethostname()}\n" * 2)
    for asked in ("stop", "signal"):
        with holding(PBS_JOBID="1", PBS_NODEFILE=str(tmp_path / "nodes")) as (holder, folder):
            assert len(folders.rank_notes(Path(folder))) == 2
            assert os.stat(folder).st_mode & 0o077 == 0, "the key is its owner's alone"
            if asked == "stop":
                ran = stop_engines()
                assert ran.returncode == 0 and folder in ran.stdout, ran.stdout + ran.stderr
            else:
                holder.send_signal(signal.SIGTERM)
            assert holder.wait(20) == 0
            assert holder.stdout.read() == "The ranks were stopped.\n"
            assert not os.path.exists(folder)
        assert all_are_gone()
    ran = stop_engines()
    assert ran.returncode == 1 and "Start some with `workshop engines start`" in ran.stderr


def test_a_stop_clears_away_what_a_killed_holder_left():
    with holding("--ranks", "1") as (holder, folder):
        holder.kill()
    assert all_are_gone()
    ran = stop_engines(folder)
    assert ran.returncode == 1 and "No running ranks were found" in ran.stderr
    ranks.start(1)
    assert not os.path.exists(folder), "the next start removes it"
    ranks.stop()


@needs("cores")
def test_threads_and_binding_are_what_was_asked_for():
    bound = ranks.start(1, threads_per_rank=1, bind="core").about()[0]
    assert (bound["threads"], len(bound["cores"])) == (1, 1)
    free = ranks.start(1, threads_per_rank=2).about()[0]
    assert (free["threads"], set(free["cores"])) == (2, os.sched_getaffinity(0))
    ranks.stop()


def interfaces(team):
    """Where the controller listens for ranks and for notebooks."""
    files = [team.folder / "security" / f"ipcontroller-{side}.json" for side in ("engine", "client")]
    return {json.loads(file.read_text())["interface"] for file in files}


def test_only_ranks_that_may_be_on_other_hosts_reach_the_controller_from_there(monkeypatch):
    ranks.stop()
    assert interfaces(ranks.start(2)) == {"tcp://127.0.0.1"}
    monkeypatch.setenv("WORKSHOP_MPIEXEC", shlex.join(which_mpi.mpiexec()))
    ranks.stop()
    team = ranks.start(2)
    assert interfaces(team) == {"tcp://*"}
    assert team.run(max, 1, 2) == [2, 2]
    ranks.stop()


def test_a_wrong_number_of_ranks_is_refused_and_leaves_the_ranks_as_they_are():
    team = ranks.start(2)
    for n in (0, -1, 1.5, "2", True, None):
        for start in (ranks.start, team.restart)[: 1 if n is None else 2]:
            with pytest.raises(ValueError, match="whole number, at least 1"):
                start(n)
    for start in (ranks.start, team.restart):
        with pytest.raises(ValueError, match="far too many for this machine"):
            start(10**6)
    assert ranks.start() is team, "by default, two"
    assert team.run(max, 1, 2) == [2, 2]


def test_what_cannot_be_sent_is_said_and_the_ranks_stay():
    team = ranks.start(2)
    with pytest.raises(ranks.RankError, match="cannot be sent"):
        team.run(print, threading.Lock())
    with pytest.raises(
        ranks.RankError, match="ranks 0, 1 gave a result that cannot be sent to the notebook:\n    lock: "
    ):
        team.run(threading.Lock)
    team.run_cell("from mpi4py import MPI\ncomm = MPI.COMM_WORLD")
    with pytest.raises(ranks.RankError, match="Intracomm: a communicator exists only on the ranks"):
        team.pull("comm")
    assert team.run(max, 1, 2) == [2, 2]


def test_output_comes_line_by_line_with_its_rank_and_variables_go_there_and_back(capsys):
    team = ranks.start(2)
    team.run_cell("from mpi4py import MPI\nprint('one\\ntwo')\nMPI.COMM_WORLD.rank + 10")
    assert capsys.readouterr().out.splitlines() == ["[0] one", "[0] two", "[0] 10", "[1] one", "[1] two", "[1] 11"]
    team.push(x=3)
    team.run_cell("y = x * MPI.COMM_WORLD.rank")
    assert team.pull("y") == [0, 3]
    with pytest.raises(ranks.RankError, match="no variable 'nothing'"):
        team.pull("nothing")
