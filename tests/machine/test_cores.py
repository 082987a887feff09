"""Cores and hardware threads are told apart, and ranks that share a core are said to do so."""

import json
import os
import subprocess
import sys

import pytest

from workshop_lib.errors import InputError
from workshop_lib.machine import cores
from workshop_lib.paths import ROOT
from workshop_lib.ranks.launch import launchers, which_mpi
from workshop_lib.ranks.launch.allocation import Allocation
from workshop_lib.training import record

# Runs a command where the first two hardware threads belong to one core, as far as anybody can see.
ONE_CORE = """
set -e
for cpu in 0 1; do
    cd /sys/devices/system/cpu/cpu$cpu/topology
    for file in core_cpus thread_siblings; do mount --bind "$FOLDER/mask" $file; done
    for file in core_cpus_list thread_siblings_list; do mount --bind "$FOLDER/list" $file; done
    mount --bind "$FOLDER/id" core_id
done
cd "$OLD"
exec "$@"
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Makes a machine of which this process may use these hardware threads, with these siblings."""

    def make(allowed, *siblings):
        monkeypatch.setattr(cores, "affinity", lambda: set(allowed))
        monkeypatch.setattr(which_mpi, "affinity", lambda: set(allowed))
        monkeypatch.setattr(os, "cpu_count", lambda: len(allowed))
        monkeypatch.setattr(cores, "CPUS", tmp_path)
        for thread, text in enumerate(siblings):
            (tmp_path / f"cpu{thread}" / "topology").mkdir(parents=True)
            (tmp_path / f"cpu{thread}" / "topology" / "thread_siblings_list").write_text(f"{text}\n")

    return make


@pytest.mark.parametrize(
    ("allowed", "siblings", "words"),
    [
        ([0, 1], ["0-1", "0-1"], "2 hardware threads of 1 core"),
        ([0, 1, 2, 3], ["0,2", "1,3"] * 2, "4 hardware threads of 2 cores"),
        ([0, 1], ["0,2", "1,3"] * 2, "2 cores"),
        ([1, 3], ["0,2", "1,3"] * 2, "2 hardware threads of 1 core"),
        ([0, 1], [], "2 cores"),  # a container without /sys
        ([0, 1], ["", ""], "2 cores"),
    ],
)
def test_hardware_threads_of_a_core_are_one_core(machine, monkeypatch, allowed, siblings, words):
    machine(allowed, *siblings)
    assert cores.here() == words
    monkeypatch.setattr(cores, "quota", lambda: 1)
    assert (cores.usable_cores(), cores.usable_threads()) == (1, 1)


@pytest.mark.parametrize(
    ("bind", "ranks", "bound"), [("core", 1, "core"), ("core", 2, "hwthread"), ("none", 3, "none"), ("core", 3, None)]
)
def test_ranks_are_bound_to_hardware_threads_where_cores_do_not_suffice(machine, bind, ranks, bound):
    machine([0, 1], "0-1", "0-1")
    if bound is None:
        with pytest.raises(InputError, match="needs 3 cores for 3 ranks .*there are 2 hardware threads of 1 core"):
            which_mpi.binding(bind, ranks, 1)
        return
    assert which_mpi.binding(bind, ranks, 1) == bound
    settings = launchers.plan(ranks, 1, bind, Allocation("pbs", "1", ("localhost",))).settings
    assert settings["PRTE_MCA_hwloc_default_binding_policy"] == bound


def rank(affinity, of_cores, quota=sys.maxsize):
    return {"host": "here", "affinity": affinity, "cores": of_cores, "host_cores": 4, "quota": quota, "threads": 1}


@pytest.mark.parametrize(
    ("ranks", "usable", "oversubscribed", "binding"),
    [
        ([rank([0], [0]), rank([1], [0])], (1, 2), True, "hardware threads 0 | 1"),
        ([rank([0, 2], [0]), rank([1, 3], [1])], (2, 4), False, "hardware threads 0,2 | 1,3"),
        ([rank([0], [0]), rank([1], [1])], (2, 2), False, "cores 0 | 1"),
        ([rank([0, 1, 2, 3], [0, 1])] * 2, (2, 4), False, "none"),
        ([rank([0, 1, 2, 3], [0, 1], 1)] * 2, (1, 1), True, "none"),
    ],
)
def test_a_record_says_what_ranks_share(ranks, usable, oversubscribed, binding):
    assert record.usable_together(ranks) == usable
    assert record.oversubscribed(ranks) == oversubscribed
    assert record.binding(ranks) == binding


@pytest.mark.full
def test_bound_ranks_run_on_a_machine_of_one_core(tmp_path, small_mnist):
    (tmp_path / "mask").write_text("3\n")
    (tmp_path / "list").write_text("0-1\n")
    (tmp_path / "id").write_text("0\n")
    command = ["unshare", "--mount", "bash", "-c", ONE_CORE, "_"]
    environment = os.environ | {"FOLDER": str(tmp_path), "OLD": str(ROOT)}
    if os.cpu_count() != 2 or subprocess.run([*command, "true"], env=environment, capture_output=True).returncode:
        pytest.skip("this needs two hardware threads, and the right to mount files over those of /sys")
    train = [sys.executable, "-m", "workshop_lib", "train", "--ranks", "2", "--bind", "core", "--epochs", "1"]
    train += ["--max-steps", "2", "--data-dir", small_mnist, "--out", str(tmp_path / "run.jsonl")]
    ran = subprocess.run([*command, *train], env=environment, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    assert "The threads of 2 ranks share 2 hardware threads of 1 core" in ran.stdout + ran.stderr
    run = json.loads((tmp_path / "run.jsonl").read_text())
    assert run["what"]["binding"] == "hardware threads 0 | 1"
    assert (run["where"]["cores"], run["where"]["hardware_threads"]) == (1, 2)
