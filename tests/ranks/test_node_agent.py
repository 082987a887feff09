"""The agent of a host makes ranks for stubs: what a rank gets, what is written about its end, and who ends when."""

import contextlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import cloudpickle
import psutil
import pytest
from needs import needs
from our_ranks import left_after

from workshop_lib import ranks
from workshop_lib.ranks.launch import agents, folders, node_agent, processes, stub


@pytest.fixture
def record():
    """The folder of a set of ranks, in a folder whose path is short enough for a socket's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:
        for kind in folders.NOTES:
            Path(parent, "record", kind).mkdir(parents=True)
        yield Path(parent, "record")


@contextlib.contextmanager
def started(record, program, **given):
    """A stub of rank 1, whose host has no agent yet."""
    command = [sys.executable, "-I", "-S", stub.__file__, "--record", str(record), "--"]
    process = subprocess.Popen(
        [*command, sys.executable, "-S", "-c", program],
        env=os.environ | {"OMPI_COMM_WORLD_RANK": "1", "TMPDIR": str(record.parent)},
        stdout=subprocess.PIPE,
        **given,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(10)
        process.stdout.close()
        until(lambda: not list(record.parent.glob("workshop-*")))  # the agent ends with its last rank


def until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@needs("linux")
def test_a_rank_ends_when_its_folder_is_removed(record):
    with started(record, "import os, time; print(os.getpid(), flush=True); time.sleep(60)") as process:
        pid = int(process.stdout.readline())
        shutil.rmtree(record)
        assert process.wait(10) == 128 + signal.SIGKILL
        until(lambda: not psutil.pid_exists(pid))


def test_a_rank_has_what_its_stub_had(record):
    """Its environment, working folder, limits, cores and open files, and nothing of the agent's."""
    program = (
        "import json, os, resource; print(json.dumps([os.environ['OWN'], os.getcwd(),\n"
        "resource.getrlimit(resource.RLIMIT_NOFILE)[0], sorted(os.sched_getaffinity(0)), os.listdir('/proc/self/fd'),\n"
        "os.read(int(os.environ['PMI_FD']), 9).decode()]))"
    )
    reading, writing = os.pipe()
    os.write(writing, b"from PMI")
    core = min(os.sched_getaffinity(0))

    def before():
        resource.setrlimit(resource.RLIMIT_NOFILE, (321, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        os.sched_setaffinity(0, [core])

    os.environ["PMI_FD"] = str(reading)
    os.environ["OWN"] = "yes"
    try:
        with started(record, program, cwd="/", pass_fds=[reading], preexec_fn=before) as process:
            *seen, files, sent = json.loads(process.stdout.read())
    finally:
        del os.environ["PMI_FD"], os.environ["OWN"]
        os.close(reading), os.close(writing)
    assert seen == ["yes", "/", 321, [core]]
    assert (len(files), sent) == (5, "from PMI")  # the standard streams, PMI's, and the list itself


def what_it_is() -> dict:
    """What a rank knows about itself that a fork could have wrong."""
    import faulthandler

    import numpy
    import torch

    handled = {number: str(signal.getsignal(number)).partition(" at ")[0] for number in signal.valid_signals()}
    files = [os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")[:-1]]
    named = [re.sub(r"workshop-\w+|[0-9a-f]{12}|\d+", "", file) for file in files if ":" not in file]
    return {
        "threads of torch": torch.get_num_threads(),
        "modules": [name for name in ("tensorflow", "our_ranks") if name in sys.modules],
        "main": sorted(name for name in vars(sys.modules["__main__"]) if name[0] != "_"),
        "words": [sys.argv[0], *psutil.Process().cmdline()[:3]],
        "path": sys.path,
        "variables": sorted(os.environ),
        "cores": sorted(os.sched_getaffinity(0)),
        "handled signals": handled,
        "faulthandler": faulthandler.is_enabled(),
        "files": sorted(named),
        "sockets": [each.laddr for each in psutil.Process().net_connections("unix") if "agent" in str(each.laddr)],
        "temporary": tempfile.gettempdir() == os.environ["TMPDIR"],
        "cuda": torch.cuda.is_initialized(),
        "drawn": [random.random(), float(numpy.random.rand())],
    }


def part_of(agent: psutil.Process, name: str) -> psutil.Process:
    """The agent itself, its first child, which is the controller, the second, which is mpiexec, or a stub."""
    controller, mpiexec, *_ = sorted(agent.children(), key=psutil.Process.create_time)
    return {"agent": agent, "controller": controller, "mpiexec": mpiexec, "stub": mpiexec.children()[0]}[name]


@needs("linux", "torch")
def test_a_rank_is_as_it_would_be_without_forking(monkeypatch):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    seen = {}
    for fork in ("yes", "no"):
        monkeypatch.setenv(agents.FORK, fork)
        team = ranks.start(2, threads_per_rank=2)
        agent = psutil.Process(agents.pid())
        pids = {about["pid"] for about in team.about()}
        assert pids < {child.pid for child in agent.children()} and len(agent.children()) == len(pids) + 2
        assert len(part_of(agent, "mpiexec").children()) == len(pids), "a stub for each rank"
        assert {psutil.Process(pid).environ()[processes.VARIABLE] for pid in pids} == {folders.mark(team.folder)}
        assert team.run(eval, "'torch' in __import__('sys').modules", show=False) == [fork == "yes"] * 2
        seen[fork] = team.run(what_it_is, show=False)
        ranks.stop()
        assert not left_after(10)
    drawn = [number for of_ranks in seen.values() for here in of_ranks for number in here.pop("drawn")]
    assert len(set(drawn)) == len(drawn), "ranks draw different random numbers"
    for forked, imported in zip(seen["yes"], seen["no"], strict=True):
        assert {name: (forked[name], imported[name]) for name in forked if forked[name] != imported[name]} == {}
    first = seen["yes"][0]
    assert (first["threads of torch"], first["modules"], first["sockets"], first["cuda"]) == (2, [], [], False)


def test_an_agent_is_kept_for_as_long_as_its_ranks_would_be_the_same(monkeypatch):
    """If not, the notebook is told why PyTorch is imported again."""
    seed = {"PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "2"}
    agent = agents.Agent(False, agents.read_when_loaded(seed))
    try:
        assert (agent.why_unsuited(False, seed), agent.why_unsuited(True, seed)) == ("", "WORKSHOP_FORK has changed")
        agent.loads, agent.library = True, agents.state_of_the_library()
        later = {"OMP_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1", "WORKSHOP_CWD": "/"}
        assert not agent.why_unsuited(True, seed | later)
        assert agent.why_unsuited(True, seed | {"PYTHONHASHSEED": "8"}) == "PYTHONHASHSEED has changed"
        monkeypatch.setattr(agents, "state_of_the_library", dict)
        assert agent.why_unsuited(True, seed) == "workshop_lib/__init__.py has changed"
        agent.folder.rename(moved := agent.folder.with_name(agent.folder.name + ".moved"))
        assert agent.why_unsuited(True, seed).endswith("was removed")
        moved.rename(agent.folder)
    finally:
        agent.end()
    assert "ended with exit code" in agent.why_unsuited(False, seed) and not agent.folder.exists()


OTHERS = ["agent", *(pytest.param(name, marks=pytest.mark.full) for name in ("mpiexec", "controller", "stub"))]


@needs("linux")
@pytest.mark.parametrize("killed", OTHERS)
def test_the_loss_of_a_process_that_is_no_rank_ends_the_call_and_fresh_ranks_come(killed):
    team = ranks.start(2)
    threading.Timer(0.5, part_of(psutil.Process(agents.pid()), killed).kill).start()
    began = time.monotonic()
    with pytest.raises(ranks.RankError, match="the ranks are gone: |was killed by SIGKILL"):
        team.run(time.sleep, 60, show=False)
    assert time.monotonic() - began < 8
    assert ranks.start(2).run(int, show=False) == [0, 0]
    ranks.stop()
    assert not left_after(10)


@needs("linux")
@pytest.mark.full
def test_restarts_leave_no_process_descriptor_or_thread():
    def kept() -> list[int]:
        agent = psutil.Process(agents.pid())
        here = psutil.Process()
        return [len(agent.children(recursive=True)), agent.num_fds(), here.num_fds(), here.num_threads()]

    team = ranks.start(2).restart()
    before = kept()
    restarts = 4
    for _ in range(restarts):
        team.restart()
    assert all(now - then < restarts for now, then in zip(kept(), before, strict=True)), (before, kept())
    ranks.stop()


def test_a_process_with_threads_is_not_forked(monkeypatch):
    assert node_agent.one_thread() == (threading.active_count() == 1 and len(os.listdir("/proc/self/task")) == 1)
    monkeypatch.setattr(os, "listdir", lambda folder: ["1", "2"])
    assert not node_agent.one_thread()


def test_an_agent_that_cannot_load_says_why(monkeypatch):
    agents.end()
    monkeypatch.setattr(agents, "PRELOAD", "workshop_lib.not_there")
    with pytest.raises(ranks.RankError, match="(?s)did not start.*No module named 'workshop_lib.not_there'.*=no"):
        ranks.start(1)
