"""Ranks on two hosts with names, addresses and a network of their own, reached as by ssh under PBS."""

import os
import re
import subprocess
import sys
import textwrap

import pytest

from workshop_lib.paths import ROOT
from workshop_lib.ranks import launchers, mpi

pytestmark = pytest.mark.full

NAMES = ("wspbs1", "wspbs2")
PROGRAM = """
    import json, os, signal, sys, time
    from workshop_lib import ranks
    from workshop_lib.ranks import processes

    def is_engine(process):
        return "ipyparallel.engine" in " ".join(process.cmdline())

    def only_here(set_id):
        # The processes of another machine are out of reach: its ranks end with their launcher, or not at all.
        local = [p for p, _ in processes.marked(set_id) if not is_engine(p)]
        processes.kill(local)

    processes.end = only_here

    def engines(set_id):
        return [p.pid for p, _ in processes.marked(set_id) if is_engine(p)]

    def meet():
        import socket
        from mpi4py import MPI
        from workshop_lib.training.world import detect
        world = detect()
        return socket.gethostname(), MPI.COMM_WORLD.allreduce(1), world.local_rank, world.local_size

    def die():
        from mpi4py import MPI
        if MPI.COMM_WORLD.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        MPI.COMM_WORLD.Barrier()

    def gone(set_id):
        deadline = time.monotonic() + 10
        while engines(set_id) and time.monotonic() < deadline:
            time.sleep(0.1)
        return not engines(set_id)

    team = ranks.start()
    told = {"meet": team.run(meet, show=False), "found": len(engines(team._set_id))}
    try:
        team.run(die, show=False, timeout=60)
    except ranks.RankError as error:
        told["error"] = str(error)
    told["gone_after_the_loss"] = gone(team._set_id)
    team.restart()
    ranks.stop()
    told["gone_after_the_stop"] = gone(team._set_id)
    print(json.dumps(told))
"""


def test_ranks_on_two_nodes_of_a_pbs_job(hosts, tmp_path, nothing_left):
    if launchers.flavor(tuple(mpi.mpiexec())) != "openmpi":
        pytest.skip("only Open MPI's mpiexec lets a program stand in for ssh")
    (tmp_path / "nodes").write_text("wspbs1\nwspbs2\n")
    environment = os.environ | {
        "PBS_JOBID": "1.server",
        "PBS_NODEFILE": str(tmp_path / "nodes"),
        "PYTHONPATH": str(ROOT),
        "PRTE_MCA_plm_ssh_agent": hosts.ssh(tmp_path),
    }
    ran = subprocess.run(
        [*hosts.command("wspbs1"), sys.executable, "-c", textwrap.dedent(PROGRAM)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        stdin=subprocess.DEVNULL,
    )
    assert ran.returncode == 0, ran.stderr
    assert re.search(r'"meet": \[\["wspbs1", 2, 0, 1\], \["wspbs2", 2, 0, 1\]\], "found": [2-9]', ran.stdout)
    assert "rank 1 on wspbs2 was killed by SIGKILL" in ran.stdout
    assert '"gone_after_the_loss": true' in ran.stdout and '"gone_after_the_stop": true' in ran.stdout
