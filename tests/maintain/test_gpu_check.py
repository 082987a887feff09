"""`make gpu-check` on made-up results: what it calls right, wrong and not checked."""

import json
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from workshop_lib.maintain import gpu_check
from workshop_lib.ranks import processes

GOOD = {
    "what": {"comm": "nccl"},
    "where": {"device": "cuda"},
    "epochs": [{"test_accuracy": 0.97, "samples_per_s": 1000.0}],
    "memory": {"parameters_bytes": [800, 800], "optimizer_bytes": [1600, 1600]},
}
SHARDED = GOOD | {"memory": {"parameters_bytes": [404, 396], "optimizer_bytes": [808, 792]}}


@pytest.fixture
def results(monkeypatch):
    """The record that the training of each backend leaves; tests change them. Commands are not run."""
    records = {"ddp": GOOD, "fsdp": SHARDED, "deepspeed": GOOD, "mpi": GOOD, "horovod": GOOD}

    def run(command, folder, accept=(0,)):
        if "train" in command:
            out = command[command.index("--out") + 1]
            with open(out, "a") as file:
                file.write(json.dumps(records[command[command.index("--backend") + 1]]) + "\n")
        if "preflight" in command:
            line = {"level": records.get("clock", "look"), "check": "clock", "seen": "2 s apart"}
            return "a warning\n" + json.dumps({"lines": [line]})
        return "loss 0.1"

    monkeypatch.setattr(gpu_check, "run", run)
    monkeypatch.setattr(gpu_check, "look_at_devices", lambda n, device: ("made up", None))
    monkeypatch.setattr(gpu_check, "_missing", lambda backend: "")
    return records


def levels(rows):
    return {row["check"]: row["level"] for row in rows}


def test_everything_is_checked_and_kept(results, tmp_path):
    rows = gpu_check.check_all(2, "cuda", tmp_path / "record.jsonl")
    assert set(levels(rows).values()) == {"ok"}
    assert len(rows) >= 15
    kept = [json.loads(line) for line in (tmp_path / "record.jsonl").read_text().splitlines()]
    assert [row["check"] for row in kept] == [row["check"] for row in rows]


@pytest.mark.parametrize(
    ("wrong", "check", "words"),
    [
        ({"where": {"device": "cpu"}}, "backend ddp", "it ran on cpu"),
        ({"what": {"comm": "gloo"}}, "backend ddp", "gloo carried its messages"),
        ({"epochs": [{"test_accuracy": 0.1, "samples_per_s": 1.0}]}, "scaling curve (08)", "10.0%"),
        ({"memory": SHARDED["memory"]}, "memory (06)", "FSDP keeps 404 of DDP's 404"),
    ],
)
def test_a_wrong_result_is_named(results, tmp_path, wrong, check, words):
    results["ddp"] = GOOD | wrong
    row = next(row for row in gpu_check.check_all(2, "cuda", tmp_path / "r.jsonl") if row["check"] == check)
    assert row["level"] == "wrong"
    assert words in row["seen"]


def test_a_wrong_line_of_the_preflight_is_wrong(results, tmp_path):
    results["clock"] = "wrong"
    row = next(row for row in gpu_check.check_all(2, "cuda", tmp_path / "r.jsonl") if row["check"] == "preflight")
    assert (row["level"], row["seen"]) == ("wrong", "0 of 1 lines ok\n  wrong: clock: 2 s apart")


def test_one_gpu_cannot_check_what_needs_two(results, tmp_path):
    found = levels(gpu_check.check_all(1, "cuda", tmp_path / "r.jsonl"))
    assert found["backend ddp"] == found["preflight"] == "ok"
    assert found["memory (06)"] == found["scaling curve (08)"] == found["script ddp.py"] == "not checked"


def test_a_command_that_fails_or_hangs_shows_its_last_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check, "LIMIT_S", 1.0)
    with pytest.raises(gpu_check.GpuCheckFailed, match="(?s)exit code 3.*no such driver"):
        gpu_check.run([sys.executable, "-c", "print('no such driver'); raise SystemExit(3)"], tmp_path)
    with pytest.raises(gpu_check.GpuCheckFailed, match="(?s)ended after 1 s.*waiting"):
        gpu_check.run([sys.executable, "-uc", "import time; print('waiting'); time.sleep(60)"], tmp_path)


def test_the_ranks_of_a_command_that_hangs_are_ended_in_sessions_of_their_own(tmp_path, monkeypatch):
    """As under torchrun. They hold the pipe, too, so that reading its output would never end."""
    monkeypatch.setattr(gpu_check, "LIMIT_S", 1.0)
    program = (
        "import subprocess, sys, time\n"
        "rank = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        "print(rank.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    began_s = time.monotonic()
    with pytest.raises(gpu_check.GpuCheckFailed, match="ended after 1 s") as failed:
        gpu_check.run([sys.executable, "-c", program], tmp_path)
    assert time.monotonic() - began_s < gpu_check.END_LIMIT_S
    assert processes.start_of(int(str(failed.value).split()[-1])) is None


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu-check"])
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main() == 2
    assert "sees no GPU here" in capsys.readouterr().err


def test_intels_gpus_are_found_and_only_what_trains_there_is_tried(results, tmp_path, monkeypatch):
    module = SimpleNamespace(device_count=lambda: 12, is_available=lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("xpu"))
    monkeypatch.setattr(torch, "get_device_module", lambda kind: {"xpu": module}[kind])
    assert gpu_check.devices_here("auto", None) == ("xpu", 12)
    assert gpu_check.devices_here("auto", 2) == ("xpu", 2)
    for name in ("ddp", "fsdp", "mpi"):
        results[name] = results[name] | {"where": {"device": "xpu"}, "what": {"comm": "xccl"}}
    found = levels(gpu_check.check_all(2, "xpu", tmp_path / "r.jsonl"))
    assert found["backend ddp"] == found["backend fsdp"] == found["memory (06)"] == "ok"
    assert found["backend horovod"] == found["backend deepspeed"] == "not checked"


def test_a_python_without_pytorch_gets_a_sentence():
    program = "import sys; sys.modules['torch'] = None; from workshop_lib.maintain import gpu_check; gpu_check.main()"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.stderr.splitlines() == [
        f"{sys.executable} has no torch. Install what is missing there, or name another Python: "
        "make gpu-check PYTHON=/path/to/python"
    ]
