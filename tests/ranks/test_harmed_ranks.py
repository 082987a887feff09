"""Ranks that are started among variables and files of other programs, each known to harm them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from needs import needs
from ranks import harmed
from training.launching import rank_environment, run_bounded

from workshop_lib.machine import environment
from workshop_lib.paths import ROOT
from workshop_lib.ranks.launch import which_mpi
from workshop_lib.training import backends

EVERYTHING = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
HARMFUL = {
    "OMP_PROC_BIND": "true",
    "OMP_PLACES": "cores",
    "GOMP_CPU_AFFINITY": "0",
    "KMP_AFFINITY": "compact",
    "KERAS_BACKEND": "torch",
    "TF_USE_LEGACY_KERAS": "1",
    "HOROVOD_CONTROLLER": "gloo",
    "HOROVOD_CPU_OPERATIONS": "gloo",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "DS_ACCELERATOR": "cuda",
    "GLOO_SOCKET_IFNAME": "ib0",
    "GLOO_DEVICE_TRANSPORT": "IBVERBS",
    "MASTER_ADDR": "198.51.100.7",
    "PYTHONWARNINGS": "error",
}
# These are harmless, and stay so.
HARMLESS = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
BACKENDS = ("ddp", "deepspeed", "horovod")  # TensorFlow is tried under the user's own launcher


@pytest.fixture
def home(tmp_path) -> Path:
    """A home folder whose Keras computes in half precision, on images with channels first."""
    settings = {"floatx": "float16", "backend": "torch", "image_data_format": "channels_first"}
    folder = tmp_path / "home" / ".keras"
    folder.mkdir(parents=True)
    (folder / "keras.json").write_text(json.dumps(settings))
    return folder.parent


@needs("cores")
@pytest.mark.full
def test_what_would_harm_ranks_does_not_reach_them(tmp_path, home, small_mnist):
    long = tmp_path / ("t" * 100)
    long.mkdir()
    settings = HARMFUL | HARMLESS | {"HOME": str(home), "TMPDIR": str(long)}
    names = [name for name in BACKENDS if name in backends.available()]
    ran = subprocess.run(
        [sys.executable, harmed.__file__, small_mnist, *names],
        env=os.environ | settings,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert len(found["before"]) == 1, "the program that starts them was pinned"
    assert found["cores"] == [EVERYTHING] * 2
    for record in found["records"]:
        assert (record["what"]["binding"], record["ranks_identical"]) == ("none", True)
        text = "\n".join(record["where"]["neutralized"])
        expected = set(HARMFUL) - (set() if environment.no_gpu() else {"DS_ACCELERATOR"})
        assert not [name for name in expected if f"{name}={HARMFUL[name]}" not in text], text
        assert "keras.json ignored: it sets floatx float16" in text and "had pinned this process" in text
    for temporary, segments in found["places"]:
        assert len(temporary) < 60 and not Path(temporary).exists(), "it goes away with the ranks"
        assert all(segment.startswith("/dev/shm/workshop-") for segment in segments)
        assert not any(Path(segment).exists() for segment in segments)
    assert not list(long.iterdir())


@pytest.mark.full
@needs("cores")
@pytest.mark.parametrize("launcher", ["mpiexec", "torchrun"])
def test_ranks_of_the_users_own_launcher_are_cleaned_too(tmp_path, home, launcher, small_mnist):
    """torchrun is pinned itself, since it imports PyTorch, and its ranks inherit that."""
    over_mpi = "horovod-tf" if "horovod-tf" in backends.available() else "mpi"
    words, backend = {
        "mpiexec": ([*which_mpi.mpiexec(), "-n", "2", sys.executable, "-m", "mpi4py"], over_mpi),
        "torchrun": ([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"], "ddp"),
    }[launcher]
    out = tmp_path / "run.jsonl"
    train = ["-m", "workshop_lib", "train", "--backend", backend, "--max-steps", "2", "--train-samples", "640"]
    harmful = {name: value for name, value in HARMFUL.items() if name not in ("MASTER_ADDR", "OMP_PROC_BIND")}
    settings = rank_environment(WORKSHOP_MNIST=small_mnist, HOME=str(home), OMP_PROC_BIND="spread") | harmful
    [(status, output)] = run_bounded([[*words, *train, "--out", out]], [settings], 100)
    assert status == 0, output
    record = json.loads(out.read_text())
    assert record["what"]["world_size"] == 2 and record["what"]["binding"] == "none"
    sentences = record["where"]["neutralized"]
    assert "TORCH_DISTRIBUTED_DEBUG=DETAIL replaced by INFO: DDP crashes with it on a CPU" in sentences
    assert any("GLOO_SOCKET_IFNAME=ib0" in each for each in sentences) == (launcher == "torchrun")


@needs("root")
@pytest.mark.exhaustive
def test_little_shared_memory_a_full_temporary_folder_odd_names_and_a_strict_umask(tmp_path, small_mnist):
    small = "mount -t tmpfs -o size=64k none /dev/shm; mkdir full; mount -t tmpfs -o size=8k none full; umask 777"
    words = ["unshare", "--mount", "sh", "-c", f'{small}; head -c 9000 /dev/zero >full/zeros; exec "$@"', "sh"]
    folder = tmp_path / "a 'quoted' \"näme\"" / ("x" * 140) / ("y" * 140)
    folder.mkdir(parents=True)
    shutil.copytree(small_mnist, folder / "data")
    user_site = folder / "site"
    user_site.mkdir()
    command = [*words, sys.executable, harmed.__file__, str(folder / "data"), "mpi", "ddp"]
    settings = rank_environment(TMPDIR=str(folder / "full"), PYTHONUSERBASE=str(user_site))
    ran = subprocess.run(command, env=settings, cwd=folder, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert [record["ranks_identical"] for record in found["records"]] == [True, True]
