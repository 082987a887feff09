"""The project's own job scripts, submitted to a real Slurm; only sizes are overridden, as a user may."""

import json
import re
import shlex
import subprocess
import sys

import pytest
from slurm.cluster import NODES

from workshop_lib.notebook.results import records
from workshop_lib.paths import BUILD, ROOT


def completed(slurm, script, output, data, *options, limit_s, **settings) -> str:
    """Submit one of the project's scripts, and wait for its end; returns the job's id."""
    job = slurm.submit(
        ROOT / "submissions" / script,
        "--nodes=2",
        *options,
        f"--output={output}",
        f"--chdir={ROOT}",
        WORKSHOP_NO_MODULES="1",
        WORKSHOP_PYTHON=sys.executable,
        WORKSHOP_JOB_OPTIONS=f"--epochs 1 --data-dir {data}",
        **settings,
    )
    state = slurm.wait(job, "COMPLETED", "FAILED", "CANCELLED", limit_s=limit_s)
    assert state == "COMPLETED", output.read_text()
    return job


@pytest.mark.parametrize("machine", ["slurm", pytest.param("perlmutter", marks=pytest.mark.exhaustive)])
def test_train_trains_on_both_nodes(slurm, machine, tmp_path, small_mnist):
    output = tmp_path / "train.out"
    options = ["--ntasks-per-node=1", "--account=project"]
    job = completed(
        slurm, f"{machine}/train.sh", output, small_mnist, *options, limit_s=150, WORKSHOP_JOB_BACKENDS="mpi:ddp"
    )
    trained = records.read(BUILD / f"{machine}-{job}" / "train.jsonl")
    assert [record["what"]["backend"] for record in trained] == ["mpi", "ddp"]
    for record in trained:
        assert record["what"]["world_size"] == 2
        assert len(set(record["weights_sha256"])) == 1
    assert "on 2 ranks, 2 nodes" in output.read_text()
    assert "Could not find the environment variable" not in output.read_text()


@pytest.mark.timeout(200)
def test_settings_arrive_in_a_job_submitted_without_the_environment(slurm, tmp_path, small_mnist):
    """`sbatch --export=NONE` has srun strip its steps as well: the script's own, and those that Open MPI starts."""
    script = tmp_path / "job.sh"
    output = tmp_path / "job.out"
    bare = tmp_path / "bare.jsonl"
    options = f"--epochs 1 --max-steps 2 --data-dir {small_mnist}"
    lines = [
        "#!/bin/bash -e",
        f"export WORKSHOP_PYTHON={sys.executable} WORKSHOP_JOB_RANKS=2 WORKSHOP_JOB_BACKENDS=ddp",
        f"export WORKSHOP_JOB_OPTIONS={shlex.quote(options)}",
        "bash submissions/slurm/scale.sh",
        "bash submissions/slurm/train.sh",
        f"srun -n 2 --cpus-per-task=2 {sys.executable} -m workshop_lib train --backend ddp {options} --out {bare}",
    ]
    script.write_text("\n".join(lines) + "\n")
    nodes = ("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2", "--export=NONE")
    job = slurm.submit(script, *nodes, f"--output={output}", f"--chdir={ROOT}")
    assert slurm.wait(job, "COMPLETED", "FAILED", limit_s=180) == "COMPLETED", output.read_text()
    folder = BUILD / f"slurm-{job}"
    runs = [records.read(file)[0] for file in (folder / "scale.jsonl", folder / "train.jsonl", bare)]
    assert [run["what"]["threads_per_rank"] for run in runs] == [2, 2, 1], output.read_text()
    said = "OMP_NUM_THREADS isn't set for this rank: it computes with 1 thread, and its task has 2 CPUs"
    assert [said in run["where"].get("neutralized", ()) for run in runs] == [False, False, True]
    assert output.read_text().count(said) == 2, "once on each node"


@pytest.mark.timeout(60)
def test_perlmutters_srun_fills_one_node_after_the_other(slurm, tmp_path):
    placed = {}
    for ranks in (2, 4, 8):
        output = tmp_path / f"{ranks}.out"
        options = ("--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=32", "--gpus-per-node=4")
        job = slurm.command(
            *("sbatch", "--parsable", *options, f"--output={output}"),
            *(ROOT / "submissions/perlmutter/srun.sh", "-n", ranks, "hostname"),
            WORKSHOP_RANKS_PER_NODE="4",
        ).strip()
        slurm.wait(job, "COMPLETED", "FAILED", limit_s=20)
        hosts = [line for line in output.read_text().splitlines() if line in NODES]
        placed[ranks] = [hosts.count(node) for node in NODES]
    assert placed == {2: [2, 0], 4: [4, 0], 8: [4, 4]}


@pytest.mark.timeout(60)
def test_the_interactive_job_opens_one_prompt_on_its_first_node_where_all_scripts_start(slurm):
    script = ["bash", str(ROOT / "submissions/slurm/interactive.sh"), "--nodes=2"]
    typed = "echo on=$(hostname) ranks=$SLURM_NTASKS_PER_NODE nodes=$SLURM_JOB_NUM_NODES threads=$SLURM_CPUS_PER_TASK\n"
    typed += "timeout 20 srun --overlap --nodes=2 -n 8 --ntasks-per-node=4 true </dev/null && echo started=8\nexit\n"
    ran = subprocess.run(
        ["script", "-qec", shlex.join(slurm.at_login(*script)), "/dev/null"],
        input=typed,
        env=slurm.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=50,
    )
    found = re.findall(r"on=(\w+) ranks=(\d) nodes=(\d) threads=(\d)", ran.stdout)
    assert found == [(NODES[0], "4", "2", "2")], ran.stdout
    assert re.search("(?<!echo )started=8", ran.stdout), "a step of the job finds no cores taken"


@pytest.mark.exhaustive
@pytest.mark.timeout(200)
def test_preflight_looks_at_both_nodes(slurm, tmp_path):
    output = tmp_path / "preflight.out"
    job = slurm.submit(
        ROOT / "submissions/slurm/preflight.sh",
        *("--ntasks-per-node=1", f"--output={output}", f"--chdir={ROOT}"),
        WORKSHOP_NO_MODULES="1",
        WORKSHOP_PYTHON=sys.executable,
    )
    slurm.wait(job, "COMPLETED", "FAILED", limit_s=150)
    kept = json.loads((BUILD / f"slurm-{job}" / "preflight.json").read_text())
    assert kept["ranks"][1]["rank"] == 1, output.read_text()
