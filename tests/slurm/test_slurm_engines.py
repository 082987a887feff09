"""Ranks over the two nodes of a Slurm job: held there and attached to from the login node, to the end."""

import json
import re
import subprocess
import sys
import textwrap
import time

from workshop_lib.paths import ROOT

RANKS_PER_NODE, WITHIN_S = 2, 5.0
# Every rank waits for one that never comes, as in a collective.
WAIT = """
    def wait_for_ever():
        from mpi4py import MPI
        if MPI.COMM_WORLD.rank:
            MPI.COMM_WORLD.Barrier()
        import time
        time.sleep(100)
"""


def at_login(slurm, program: str) -> subprocess.Popen:
    """A Python program as somebody on the login node runs it."""
    environment = slurm.environment | {"PYTHONPATH": str(ROOT), "WORKSHOP_ATTACH": "1"}
    command = slurm.at_login(sys.executable, "-c", textwrap.dedent(program))
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen, limit_s: float = 60) -> str:
    try:
        output, _ = process.communicate(timeout=limit_s)
    finally:
        process.kill()
    assert process.returncode == 0, output
    return output


def test_ranks_of_both_nodes_work_together_for_the_login_node(slurm, held, small_mnist):
    program = f"""
    import json
    from workshop_lib import ranks
    from workshop_lib.training.options import TrainOptions

    def place():
        import os, socket
        from workshop_lib.machine.world import detect
        world = detect()
        return world.rank, world.local_rank, socket.gethostname(), os.environ["SLURMD_NODENAME"]

    team = ranks.attach({held[1]!r})
    places = team.run(place, show=False)
    record = team.train(TrainOptions(max_steps=3, data_dir={small_mnist!r}), show=False)
    print(json.dumps([places, record["weights_sha256"], [about["host"] for about in team.about()]]))
    """
    places, digests, hosts = json.loads(finished(at_login(slurm, program)).splitlines()[-1])
    nodes = ["wsnode1", "wsnode1", "wsnode2", "wsnode2"]
    assert [node for *_, node in places] == nodes
    assert [rank for rank, *_ in places] == [0, 1, 2, 3]
    assert len(digests) == 4 and len(set(digests)) == 1
    assert [host for _, _, host, _ in places] == nodes == hosts
    assert [local_rank for _, local_rank, *_ in places] == [0, 1, 0, 1]


def test_a_killed_rank_on_the_other_node_is_reported_and_fresh_ones_come(slurm, held):
    program = """
    import time
    from workshop_lib import ranks

    def die_on_the_last():
        import os
        from mpi4py import MPI
        if MPI.COMM_WORLD.rank == 3:
            os.kill(os.getpid(), 9)
        MPI.COMM_WORLD.Barrier()

    team = ranks.start(4)
    begun = time.monotonic()
    try:
        team.run(die_on_the_last, timeout=60)
    except ranks.RankError as error:
        print(f"{time.monotonic() - begun:.2f}", error)
    print("fresh:", team.restart().run(max, 1, 2))
    """
    told = finished(at_login(slurm, program), limit_s=120)
    seconds = re.search(r"^([\d.]+) rank 3 on .*wsnode2.* was killed by SIGKILL", told, re.M)
    assert seconds and float(seconds[1]) < WITHIN_S, told
    assert "fresh: [2, 2, 2, 2]" in told


def test_a_canceled_job_is_reported_at_the_login_node(slurm, held):
    program = f"""
    import time
    from workshop_lib import ranks
    {WAIT}
    team = ranks.start()
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
        canceled = time.time()
        told = finished(process)
    finally:
        process.kill()
    assert float(told.split()[0]) - canceled < WITHIN_S, told
    # Which of these it says depends on whether the nodes' processes could still write down how they ended.
    killed = "was killed by SIGTERM, as when a job is canceled"
    gone = ("or its job, has ended", "the job's processes there are gone")
    assert any(words in told for words in (killed, *gone)), told
    assert slurm.wait(held[0], "CANCELLED", limit_s=20)
