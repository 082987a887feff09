"""Ranks over the two nodes of a Slurm job: held there and attached to from the login node, to the end."""

import json
import os
import re
import subprocess
import sys
import textwrap
import time

import pytest
from our_ranks import our_ranks

from workshop_lib.paths import ROOT

HOLD = '#!/bin/sh\nexec "$WORKSHOP_PYTHON" -m workshop_lib engines start\n'
READY = re.compile(r"ranks\.attach\('(.+)'\)")
WITHIN_S = 5.0
# Every rank waits for one that never comes, as in a collective.
WAIT = """
    def wait_for_ever():
        from mpi4py import MPI
        if MPI.COMM_WORLD.rank:
            MPI.COMM_WORLD.Barrier()
        import time
        time.sleep(100)
"""


@pytest.fixture
def held(slurm, tmp_path):
    """A job that holds four ranks on two nodes: its id, and the folder of its ranks."""
    script, output = tmp_path / "hold.sh", tmp_path / "hold.out"
    script.write_text(HOLD)
    job = slurm.submit(
        script, "--nodes=2", "--ntasks-per-node=2", f"--output={output}", f"--chdir={ROOT}",
        WORKSHOP_PYTHON=sys.executable, PYTHONPATH=str(ROOT),
    )  # fmt: skip
    deadline = time.monotonic() + 90
    while not (told := READY.search(output.read_text() if output.exists() else "")):
        state = slurm.state(job)
        assert state in ("PENDING", "RUNNING") and time.monotonic() < deadline, (state, output.read_text())
        time.sleep(0.2)
    yield job, told[1]
    slurm.cancel_all()
    deadline = time.monotonic() + 10
    while (left := our_ranks()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def at_login(slurm, program: str) -> subprocess.Popen:
    """A Python program as somebody on the login node runs it."""
    environment = slurm.environment | {"PYTHONPATH": str(ROOT)}
    command = slurm.at_login(sys.executable, "-c", textwrap.dedent(program))
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen, limit_s: float = 60) -> str:
    try:
        output, _ = process.communicate(timeout=limit_s)
    finally:
        process.kill()
    assert process.returncode == 0, output
    return output


def test_ranks_of_both_nodes_work_together_for_the_login_node(slurm, held):
    program = f"""
    import json
    from workshop_lib import ranks
    from workshop_lib.training.options import TrainOptions

    def place():
        import os, socket
        from workshop_lib.training.world import detect
        world = detect()
        return world.rank, world.local_rank, socket.gethostname(), os.environ["SLURMD_NODENAME"]

    team = ranks.attach({held[1]!r})
    places = team.run(place, show=False)
    record = team.train(TrainOptions(max_steps=3, train_samples=1000), show=False)
    print(json.dumps([places, record["weights_sha256"], [about["host"] for about in team.about()]]))
    """
    places, digests, hosts = json.loads(finished(at_login(slurm, program)).splitlines()[-1])
    nodes = ["wsnode1", "wsnode1", "wsnode2", "wsnode2"]
    assert [node for *_, node in places] == nodes
    assert [rank for rank, *_ in places] == [0, 1, 2, 3]
    assert len(digests) == 4 and len(set(digests)) == 1
    if slurm.hosts:
        assert [host for _, _, host, _ in places] == nodes == hosts
        assert [local_rank for _, local_rank, *_ in places] == [0, 1, 0, 1]


def test_a_killed_rank_on_the_other_node_is_reported_at_the_login_node(slurm, held):
    program = f"""
    import time
    from workshop_lib import ranks

    def die_on_the_last():
        import os
        from mpi4py import MPI
        if MPI.COMM_WORLD.rank == 3:
            os.kill(os.getpid(), 9)
        MPI.COMM_WORLD.Barrier()

    team = ranks.attach({held[1]!r})
    begun = time.monotonic()
    try:
        team.run(die_on_the_last, timeout=60)
    except ranks.RankError as error:
        print(f"{{time.monotonic() - begun:.2f}}", error)
    """
    told = finished(at_login(slurm, program))
    seconds = re.search(r"^([\d.]+) rank", told, re.M)[1]
    assert "rank 3" in told and "SIGKILL" in told, told
    assert float(seconds) < WITHIN_S


def test_a_cancelled_job_is_reported_at_the_login_node(slurm, held):
    program = f"""
    import time
    from workshop_lib import ranks
    {WAIT}
    team = ranks.attach({held[1]!r})
    print("begun", flush=True)
    try:
        team.run(wait_for_ever, timeout=90)
    except ranks.RankError as error:
        print(time.time(), error)
    """
    process = at_login(slurm, program)
    try:
        assert process.stdout.readline() == "begun\n"
        time.sleep(1)  # into the call
        slurm.command("scancel", held[0])
        cancelled = time.time()
        told = finished(process)
    finally:
        process.kill()
    assert float(told.split()[0]) - cancelled < WITHIN_S, told
    assert "job" in told or "ended" in told, told


def test_stop_from_the_login_node_ends_the_job(slurm, held):
    command = slurm.at_login(sys.executable, "-m", "workshop_lib", "engines", "stop", held[1])
    done = subprocess.run(
        command, cwd=ROOT, env=slurm.environment | {"PYTHONPATH": str(ROOT)}, timeout=60, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    assert "stopped" in done.stdout
    assert slurm.wait(held[0], "COMPLETED", "FAILED", limit_s=15) == "COMPLETED"
    assert not os.path.exists(held[1])
