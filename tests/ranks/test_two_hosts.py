"""Ranks on two hosts with names, addresses and a network of their own, reached as by ssh under PBS: where they are, and
what is said and left when a host is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from needs import require

from workshop_lib.paths import ROOT

pytestmark = [pytest.mark.full, pytest.mark.timeout(180)]

PROGRAM = Path(__file__).with_name("two_hosts_run.py")
NAMES = ("wshost1", "wshost2")


@pytest.fixture
def program(hosts, tmp_path):
    """What runs on the first host of a job on both, with a program in the place of ssh; each answer is a line."""
    require("openmpi")
    (tmp_path / "nodes").write_text("".join(f"{name}\n" for name in hosts.names))
    job = {
        "PBS_JOBID": "1.server",
        "PBS_NODEFILE": str(tmp_path / "nodes"),
        "PRTE_MCA_plm_ssh_agent": hosts.ssh(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    words = [*hosts.command("wshost1"), sys.executable, PROGRAM]
    with subprocess.Popen(words, env=os.environ | job, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_ranks_on_two_hosts_meet_and_a_lost_host_is_named_and_not_a_rank_that_mpi_killed(hosts, program):
    def answer() -> dict:
        return json.loads(program.stdout.readline())

    met = answer()
    assert met["places"] == [["wshost1", 2, 0, 1], ["wshost2", 2, 0, 1]]
    assert met["received"] == 5_000_000, "an idle rank goes on sending"
    assert answer() == {"wshost1": 4, "wshost2": 4}
    hosts.lose("wshost2")
    lost = answer()
    assert "wshost2 was lost with ranks 4–7: the node, its network" in lost["error"]
    assert "was killed" not in lost["error"]
    assert "If wshost2 stays away, leave this job" in lost["error"]
    assert lost["gone"]
    assert answer()["gone"], "after fresh ranks were stopped"
    assert program.wait(30) == 0
