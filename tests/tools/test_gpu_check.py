"""`make gpu-check` on made-up results: what it calls right, wrong and not checked."""

import json
import subprocess
import sys
import time

import pytest
import torch

from workshop_lib.ranks.launch import processes

from tools import gpu_check

GOOD = {
    "what": {"comm": "nccl"},
    "where": {"device": "cuda"},
    "epochs": [{"test_accuracy": 0.97, "samples_per_s": 1000.0}],
}


@pytest.fixture
def levels(monkeypatch, tmp_path):
    """The level and what was seen of each check, if every training run leaves this record. Commands are not run."""

    def checked(record: dict, n: int = 2, device: str = "cuda") -> dict[str, tuple[str, str]]:
        def run(command, folder):
            if "train" in command:
                (tmp_path / command[command.index("--out") + 1]).write_text(json.dumps(record))
            return "", "step 1\nloss 0.1\n"

        monkeypatch.setattr(gpu_check, "run", run)
        return {name: (level, seen) for name, level, seen, _ in gpu_check.checks(n, device, tmp_path)}

    monkeypatch.setattr(gpu_check, "PACKAGES", {"deepspeed": ("no_such_package",)})
    return checked


def test_everything_is_checked_and_what_cannot_be_is_said(levels):
    found = levels(GOOD)
    assert found.pop("backend deepspeed") == ("not checked", "no_such_package not installed")
    assert {level for level, _ in found.values()} == {"ok"} and len(found) >= 12
    assert found["script trainer.py"] == ("ok", "loss 0.1")
    alone = levels(GOOD, n=1)
    assert alone["script ddp.py"][0] == "ok" and alone["script pipeline.py"][0] == "not checked"
    intel = levels(GOOD | {"where": {"device": "xpu"}, "what": {"comm": "xccl"}}, device="xpu")
    assert intel["backend ddp"][0] == "ok" and intel["backend horovod"][0] == "not checked"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"where": {"device": "cpu"}}, "it ran on cpu"),
        ({"what": {"comm": "gloo"}}, "gloo carried its messages"),
        ({"epochs": [{"test_accuracy": 0.1, "samples_per_s": 1.0}]}, "10.0%"),
    ],
)
def test_a_wrong_result_is_named(levels, wrong, words):
    level, seen = levels(GOOD | wrong)["backend ddp"]
    assert level == "wrong" and words in seen


def test_a_command_that_fails_or_hangs_shows_its_last_lines_and_leaves_no_rank(tmp_path, monkeypatch):
    """As under torchrun, a rank has a session of its own, and it holds the pipe."""
    monkeypatch.setattr(gpu_check, "LIMIT_S", 1.0)
    wrong, _ = gpu_check.run([sys.executable, "-c", "print('no such driver'); raise SystemExit(3)"], tmp_path)
    assert wrong.startswith("exit code 3") and "no such driver" in wrong
    program = (
        "import subprocess, sys, time\n"
        "rank = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        "print(rank.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    began_s = time.monotonic()
    wrong, output = gpu_check.run([sys.executable, "-c", program], tmp_path)
    assert wrong.startswith("it was ended after 1 s") and time.monotonic() - began_s < gpu_check.END_LIMIT_S
    assert processes.start_of(int(output)) is None


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu-check"])
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main() == 2
    assert "sees no GPU here" in capsys.readouterr().err


def test_a_python_without_pytorch_gets_a_sentence():
    program = "import sys; sys.modules['torch'] = None; from tools import gpu_check; gpu_check.main()"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.stderr.startswith(f"{sys.executable} has no torch. Install") and ran.stderr.count("\n") == 1
