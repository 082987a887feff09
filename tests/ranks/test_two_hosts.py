"""Ranks on two hosts with a network between them, which is then made slow: what that costs a step."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hosts import BURST_BYTES

from workshop_lib.paths import ROOT

pytestmark = pytest.mark.full

PROGRAM = Path(__file__).with_name("two_hosts_run.py")
SLOW_BITS_PER_S = 20_000_000
NAMES = ("wshost1", "wshost2")


@pytest.fixture(scope="module")
def program(hosts, tmp_path_factory, small_mnist):
    """What runs on the first host, with a host file for both, and a program in the place of ssh."""
    folder = tmp_path_factory.mktemp("two_hosts")
    (folder / "hosts").write_text("".join(f"{name} slots=1\n" for name in hosts.names))
    settings = {"WORKSHOP_HOSTFILE": str(folder / "hosts"), "PRTE_MCA_plm_ssh_agent": hosts.ssh(folder)}
    settings["WORKSHOP_MNIST"] = small_mnist  # on both: Open MPI has to be told to take it along
    process = subprocess.Popen(
        [*hosts.command("wshost1"), sys.executable, PROGRAM],
        env=os.environ | settings | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.stdin.close()
    try:
        process.wait(30)
    finally:
        process.kill()


def run_once(program, hosts) -> dict:
    """One more training, with the bytes that each host has sent meanwhile."""
    before = [hosts.bytes_sent(name) for name in hosts.names]
    program.stdin.write("\n")
    program.stdin.flush()
    told = json.loads(program.stdout.readline())
    sent = [hosts.bytes_sent(name) - count for name, count in zip(hosts.names, before, strict=True)]
    return told | {"sent": sent}


@pytest.mark.alone
@pytest.mark.timeout(180)
def test_a_slow_network_costs_a_step_what_its_bytes_take(hosts, program):
    first = json.loads(program.stdout.readline())
    assert first["hosts"] == ["wshost1", "wshost2"]
    assert first["received"] == 5_000_000, "an idle rank goes on sending"
    fast = run_once(program, hosts)
    hosts.slow(SLOW_BITS_PER_S)
    slow = run_once(program, hosts)
    hosts.fast()
    for run in (fast, slow):
        assert run["digests"][0] == run["digests"][1] == fast["digests"][0], "a network changes no number"
        for sent in run["sent"]:  # on two ranks each sends its gradients once a step, and little else
            assert 1 <= sent / (first["bytes"] * first["steps"]) < 2, (run, first)
    least_s, less_s = (8 * nbytes / SLOW_BITS_PER_S for nbytes in (first["bytes"], BURST_BYTES))
    assert slow["communication_s"] > 0.9 * (least_s - less_s), "a step waits until the gradients are through"
    assert slow["step_s"] > 0.9 * least_s, "in each step all gradients have to pass"
    assert slow["step_s"] > slow["communication_s"] > fast["communication_s"]
    assert slow["step_s"] > fast["step_s"]
    print(
        f"step {1000 * fast['step_s']:.0f} ms, with {SLOW_BITS_PER_S / 1e6:.0f} Mbit/s "
        f"{1000 * slow['step_s']:.0f} ms, of which the gradients need {1000 * least_s:.0f} ms"
    )
