"""Ranks on two hosts with names, addresses and a network of their own, reached as by ssh under PBS: where they are,
what a slow network costs a step, and what is said and left when one is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hosts import BURST_BYTES
from needs import require

from workshop_lib.paths import ROOT

pytestmark = [pytest.mark.full, pytest.mark.timeout(180)]

PROGRAM = Path(__file__).with_name("two_hosts_run.py")
SLOW_BITS_PER_S = 20_000_000
NAMES = ("wshost1", "wshost2")


def job(hosts, folder, mnist) -> dict[str, str]:
    """The environment of a job on both hosts, with a program in the place of ssh."""
    (folder / "nodes").write_text("".join(f"{name}\n" for name in hosts.names))
    return {
        "PBS_JOBID": "1.server",
        "PBS_NODEFILE": str(folder / "nodes"),
        "PRTE_MCA_plm_ssh_agent": hosts.ssh(folder),
        "PYTHONPATH": str(ROOT),
        "WORKSHOP_MNIST": mnist,  # on both: Open MPI has to be told to take it along
    }


class Program:
    """What runs on the first host."""

    def __init__(self, hosts, folder, mnist):
        settings = job(hosts, folder, mnist)
        self.process = subprocess.Popen(
            [*hosts.command("wshost1"), sys.executable, PROGRAM],
            env=os.environ | settings,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.first = self.answer()

    def answer(self) -> dict:
        return json.loads(self.process.stdout.readline())

    def ask(self, word: str) -> dict:
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self.answer()


@pytest.fixture(scope="module")
def program(hosts, tmp_path_factory, small_mnist):
    require("openmpi")
    program = Program(hosts, tmp_path_factory.mktemp("two_hosts"), small_mnist)
    yield program
    program.process.kill()


def test_the_ranks_are_on_both_and_an_idle_one_goes_on_sending(program):
    assert program.first["places"] == [["wshost1", 2, 0, 1], ["wshost2", 2, 0, 1]]
    assert program.first["received"] == 5_000_000


@pytest.mark.alone
def test_a_slow_network_costs_a_step_what_its_bytes_take(hosts, program):
    def trained() -> dict:
        before = [hosts.bytes_sent(name) for name in hosts.names]
        run = program.ask("train")
        return run | {"sent": [hosts.bytes_sent(name) - count for name, count in zip(hosts.names, before, strict=True)]}

    gradient_bytes = program.first["bytes"]
    fast = trained()
    hosts.slow(SLOW_BITS_PER_S)
    slow = trained()
    hosts.fast()
    for run in (fast, slow):
        assert run["digests"][0] == run["digests"][1] == fast["digests"][0], "a network changes no number"
        for sent in run["sent"]:  # on two ranks each sends its gradients once a step, and little else
            assert 1 <= sent / (gradient_bytes * program.first["steps"]) < 2, run
    least_s, less_s = (8 * nbytes / SLOW_BITS_PER_S for nbytes in (gradient_bytes, BURST_BYTES))
    assert slow["communication_s"] > 0.9 * (least_s - less_s), "a step waits until the gradients are through"
    assert slow["step_s"] > 0.9 * least_s, "in each step all gradients have to pass"
    assert slow["step_s"] > slow["communication_s"] > fast["communication_s"]
    assert slow["step_s"] > fast["step_s"]


def test_a_lost_host_is_named_with_its_ranks_and_not_a_rank_that_mpi_killed(hosts, program):
    assert program.ask("lose") == {"wshost1": 4, "wshost2": 4}
    hosts.lose("wshost2")
    lost = program.answer()
    assert "wshost2 was lost with ranks 4–7: the node, its network" in lost["error"]
    assert "was killed" not in lost["error"]
    assert "If wshost2 stays away, leave this job" in lost["error"]
    assert lost["gone"]


def test_a_rank_lost_on_the_other_host_is_named_and_nothing_is_left_on_either(program):
    lost = program.ask("die")
    assert "rank 1 on wshost2 was killed by SIGKILL" in lost["error"]
    assert lost["gone"]
    program.process.stdin.close()
    assert program.answer()["gone"], "after fresh ranks were stopped"
    assert program.process.wait(30) == 0
