"""The command: what it prints and returns, and that it leaves nothing running."""

import faulthandler
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import planted
import pytest
from command_line import workshop

from workshop_lib.examine import commands
from workshop_lib.examine.on_ranks import recorder
from workshop_lib.examine.run import _Watch
from workshop_lib.paths import ROOT
from workshop_lib.ranks.launch import processes

EACH_WAITS_FOR_THE_OTHER = """
import torch
from torch import distributed
distributed.init_process_group("gloo")
distributed.recv(torch.zeros(1), src=1 - distributed.get_rank())
"""


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "which script?"),
        (["--ranks", 0, "--", "train.py"], "--ranks 0: give a whole number"),
        (["--seconds", 0, "--", "train.py"], "--seconds must be above 0"),
        (["--", "no_such_file.py"], "no_such_file.py"),
        (["--python", "/no/python", "--", __file__], "/no/python"),
    ],
)
def test_a_mistake_is_answered_before_any_rank_starts(options, says):
    ran = workshop("examine", *options)
    assert ran.exit_code == 1 and says in ran.output


@pytest.mark.parametrize(
    ("typed", "command", "ranks"),
    [
        ("train.py --lr 1", "train.py --lr 1", None),
        ("-m package.train", "-m package.train", None),
        ("torchrun --standalone --nproc_per_node=4 train.py --nproc_per_node 2", "train.py --nproc_per_node 2", 4),
        ("torchrun --nproc-per-node 4 -m package.train", "-m package.train", 4),
        ("python -m torch.distributed.run --nproc-per-node gpu train.py", "train.py", None),
        ("accelerate launch --num_processes 3 train.py", "train.py", 3),
    ],
)
def test_a_launcher_in_front_of_the_script_is_understood(typed, command, ranks):
    assert commands.without_launcher(typed.split()) == (command.split(), ranks)


def test_a_launch_on_several_nodes_is_refused():
    ran = workshop("examine", "--", "torchrun", "--nnodes", 2, "train.py")
    assert ran.exit_code == 1 and "--nnodes 2: examine watches ranks on this machine." in ran.output


def test_a_mistyped_option_is_not_told_as_worth_a_look():
    ran = workshop("examine", "--rank", 2, "--", "train.py")
    assert ran.exit_code == 1 and "unrecognized arguments: --rank" in ran.output


def test_a_python_that_cannot_record_is_answered_before_any_rank_starts(tmp_path):
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\necho \"No module named 'torch.accelerator'\" >&2\nexit 1\n")
    old.chmod(0o755)
    ran = workshop("examine", "--python", old, "--", __file__)
    assert ran.exit_code == 1
    assert "PyTorch 2.6 or newer and NumPy there. It says: No module named 'torch.accelerator'" in ran.output


def test_a_script_that_prints_in_every_step_keeps_the_lines_of_its_epochs(tmp_path):
    prints = "print('epoch 1'); [print(step) for step in range(1000)]"
    words = [sys.executable, "-c", prints]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        run = _Watch(1, process, tmp_path, show=False).follow(30.0)
    assert run.last_lines[0] == "epoch 1" and run.last_lines[-1] == "999"


def test_seconds_count_from_when_the_ranks_have_started(tmp_path, monkeypatch):
    with subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE, text=True) as process:
        watch = _Watch(1, process, tmp_path, show=False)
        monkeypatch.setattr("workshop_lib.examine.run.START_S", 0.3)
        assert watch.follow(60.0).how == "time"
        (tmp_path / "rank.0.jsonl").touch()
        monkeypatch.setattr("workshop_lib.examine.run.START_S", 60.0)
        assert watch.follow(0.3).how == "time"
        process.kill()


def test_a_rank_that_is_asked_where_it_is_while_it_shuts_down_ends_as_usual(tmp_path):
    before = signal.getsignal(signal.SIGUSR1)
    recorder.RankRecorder(tmp_path, 0, 0, "")
    faulthandler.unregister(signal.SIGUSR1)  # as Python does when it shuts down
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.full
def test_the_report_as_json(tmp_path, monkeypatch):
    """7 s."""
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    not_added_up = ("    distributed.all_reduce(right)\n", "")
    Path("train.py").write_text(planted.edited("ddp", (planted.EPOCH, ""), not_added_up))
    ran = workshop("examine", "--json", "--steps", 12, "--python", sys.executable, "--", "train.py")
    report = json.loads(ran.output[ran.output.index("{\n") :])
    assert ran.exit_code == 3 and report["worst"] == "wrong" and report["ranks"] == 2
    [order] = [each for each in report["findings"] if each["check"] == "order"]
    assert order["level"] == "wrong" and order["section"]["notebook"] == "05_ddp" and order["ranks"] == [0]
    assert any("2 ranks took 12 steps" in each["seen"] for each in report["findings"])
    [metric] = [each for each in report["findings"] if each["check"] == "metric"]
    assert "(train.py:" in metric["seen"], "the line of a script that is given by its name alone"
    assert not processes.strays()


@pytest.mark.full
def test_ranks_end_when_whoever_watches_them_is_killed(tmp_path):
    """8 s, most of them for PyTorch's import."""
    path = tmp_path / "sleeps.py"
    path.write_text("import pathlib, time\npathlib.Path(__file__).with_name('started').touch()\ntime.sleep(300)\n")
    words = [sys.executable, "-m", "workshop_lib", "examine", "--", str(path)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as watcher:
        while not (tmp_path / "started").exists():
            assert watcher.poll() is None
            time.sleep(0.1)
        watcher.kill()
    deadline = time.monotonic() + 20
    while of_watcher := [each for each, mark in processes.marked() if f"/{watcher.pid}/" in mark]:
        assert time.monotonic() < deadline, of_watcher
        time.sleep(0.5)


@pytest.mark.full
def test_ranks_that_wait_for_each_other_are_ended(tmp_path):
    """15 s, for ten of which nothing happens."""
    path = tmp_path / "waits.py"
    path.write_text(EACH_WAITS_FOR_THE_OTHER)
    ran = workshop("examine", "--", path)
    assert ran.exit_code == 3 and "ranks 0, 1 waited for a call that another rank never made" in ran.output
    assert ran.output.count("line 5, in <module>") == 2
    assert not processes.strays()
