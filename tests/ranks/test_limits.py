"""What this host's limits allow ranks: named before anything starts, or when a rank was killed for one."""

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from needs import missing, needs

from workshop_lib.cli import doctor
from workshop_lib.machine import cgroups
from workshop_lib.ranks import RankError
from workshop_lib.ranks.faults import failures
from workshop_lib.ranks.launch import limits, node_agent

UNLIMITED = resource.RLIM_INFINITY


@pytest.fixture
def allowed(monkeypatch):
    """Limits in place of this host's: by their number, soft and hard. Returns what has been raised, by its number."""

    def allow(**given):
        of = {getattr(resource, f"RLIMIT_{name}"): pair for name, pair in given.items()}
        raised = {}
        monkeypatch.setattr(resource, "getrlimit", lambda number: of.get(number, (UNLIMITED, UNLIMITED)))
        monkeypatch.setattr(resource, "setrlimit", raised.__setitem__)
        monkeypatch.setattr(cgroups, "folders", lambda controller: iter(()))
        return raised

    return allow


@pytest.mark.parametrize(
    ("name", "pair", "raised"),
    [
        ("NOFILE", (1024, 4096), {}),
        ("NOFILE", (64, 4096), {resource.RLIMIT_NOFILE: (136, 4096)}),
        ("CPU", (6, UNLIMITED), {resource.RLIMIT_CPU: (60, UNLIMITED)}),
    ],
)
def test_a_limit_that_is_too_low_is_raised(allowed, name, pair, raised):
    chosen = allowed(**{name: pair})
    limits.require(2)
    assert chosen == raised


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"NOFILE": (64, 64)}, "136 open files; 64 are allowed here. Run `ulimit -n 1024`"),
        ({"NPROC": (60, 60)}, "70 processes and threads; 60 are allowed here and 41 in use. End other"),
        ({"CPU": (6, 6)}, "60 seconds of CPU time; 6 are allowed here. Run `ulimit -t unlimited`"),
        ({"FSIZE": (102400, 102400)}, "16 MB in one file; 0.1 are allowed here. Run `ulimit -f unlimited`"),
        ({"AS": (10**9, 10**9)}, "2,000 MB of virtual memory; 1,000 are allowed here. Run `ulimit -v unlimited`"),
        ({"DATA": (10**8, 10**8)}, "550 MB of data; 100 are allowed here. Run `ulimit -d unlimited`"),
    ],
)
@needs("linux")
def test_a_limit_that_cannot_be_raised_is_said_before_anything_starts(allowed, monkeypatch, given, sentence):
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    monkeypatch.setattr(limits, "_own_threads", lambda: 41)
    allowed(**given)
    with pytest.raises(RankError, match=f"^The ranks did not start: they need about {sentence}"):
        limits.require(2)
    finding = doctor.check_limits()
    assert finding.level == "wrong" and finding.seen.startswith("two ranks do not start: they need about")


@needs("linux")
def test_a_container_with_too_little_memory_is_named(allowed, monkeypatch):
    allowed()
    monkeypatch.setattr(cgroups, "available_bytes", lambda: 2e8)
    monkeypatch.setattr(cgroups, "memory_bytes", lambda: 3e8)
    with pytest.raises(RankError, match="they need about 520 MB of memory; 300 are allowed here. Give this container"):
        limits.require(2)


def test_limits_that_suffice_are_listed(allowed, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 0)
    allowed(NOFILE=(1024, 4096), NPROC=(1, 1))
    assert doctor.check_limits() == doctor.Finding("ok", "limits", "two ranks fit: 4,096 open files")


