"""`workshop preflight`: what is said about planted faults, from made-up reports, and one run on real ranks."""

import copy
import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from command_line import workshop

from workshop_lib.forecast import benchmark
from workshop_lib.machine import catalogue
from workshop_lib.preflight import checks, gpus, measure

POLARIS = catalogue.machine("polaris")


def rank(number, host="node1", **changed):
    found = {
        "rank": number,
        "host": host,
        "cores": list(range(8 * (number % 4), 8 * (number % 4) + 8)),
        "host_cores": 32,
        "threads": 8,
        "device": "NVIDIA A100",
        "device_id": f"GPU-{number}",
        "gpus": 4,
        "driver": "580.65.06",
        "torch": "2.13.0",
        "cuda": "13.0",
        "transport": "NCCL over AWS Libfabric",
        "clock_ahead_s": 2e-6 if host == "node1" else 3e-4,
    }
    return found | changed


def healthy():
    """A report of eight ranks on two nodes, in which nothing is wrong."""
    ranks = [rank(number, "node1" if number < 4 else "node2") for number in range(8)]
    rows = []
    for nbytes in measure.GPU_SIZES_BYTES:
        rows.append(benchmark.row("nccl", 8, nbytes, [POLARIS.allreduce_s(8, nbytes)] * 5))
    pairs = []
    for one, other in itertools.combinations(range(8), 2):
        speed = 2e11 if (one < 4) == (other < 4) else 2e10
        pairs.append({"ranks": [one, other], "bytes_per_s": speed})
    folder = {"folder": "build", "bytes": 2**26, "free_bytes": 10**12, "write_s": 0.1, "read_s": 0.1, "error": ""}
    return {
        "date": "2026-11-20T08:00:00+00:00",
        "ranks": ranks,
        "allreduces": rows,
        "pairs": pairs,
        "checkpoint": folder,
    }


def test_a_healthy_allocation_is_ok_in_every_line():
    lines = checks.check(healthy(), POLARIS)
    assert [line for line in lines if line.level != "ok" or line.remedy] == []
    assert {"build", "devices", "transport", "allreduce", "pairs", "binding", "clocks"} <= {
        line.check for line in lines
    }


def of_ranks(ranks, **changed):
    def plant(report):
        for number in ranks:
            report["ranks"][number] |= changed

    return plant


def slow_allreduce(times):
    def plant(report):
        for row in report["allreduces"]:
            row["median_s"] *= times

    return plant


def slow_pair(times):
    def plant(report):
        row = next(row for row in report["pairs"] if row["ranks"] == [2, 5])
        row["bytes_per_s"] /= times

    return plant


def full_disk(report):
    report["checkpoint"]["error"] = "No space left on device"


