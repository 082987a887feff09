"""The exercises of 10: the finished job script passes, as does what starts the same, and each planted mistake gets its
hint; so do answers for the GPU of each rank."""

import contextlib
import subprocess
import sys

import psutil
import pytest
from needs import needs

from workshop_lib.classroom import generate
from workshop_lib.paths import SCRIPTS

from lessons.compute_nodes import fake_programs, losing, slurm_dry_run
from lessons.compute_nodes import judge as check

pytestmark = pytest.mark.usefixtures("healthy")

FINISHED = (SCRIPTS / "job.sh").read_text(encoding="utf-8")
FIRST = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
SRUN = 'srun --cpus-per-task="$SLURM_CPUS_PER_TASK"'
RENDEZVOUS = '--rdzv-backend=c10d --rdzv-endpoint="$first:$port" --rdzv-id="$SLURM_JOB_ID"'
STATIC = '--node-rank="$SLURM_NODEID" --master-addr="$first" --master-port=29400'
PER_GPU = '--nproc-per-node="${SLURM_GPUS_ON_NODE:-1}"'
TRAINING = f'"$SLURM_JOB_NUM_NODES" \\\n    {PER_GPU} \\\n    {RENDEZVOUS}'
RIGHT = {
    "the finished one": [],
    "short options": [("--nodes=2", "-N 2"), ("--cpus-per-task=32", "-c 32"), ("srun --cpus-per-task=", "srun -c ")],
    "tasks in all": [("#SBATCH --nodes=2\n", "#SBATCH -n 2\n")],
    "a generic resource": [("--gpus-per-node=2", "--gres=gpu:a100:2"), (PER_GPU, "--nproc-per-node=gpu")],
    "GPUs per torchrun": [("--gpus-per-node=2", "--gpus-per-task=2")],
    "a variable for srun": [(SRUN, 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"\nsrun')],
    "nothing bound": [(SRUN, "srun --cpu-bind=none"), ("#SBATCH --requeue", "#SBATCH --exclusive --requeue")],
    "this host": [(FIRST, "$(hostname)")],
    "its address": [(FIRST, "$(hostname -i)")],
    "as a module": [("torchrun", "python -m torch.distributed.run")],
    "numbered": [
        ("srun --c", "export first port\nsrun --c"),
        ("torchrun", "bash -c 'torchrun"),
        (TRAINING, f'2 --nproc-per-node=2 {STATIC} "$@"\' _'),
    ],
    "the usual port": [("$first:$port", "$first:29500")],
    "without options": [(' "$@"', "")],
    "as many ranks as the node's GPUs, in figures": [(PER_GPU, "--nproc-per-node=2")],
}
SRUN_CPUS = ' --cpus-per-task="$SLURM_CPUS_PER_TASK"'
EACH_ITS_OWN = "bash -c 'torchrun --rdzv-endpoint=$(hostname):29500 \"$@\"' _"
WRONG = {  # (old text, new text): the rule that it breaks, and words of the hint
    ("#SBATCH --requeue", "true\n#SBATCH --requeue"): ("Slurm reads all of it", "comes below"),
    ("#SBATCH --nodes=2\n", ""): ("it gets two nodes", "asks for 1 of 2"),
    (f"srun{SRUN_CPUS} --export=ALL --kill-on-bad-exit=1", "env"): ("each node has one torchrun", "Does `srun` come"),
    ("--ntasks-per-node=1", "--ntasks-per-node=2"): ("each node has one torchrun", "2 and 2 torchruns"),
    ("--gpus-per-node=2", "--gpus-per-task=1"): ("which sees both GPUs of its node", "1 of the node's 2"),
    (PER_GPU, "--nproc-per-node=4"): ("and starts a rank for each of them", "*of a node*"),
    (SRUN_CPUS, ""): ("which share all of its cores", "since Slurm 22.05"),
    ('--nnodes="$SLURM_JOB_NUM_NODES"', "--standalone"): ("all ranks meet", "trains on its own"),
    ("$first:$port", "localhost:$port"): ("all ranks meet", "which is a different machine on each node"),
    (f"torchrun --nnodes={TRAINING}", f"{EACH_ITS_OWN} --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d"): (
        "all ranks meet",
        "to different places",
    ),
    (" --rdzv-backend=c10d", ""): ("all ranks meet", "takes itself for node 0"),
    ("#SBATCH --requeue\n", ""): ("a job whose node fails starts again", "the job is gone"),
    ("#SBATCH --open-mode=append\n", ""): ("a job whose node fails starts again", "overwrites the output"),
    ("=../build/10_compute_nodes", "=/tmp"): ("and continues where it stopped", "name a shared folder"),
}


FOR_PBS = (SCRIPTS / "job_pbs.sh").read_text(encoding="utf-8")
TORCHRUN = "torchrun --nnodes=2 --nproc-per-node=2"
RIGHT_FOR_PBS = {
    "the finished one": [],
    "several options on a line": [("#PBS -N mnist\n#PBS", "#PBS -N mnist -j oe"), ("\n#PBS -l place", " -l place")],
    "resources with commas": [
        ("walltime=00:10:00", "walltime=00:10:00,place=scatter"),
        ("#PBS -l place=scatter\n", ""),
    ],
    "chunk by chunk": [("select=2:ncpus=32:ngpus=2", "select=1:ncpus=32:ngpus=2+1:ncpus=32:ngpus=2")],
    "not bound": [("--depth 32 --cpu-bind depth", "--cpu-bind none")],
    "its hosts sorted": [("head -n 1", "sort -u"), ('"$PBS_NODEFILE")', '"$PBS_NODEFILE" | head -n 1)')],
    "this host, and the usual port": [('head -n 1 "$PBS_NODEFILE"', "hostname"), ("$first:$port", "$first:29500")],
    "comments on lines of their own": [("#PBS -r y\n", "# Start it again if a node fails.\n#PBS -r y\n")],
}
WRONG_FOR_PBS = {
    ("#PBS -r y", "#PBS -r y  # start it again"): ("PBS reads all of it", "a comment needs a line of its own"),
    ("#PBS -r y", "true\n#PBS -r y"): ("PBS reads all of it", "comes below"),
    ("select=2:", "select=1:"): ("it gets two nodes", "`#PBS -l select=2`"),
    ("mpiexec -n 2 --ppn 1 --depth 32 --cpu-bind depth", "srun"): ("PBS reads all of it", "srun: command not found"),
    ("--ppn 1", "--ppn 2"): ("each node has one torchrun", "2 and 0 torchruns"),
    (":ngpus=2", ""): ("which sees both GPUs of its node", "select=2:ncpus=32:ngpus=2"),
    (" --depth 32 --cpu-bind depth", ""): ("which share all of its cores", "`mpiexec --depth 32 --cpu-bind depth`"),
    (f"{TORCHRUN} ", f"{TORCHRUN} --standalone "): ("all ranks meet", "trains on its own"),
    ('head -n 1 "$PBS_NODEFILE"', 'scontrol show hostnames "$SLURM_JOB_NODELIST"'): ("all ranks meet", "no host"),
    ('cd "$PBS_O_WORKDIR" || exit 1\n', ""): ("they find the files of the folder that you submit from", "home folder"),
    ("ddp_resume.py", "ddp.py"): ("and continues where it stopped", "starts over"),
}


@pytest.fixture
def written(tmp_path):
    def write(*changes, text=FINISHED):
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        (tmp_path / "job.sh").write_text(text, encoding="utf-8")
        return tmp_path / "job.sh"

    return write


@pytest.mark.parametrize("title", RIGHT)
def test_a_right_script_passes(title, written):
    verdict = check.job(written(*RIGHT[title]))
    assert verdict.passed is True, verdict


@pytest.mark.parametrize("change", WRONG, ids=" -> ".join)
def test_a_planted_mistake_breaks_its_rule_and_the_hint_names_it(change, written):
    text, words = WRONG[change]
    verdict = check.job(written(change))
    assert (verdict.passed, verdict.failed) == (False, text), verdict
    assert words.lower() in verdict.hint.lower()


@pytest.mark.parametrize("title", RIGHT_FOR_PBS)
def test_a_right_script_for_pbs_passes(title, written):
    verdict = check.pbs_job(written(*RIGHT_FOR_PBS[title], text=FOR_PBS))
    assert verdict.passed is True, verdict


@pytest.mark.parametrize("change", WRONG_FOR_PBS, ids=" -> ".join)
def test_a_planted_mistake_in_a_script_for_pbs_gets_its_hint(change, written):
    text, words = WRONG_FOR_PBS[change]
    verdict = check.pbs_job(written(change, text=FOR_PBS))
    assert (verdict.passed, verdict.failed) == (False, text), verdict
    assert words in verdict.hint


def test_a_script_that_never_ends_is_ended_and_one_with_an_error_shows_it(written, monkeypatch):
    monkeypatch.setattr(fake_programs, "LIMIT_S", 0.5)
    assert "had not ended after 0.5 s" in check.job(written(("first=", "sleep 60\nfirst="))).hint
    assert "no_such_program" in check.job(written((SRUN, f"set -e\nno_such_program\n{SRUN}"))).hint


def test_what_a_script_leaves_running_is_ended_as_slurm_does(written, tmp_path):
    pid = tmp_path / "pid"
    assert check.job(written(("\nsrun", f"\nsleep 60 &\necho $! > {pid}\nsrun"))).passed
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(pid.read_text())).wait(5)


def test_the_cells_write_scripts_that_pass_and_their_stubs_are_unsolved(tmp_path):
    for notebook, passed in zip(generate.pristine("10_compute_nodes"), (None, True), strict=True):
        cells = [cell.source for cell in notebook.cells]
        slurm, pbs = [cell.partition("\n")[2] + "\n" for cell in cells if cell.startswith("%%writefile")]
        for judge, text in ((check.job, slurm), (check.pbs_job, pbs)):
            (tmp_path / "job.sh").write_text(text)
            assert judge(tmp_path / "job.sh").passed is passed
    assert pbs == FOR_PBS


def test_here_the_nodes_run_the_script_with_the_options(tmp_path):
    commands = list(check.on_this_machine(SCRIPTS / "job.sh", "--epochs", 1))
    assert len(commands) == 2 and len(set(commands)) == 1
    assert "--nnodes=2 --nproc-per-node=2" in commands[0] and commands[0].endswith("mnist.pt --epochs 1")


def test_it_has_a_rank_for_each_gpu_of_a_node_however_many_these_are(written):
    job = slurm_dry_run.dry_run(written(("--gpus-per-node=2", "--gpus-per-node=4")))
    assert [each.options.nproc_per_node for each in job.torchruns] == ["4", "4"]


@needs("shellcheck")
def test_shellcheck_finds_nothing_in_it():
    ran = subprocess.run(
        ["shellcheck", SCRIPTS / "job.sh", SCRIPTS / "job_pbs.sh"], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stdout


def test_a_rank_is_lost_once_there_is_a_file_and_the_lines_asked_for_are_shown(tmp_path, capfd):
    checkpoint = tmp_path / "checkpoint"
    program = (
        "import os, subprocess, sys\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        "ranks = [subprocess.Popen(sleep, env=os.environ | {'RANK': rank}) for rank in '01']\n"
        "open(sys.argv[1], 'w').close()\n"
        "print('frame 1\\nexitcode:', ranks[1].wait(), flush=True)\n"
        "ranks[0].kill()\n"
        "sys.exit(1)\n"
    )
    command = (sys.executable, "-c", program, checkpoint)
    after_s = losing.run_and_lose(*command, rank=1, once=checkpoint, timeout_s=40, only="exitcode")
    shown = capfd.readouterr().out
    assert after_s is not None and 0 <= after_s < 20
    assert "--- rank 1 is killed" in shown and "exitcode: -9" in shown and "(1 more lines)" in shown
    assert "--- the command ended with exit code 1" in shown
    assert losing.run_and_lose(sys.executable, "-c", "", rank=1, once=tmp_path / "none", timeout_s=30) is None