def test_threads_of_ranks_on_other_hosts_do_not_count_here(allowed, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    monkeypatch.setattr(limits, "_own_threads", lambda: 10)
    allowed(NPROC=(200, 200))
    limits.require(512, all_here=False)


NO_OTHER = dict.fromkeys((resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_STACK), (UNLIMITED, UNLIMITED))


@pytest.mark.parametrize(
    ("code", "number", "pair", "why"),
    [
        (-signal.SIGXCPU, resource.RLIMIT_CPU, (6, 100), r"all the CPU time .* \(6 s, `ulimit -t`\)"),
        (-signal.SIGKILL, resource.RLIMIT_CPU, (6, 6), r"all the CPU time .* \(6 s, `ulimit -t`\)"),
        (-signal.SIGKILL, resource.RLIMIT_CPU, (7, 7), "^$"),  # it has used only 6 s, so somebody else killed it
        (-signal.SIGXFSZ, resource.RLIMIT_FSIZE, (5_000_000, UNLIMITED), r"a file larger .* \(5 MB, `ulimit -f`\)"),
        (-signal.SIGSEGV, resource.RLIMIT_STACK, (2**18, UNLIMITED), "its stack, .* 0.26 MB here"),
        (-signal.SIGSEGV, resource.RLIMIT_STACK, (2**23, UNLIMITED), "^$"),
    ],
)
def test_the_limit_that_ended_a_process_is_named(code, number, pair, why):
    memory = {"killed_for_memory": lambda: 0}
    assert re.search(why, node_agent.what_ended(code, 6.0, NO_OTHER | {number: pair}, memory, 0))


def test_a_limit_that_may_be_behind_an_error_is_named(allowed):
    allowed(AS=(3 * 10**9, UNLIMITED), FSIZE=(10**8, UNLIMITED))
    assert limits.behind("ValueError: 3") == ""
    told = "A process may have no more than {} here, which may be the cause."
    assert limits.behind("MemoryError") == told.format("3,000 MB of virtual memory (`ulimit -v`)")
    error = {"what": "raised MemoryError", "text": "MemoryError", "frames": []}
    text = failures.errors_text(SimpleNamespace(outcomes={0: {"error": error}}))
    assert text.endswith(f"\n{limits.behind('MemoryError')}")
    assert limits.behind("OSError: [Errno 27] File too large") == told.format("100 MB in one file (`ulimit -f`)")


BURN = """
import resource
import signal
from workshop_lib import ranks
from workshop_lib.ranks.launch import agents, limits

def compute():
    while True:
        pass

signal.signal(signal.SIGXCPU, lambda *_: None)  # this process goes on, but those that it starts are ended
for limit_s, start in ((1, ranks.start), (2, lambda n: ranks.start(n).run(compute, show=False))):
    limits.NEEDED.clear()  # so that only the end of a process tells
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, -1))
    try:
        start(1)
    except ranks.RankError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))
    agents.ready(agents.own_environment())
"""


@pytest.mark.full
@needs("linux")
def test_an_agent_or_a_rank_that_used_up_its_cpu_time_is_lost_with_the_reason():
    ran = subprocess.run([sys.executable, "-c", BURN], capture_output=True, text=True, timeout=100)
    agent, rank = [line for line in ran.stdout.splitlines() if "SIGXCPU" in line]
    assert agent.startswith("The ranks did not start: The process that makes ranks was killed by SIGXCPU, because it")
    assert "(1 s, `ulimit -t`)" in agent and "WORKSHOP_FORK" not in ran.stdout
    assert rank.startswith("rank 0 on ") and "(2 s, `ulimit -t`)" in rank


@needs("root")
def test_a_host_that_cannot_reach_itself_is_named_before_anything_starts():
    program = """
from workshop_lib import ranks
from workshop_lib.cli import doctor
from workshop_lib.ranks.launch import scripts

for start in (lambda: ranks.start(2), lambda: scripts.run("torchrun", "script.py")):
    try:
        start()
    except ranks.RankError as error:
        print(error)
loopback = doctor.check_loopback()
found = [loopback, *doctor.check_mpi(loopback.level != "wrong")]
print([(each.level, each.check) for each in found])
"""
    words = ["unshare", "--net", sys.executable, "-c", program]
    lines = subprocess.run(words, capture_output=True, text=True, timeout=60).stdout.splitlines()
    why = "The ranks did not start: programs on this host cannot reach each other at 127.0.0.1: "
    assert [line.startswith(why) for line in lines] == [True, False, True, False]
    assert lines[-1] == str([("wrong", "loopback"), ("ok", "mpiexec"), ("ok", "MPI settings")])


@pytest.fixture
def limited():
    """Runs a program in a cgroup of its own in which the first of these files that exists has this value."""
    made = []

    def run(program, controller, files, value):
        for parent in (cgroups.CGROUPS / controller, cgroups.CGROUPS):
            folder = parent / f"workshop-{os.getpid()}"
            with contextlib.suppress(OSError, StopIteration):
                folder.mkdir()
                made.append(folder)
                next(path for name in files if (path := folder / name).exists()).write_text(str(value))
                enter = f'echo $$ > {folder}/cgroup.procs && exec "$0" -c "$1"'
                words = ["sh", "-c", enter, sys.executable, program]
                return subprocess.run(words, capture_output=True, text=True, timeout=100).stdout
        return missing("cgroups", "only root can limit a group of processes, in a writable /sys/fs/cgroup")

    yield run
    for folder in made:
        folder.rmdir()


TRY = """
from workshop_lib import ranks

def eat():
    from mpi4py import MPI
    kept = []
    while MPI.COMM_WORLD.rank == 1:
        kept.append(bytearray(b"x") * 20_000_000)
    MPI.COMM_WORLD.barrier()

try:
    ranks.start(2).run(eat, show=False)
except ranks.RankError as error:
    print(error)
"""


@pytest.mark.full
def test_in_a_container_with_few_processes_ranks_do_not_start_at_all(limited):
    said = limited(TRY, "pids", ["pids.max"], 50)
    assert "need about 70 processes and threads; 50 are allowed here and" in said
    assert "Give this container or job more" in said


@pytest.mark.full
def test_a_rank_that_takes_all_memory_of_its_container_is_lost_with_the_reason(limited):
    said = limited(TRY, "memory", ["memory.max", "memory.limit_in_bytes"], 800_000_000)
    assert "was killed by SIGKILL, because the memory of this container, job or machine (0.8 GB) ran out" in said