PLANTED = {
    "sockets": (of_ranks(range(8), transport="NCCL over Socket"), "wrong", "transport", "ranks 0–7: NCCL over Socket"),
    "one GPU twice": (of_ranks((3,), device_id="GPU-2"), "wrong", "devices", "ranks 2, 3 compute on one GPU of node1"),
    "GPUs left idle": (
        of_ranks((7,), device="cpu", device_id=""),
        "look",
        "devices",
        "on a CPU, although the host has GPUs: rank 7",
    ),
    "two environments": (of_ranks((5,), torch="2.12.0"), "wrong", "build", "rank 5: PyTorch 2.12.0 for CUDA 13.0"),
    "an old driver": (of_ranks(range(8), driver="470.82"), "wrong", "driver", "driver 470.82, and CUDA 13.0 needs 580"),
    "a slow network": (slow_allreduce(2), "look", "allreduce", "50% of what polaris is expected to do"),
    "another network": (slow_allreduce(5), "wrong", "allreduce", "20% of what polaris is expected to do"),
    "a slow pair": (slow_pair(10), "look", "pairs", "slowest: ranks 2, 5 (node1 and node2) with 2 GB/s"),
    "one thread": (of_ranks((4,), threads=1), "look", "binding", "1 of 8 cores are used by rank 4"),
    "the same cores": (of_ranks((1,), cores=[0, 1, 2, 3, 4, 5, 6, 7]), "wrong", "binding", "ranks 0, 1 are bound to"),
    "many threads": (of_ranks((1,), threads=32), "wrong", "binding", "rank 1: more threads than cores"),
    "clocks far apart": (
        of_ranks(range(4, 8), clock_ahead_s=30.0),
        "wrong",
        "clocks",
        "node2 is 30 s ahead of rank 0's host",
    ),
    "a full disk": (full_disk, "wrong", "checkpoint", "64 MiB in build: No space left on device"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_one_line_with_a_remedy(name):
    plant, level, check, seen = PLANTED[name]
    report = copy.deepcopy(healthy())
    plant(report)
    [line] = [line for line in checks.check(report, POLARIS) if line.level != "ok"]
    assert (line.level, line.check) == (level, check)
    assert seen in line.seen and line.remedy


def test_sockets_between_nodes_are_worth_a_look_on_a_machine_that_nobody_named():
    report = healthy()
    of_ranks(range(8), transport="NCCL over Socket")(report)
    assert [line.check for line in checks.check(report) if line.level == "look"] == ["transport"]
    plain = replace(POLARIS, network=())
    assert "transport" in {line.check for line in checks.check(report, plain) if line.level == "look"}


def test_ranks_on_intels_gpus(monkeypatch):
    """Made-up tiles: their names and numbers are told apart, and nothing says TCP."""
    tile = torch.device("xpu", 1)
    module = SimpleNamespace(get_device_name=lambda device: f"Max 1550, tile {device.index}")
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.delenv("ZE_AFFINITY_MASK", raising=False)
    assert gpus.name_of(tile) == "Max 1550, tile 1" and gpus.identity(tile) == "1"
    monkeypatch.setenv("ZE_AFFINITY_MASK", "6,7")
    assert gpus.identity(tile) == "7"
    assert measure.transport("xccl", None).startswith("oneCCL")


def test_an_allreduce_on_a_device_is_timed_until_the_device_is_done(monkeypatch):
    waited = []
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: None)
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    nowhere = torch.device("meta")
    benchmark.process_group(nowhere)(np.ones(4, np.float32))()
    assert waited == [nowhere]


def test_nccl_s_log_names_the_network(tmp_path):
    log = tmp_path / "nccl.txt"
    log.write_text("node1:1:9 [0] NCCL INFO Using network AWS Libfabric\n")
    assert measure.transport("nccl", log) == "NCCL over AWS Libfabric"
    assert measure.transport("gloo", None) == "gloo over TCP"


def test_a_checkpoint_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path, monkeypatch):
    assert measure.checkpoint(str(tmp_path), 4096)["error"] == ""

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(measure.os, "fsync", full)
    assert measure.checkpoint(str(tmp_path), 4096)["error"] == "No space left on device"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_three_real_ranks_are_looked_at_and_each_meets_each_other(tmp_path):
    record = tmp_path / "monday.json"
    ran = workshop("preflight", "--ranks", 3, "--folder", tmp_path, "--out", record, "--json")
    assert ran.exit_code in (0, 2), ran.output
    report = json.loads(record.read_text())
    assert report == json.loads(ran.output[ran.output.index("{") :])["report"]
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1, 2]
    assert sorted(pair["ranks"] for pair in report["pairs"]) == [[0, 1], [0, 2], [1, 2]]
    assert [row["message_bytes"] for row in report["allreduces"]] == list(measure.SIZES_BYTES)
    assert report["checkpoint"]["write_s"] > 0 and [path.name for path in tmp_path.iterdir()] == ["monday.json"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--machine", "summit"], "machine 'summit' is not known"),
        (["--device", "gpu"], "--device gpu: choose one of auto, cpu, cuda, xpu."),
        (["--folder", "/no/such"], "--folder /no/such: there is no such folder."),
        (["--out", "/no/such/file.json"], "--out /no/such/file.json: there is no such folder."),
    ],
)
def test_a_mistake_in_what_was_typed_is_said_before_any_rank_starts(arguments, said):
    ran = workshop("preflight", "--ranks", 2, *arguments)
    assert ran.exit_code == 1 and said in ran.output
