"""Scripts to take home, alone: where they find MNIST, which GPU a rank takes, and how pages say they're started."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from workshop_lib.notebook import take_home
from workshop_lib.paths import MNIST, ROOT, SCRIPTS


def table_of(*words):
    script = [sys.executable, str(SCRIPTS / "scaling_table.py"), *words]
    return subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)


def test_the_scaling_table_to_take_home_leaves_the_first_epoch_out():
    """What it runs prints 10 images/s in the first epoch and then 1,000 per rank, or 500 from the third rank on."""
    program = "n = {n}; print('10 images/s', *2 * [f'{1000 * n if n < 3 else 500 * n:,} images/s'])"
    ended = table_of("--ranks", "1", "2", "4", "--repeats", "1", "--", sys.executable, "-c", program)
    rows = [line.split() for line in ended.stdout.splitlines()[-4:-1]]
    assert [row[1] for row in rows] == ["1,000", "2,000", "2,000"], ended
    assert [row[-2:] for row in rows] == [["1.00", "100%"], ["2.00", "100%"], ["2.00", "50%"]]


def test_the_scaling_table_says_what_failed():
    failed = table_of("--ranks", "1", "--", sys.executable, "-c", "print('5 images/s')")
    assert failed.returncode and "printed the speed of less than 2 epochs" in failed.stderr
    assert "needs a 1" in table_of("--ranks", "2", "--", "true").stderr


def test_in_a_script_to_take_home_the_lines_that_know_other_ranks_are_marked():
    shown = take_home.marked("horovod_tf.py", r"hvd|\brank\b|\bsize\b").lines
    assert {"+     hvd.init()", "+         if rank == 0:", "  import numpy as np"} <= set(shown)
    assert not any(line.startswith("  ") and "hvd." in line for line in shown)


def test_a_terminal_finds_the_workshops_programs_as_the_pages_say():
    """The pages say: go to the workshop's folder, and type `source .venv/bin/activate`."""
    activate = Path(sys.prefix) / "bin" / "activate"
    words = ["bash", "--noprofile", "-c", f"source {activate} && command -v python mpiexec torchrun"]
    ended = subprocess.run(words, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True)
    assert [Path(line).parent for line in ended.stdout.splitlines()] == [activate.parent] * 3
    for name in ("02_synchronous_sgd", "04_horovod_tensorflow"):
        text = (ROOT / "notebooks" / "source" / f"{name}.py").read_text(encoding="utf-8")
        [typed] = re.findall(r"^# source \.venv/bin/activate\n# (mpiexec .+)$", text, re.MULTILINE)
        assert (ROOT / typed.split()[-1]).exists(), f"{typed} doesn't start from the workshop's folder"


READS_MNIST = [path for path in sorted(SCRIPTS.glob("*.py")) if '"--data"' in path.read_text()]


@pytest.mark.parametrize("path", READS_MNIST, ids=lambda path: path.stem)
def test_every_script_finds_mnist_with_its_neighbor(path):
    """So what the next test finds of one script holds for all. TensorFlow's have no neighbor: it needs PyTorch."""
    text = path.read_text()
    assert '"--data", type=mnist_folder, default=MNIST_FOLDER' in text
    assert ("from mnist_data import" in text) == ("import tensorflow" not in text)


def one_process(monkeypatch, script, *options):
    """Run a script in this process, as from a terminal in the current folder."""
    monkeypatch.setattr(sys, "argv", [str(script), *map(str, options)])
    monkeypatch.syspath_prepend(Path(script).resolve().parent)
    monkeypatch.delitem(sys.modules, "mnist_data", raising=False)
    return runpy.run_path(str(script), run_name="__main__")


def test_a_script_finds_mnist_from_its_own_folder_and_elsewhere_says_where_it_looked(tmp_path, monkeypatch, capsys):
    """`python -m mpi4py script.py` sets a relative `__file__`, as runpy does here."""
    monkeypatch.chdir(SCRIPTS)
    with pytest.raises(SystemExit, match=r"--images 100 is too few .*: give more\.$"):
        one_process(monkeypatch, "one_process.py", "--images", 100)
    for wrong in (70_000, 0, -1):
        with pytest.raises(ValueError, match=rf"--images {wrong}: .*/assets/mnist has 60000\. Give a number"):
            one_process(monkeypatch, "one_process.py", "--images", wrong)
    for name in ("one_process.py", "mnist_data.py"):
        shutil.copy(SCRIPTS / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        one_process(monkeypatch, tmp_path / "one_process.py")
    nowhere = tmp_path.resolve().parents[1] / "assets" / "mnist"
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith(f"train-images-idx3-ubyte.gz isn't in {nowhere}: give MNIST's folder with --data.")
    one_process(monkeypatch, tmp_path / "one_process.py", "--data", MNIST, "--images", 3200, "--epochs", 1)
    assert float(capsys.readouterr().out.rpartition("test accuracy ")[2].rstrip("%\n")) > 80
    assert (tmp_path / "cnn.pt").exists() and not list(tmp_path.glob("*.tmp"))


def functions_of(monkeypatch, name):
    """The functions of a script, which isn't started."""
    monkeypatch.syspath_prepend(SCRIPTS)
    return runpy.run_path(str(SCRIPTS / name), run_name="functions")


@pytest.fixture
def two_gpus(monkeypatch):
    """PyTorch as on a machine with two GPUs. Returns the list of calls that would use them."""
    calls = []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "set_device_index", calls.append)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **options: calls.append(options["device_id"].index))
    return calls


JOINING = [path.name for path in sorted(SCRIPTS.glob("*.py")) if "def join(" in path.read_text()]


@pytest.mark.parametrize("script", JOINING)
def test_a_rank_takes_a_gpu_that_it_can_see_before_it_joins(script, two_gpus, monkeypatch):
    """By LOCAL_RANK from torchrun, and by RANK where mpiexec or srun has set no LOCAL_RANK."""
    join = functions_of(monkeypatch, script)["join"]
    monkeypatch.setenv("RANK", "3")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert join() == torch.device("cuda", 1) and two_gpus == [1, 1], "the device comes first"
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert join() == torch.device("cuda", 0)


def test_a_rank_of_mpi_takes_a_gpu_that_it_can_see(two_gpus, monkeypatch):
    node = SimpleNamespace(rank=3)
    comm = SimpleNamespace(Split_type=lambda kind: node)
    assert functions_of(monkeypatch, "mpi_by_hand.py")["own_device"](comm) == torch.device("cuda", 1)
    assert two_gpus == [1]


@pytest.mark.full
def test_the_loader_works_where_temporary_files_have_a_long_path(tmp_path):
    long = tmp_path / ("long" * 25)
    long.mkdir()
    words = [sys.executable, str(SCRIPTS / "loader.py"), str(tmp_path / "times.json"), "2", "1"]
    environment = os.environ | {"TMPDIR": str(long)}
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0 and not ended.stderr, ended.stderr
    assert (tmp_path / "times.json").exists()
