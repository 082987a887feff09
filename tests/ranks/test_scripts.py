"""Scripts started from a notebook: their output, their failures, and that nothing of them is left."""

import contextlib
import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from our_ranks import our_ranks

from workshop_lib.notebook import take_home
from workshop_lib.paths import MNIST, ROOT, SCRIPTS
from workshop_lib.ranks import RankError, folders, launchers, processes, scripts, session, which_mpi
from workshop_lib.ranks.scratch import Scratch


def test_the_command_and_what_it_prints_are_shown(capfd):
    scripts.run("python", "-c", "import os; print(os.environ['OMP_NUM_THREADS'], 'thread')", timeout_s=30)
    shown = capfd.readouterr().out.splitlines()
    assert shown[0].startswith("$ python -c ")
    assert shown[1] == "1 thread"


def test_a_failure_is_an_error_that_names_the_command(capfd):
    with pytest.raises(RankError, match=r"python -c .* ended with exit code 3"):
        scripts.run("python", "-c", "import sys; print('why', file=sys.stderr); sys.exit(3)", timeout_s=30)
    assert "why" in capfd.readouterr().out


def test_a_rank_that_gloo_aborts_at_its_end_is_told_from_a_failure():
    program = f"import sys; print({scripts.GLOO_ABORTED!r}); sys.exit(1)"
    with pytest.raises(RankError, match="gloo aborted a rank that was done.*run it again"):
        scripts.run("python", "-c", program, timeout_s=30)


def test_a_script_that_cannot_start_leaves_no_folder(monkeypatch):
    made = []
    monkeypatch.setattr(scripts, "Scratch", lambda set_id: made.append(Scratch(set_id)) or made[0])
    with scripts.started(["python", "-c", "pass"], "abc", folder="/no/such/folder") as process:
        assert "No such file or directory: '/no/such/folder'" in process.stdout.read()
    assert made[0].folders
    assert not any(folder.exists() for folder in made[0].folders)


@pytest.fixture
def two_nodes(tmp_path, monkeypatch):
    """Variables of a Slurm job with two nodes of four GPUs."""
    for name in ("WORKSHOP_MPIEXEC", "WORKSHOP_HOSTFILE", "WORKSHOP_RANKS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": f"{socket.gethostname()},n2", "SLURM_GPUS_ON_NODE": "4"}
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WORKSHOP_PROFILE", "cluster")


def test_torchrun_starts_only_this_nodes_ranks_and_says_so(two_nodes, monkeypatch, capfd):
    started = []

    @contextlib.contextmanager
    def fake(words, set_id):
        started.append(words)
        with subprocess.Popen("true", stdout=subprocess.PIPE, text=True) as process:
            yield process

    monkeypatch.setattr(scripts, "started", fake)
    take_home.train("fsdp2.py")
    assert started[0][started[0].index("--nproc-per-node") + 1] == "4", "the job has eight GPUs, and this node four"
    assert "torchrun --standalone stays on this node" in capfd.readouterr().out


def test_mpi_starts_ranks_on_all_nodes_of_a_job(two_nodes, monkeypatch):
    monkeypatch.setattr(which_mpi, "mpiexec", lambda scheduler=None: ["srun"])
    words = scripts.mpiexec(8)
    srun = words[words.index("srun") :]
    assert " -n 8 --nodes=2 --ntasks-per-node=4 " in " ".join(srun)
    assert words[0] == "env" and {"-u", *which_mpi.ON_ONE_HOST} <= set(words), "the network between nodes stays in use"


def test_open_mpi_is_told_only_of_variables_that_a_script_has(two_nodes, monkeypatch):
    """It would print a warning about each of the others."""
    monkeypatch.setattr(launchers, "flavor", lambda words: "openmpi")
    words = scripts.mpiexec(8)
    told = {name for option, name in zip(words, words[1:], strict=False) if option == "-x"}
    assert told and not told & {"IPYTHONDIR", "WORKSHOP_LAUNCHER", "WORKSHOP_CWD"}


def test_without_a_job_mpi_starts_ranks_here(monkeypatch):
    monkeypatch.delenv("WORKSHOP_MPIEXEC", raising=False)
    assert scripts.mpiexec(2) == ["mpiexec", "-n", "2"]
    monkeypatch.setenv("WORKSHOP_MPIEXEC", "srun --mpi=pmix")
    assert scripts.mpiexec(2)[-4:] == ["srun", "--mpi=pmix", "-n", "2"]


@pytest.mark.parametrize("variable", ["0", "1"])
def test_where_the_ranks_are_held_elsewhere_no_script_starts(tmp_path, monkeypatch, variable):
    held = tmp_path / "ranks" / "held"
    (held / "security").mkdir(parents=True)
    (held / folders.HELD).touch()
    (held / "owner").write_text("held@nid001/7/8")
    monkeypatch.setattr(folders, "BUILD", tmp_path)
    monkeypatch.setattr(session.CURRENT, "team", None)
    monkeypatch.setenv(session.ATTACH, variable)
    if variable == "1":
        with pytest.raises(RankError, match="isn't a node of your job.*lab.sh"):
            scripts.run("true")
        (held / "owner").write_text(processes.mark("held"))
    scripts.run("true")  # the ranks are held here, or the notebook has its own


def test_what_another_mpiexec_left_is_in_nobodys_way_and_a_killed_one_leaves_nothing(tmp_path, monkeypatch, capfd):
    """Open MPI's refuses to start where there's a folder of a killed one with its process number."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    planted = f'mkdir {tmp_path}/ompi.$$; touch {tmp_path}/ompi.$$/pmix.vm.tool; exec "$0" "$@"'
    scripts.run("bash", "-c", planted, *which_mpi.mpiexec(), "-n", "1", "true", timeout_s=30)
    with pytest.raises(RankError, match="exit code -9"):
        scripts.run("bash", "-c", "mkdir $PRTE_MCA_prte_local_tmpdir_base/ompi.$$ && kill -9 $$")
    assert [file.name for file in tmp_path.glob("*/*")] == ["pmix.vm.tool"]


def alive(command):
    return [process for process in our_ranks() if command in " ".join(process.cmdline())]


def test_a_child_in_a_session_of_its_own_is_ended_at_the_limit_and_if_it_outlives_its_parent():
    start = (
        "import subprocess, sys; subprocess.{}([sys.executable, '-c', 'import time; time.sleep({})'], "
        "start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)"
    )
    begun = time.monotonic()
    with pytest.raises(RankError, match="had not finished after 1 s"):
        scripts.run(sys.executable, "-c", start.format("run", 60), timeout_s=1)
    assert time.monotonic() - begun < 20 and not alive("time.sleep(60)")
    scripts.run(sys.executable, "-c", start.format("Popen", 61), timeout_s=30)
    assert not alive("time.sleep(61)")


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


def test_survive_says_what_it_needs():
    ended = subprocess.run([sys.executable, str(SCRIPTS / "survive.py")], capture_output=True, text=True, check=False)
    assert ended.returncode and ended.stderr == (
        "Give the number of ranks and a script, such as: python survive.py 2 elastic.py\n"
    )


def test_in_a_script_to_take_home_the_lines_that_know_other_ranks_are_marked():
    shown = take_home.marked("horovod_tf.py", r"hvd|\brank\b|\bsize\b").lines
    assert {"+     hvd.init()", "+         if rank == 0:", "  import numpy as np"} <= set(shown)
    assert not any(line.startswith("  ") and "hvd." in line for line in shown)


def test_only_the_neighbors_of_marked_lines_are_shown_if_asked_for():
    shown = take_home.marked("horovod_tf.py", r"DistributedGradientTape", 1).lines
    assert [line[:2] for line in shown] == ["⋯", "  ", "+ ", "  "]
    assert "hvd.DistributedGradientTape(tape)" in shown[2]


def test_a_function_of_a_script_is_shown_alone():
    lines = take_home.function("one_process.py", "main").data.splitlines()
    assert lines[0] == "def main():" and lines[-1].strip().startswith("save(")


def test_no_notebook_has_torchrun_start_the_ranks_of_all_hosts_here():
    for source in (ROOT / "notebooks" / "source").glob("0*.py"):
        text = source.read_text(encoding="utf-8")
        assert not re.search(r'"--standalone".*sizes\.ranks\b', text), f"{source.name} starts all ranks on this host"


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
    one_process(monkeypatch, tmp_path / "one_process.py", "--data", MNIST, "--images", 640, "--epochs", 1)
    assert (tmp_path / "cnn.pt").exists()


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


def test_the_loader_works_where_temporary_files_have_a_long_path_and_gives_up_on_a_silent_worker(tmp_path):
    long = tmp_path / ("long" * 25)
    long.mkdir()
    program = (
        "import os, runpy, sys\n"
        "from torch.utils.data import DataLoader\n"
        "make = DataLoader.__init__\n"
        "def noted(self, *words, **options):\n"
        "    make(self, *words, **options)\n"
        "    print(self.num_workers, self.timeout)\n"
        "DataLoader.__init__ = noted\n"
        "del sys.argv[0]\n"
        "sys.path.insert(0, os.path.dirname(sys.argv[0]))\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    words = [sys.executable, "-c", program, str(SCRIPTS / "loader.py"), str(tmp_path / "times.json"), "2", "1"]
    environment = os.environ | {"TMPDIR": str(long)}
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0 and not ended.stderr, ended.stderr
    loaders = [tuple(map(int, line.split())) for line in ended.stdout.splitlines()]
    assert {workers for workers, _ in loaders} == {0, 1, 2} and (tmp_path / "times.json").exists()
    assert all((workers > 0) == (timeout > 0) for workers, timeout in loaders)
