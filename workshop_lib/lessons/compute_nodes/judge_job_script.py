"""Judges the job script of 10_compute_nodes, its first exercise, by what the script would start on each node.

judge_slurm.py does the dry run. Each JobRule says what must hold for the job, and which edits of the right script break
the rule; the tests make these edits. The notebook then starts the job's torchruns with `on_this_machine`.
"""

import shlex
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from workshop_lib.judge import Verdict
from workshop_lib.lessons.compute_nodes.judge_slurm import ADDRESS, CORES, GPUS, NODES, SlurmJob, dry_run
from workshop_lib.paths import SCRIPTS
from workshop_lib.words import plural

LOCAL = ("/tmp", "/dev/shm", "/local", "/var/tmp")


class JobRule(NamedTuple):
    """One requirement of the job.

    problem: returns a hint that says what is wrong with a job, or "" if the job meets the requirement. wrong: edits of
    the right script that break the requirement, as {(old text, new text): words of the hint that must follow}.
    """

    text: str
    problem: Callable[[SlurmJob], str]
    wrong: dict[tuple[str, str], str]


def _reads(job: SlurmJob) -> str:
    if job.late:
        return f"Slurm reads `#SBATCH` only above the first command, and `{job.late[0]}` comes below it."
    return f"bash says: {job.problem}" if job.problem else ""


def _nodes(job: SlurmJob) -> str:
    if job.nodes == len(NODES):
        return ""
    return f"it asks for {plural(job.nodes, 'node')}: `#SBATCH --nodes={len(NODES)}`."


def _one_each(job: SlurmJob) -> str:
    if job.alone:
        return "the script itself runs on the first node alone. Let `srun` start torchrun, so that each node has one."
    if not job.torchruns:
        return "no torchrun is started. Does `srun` come before it, and are its options right (`torchrun --help`)?"
    counts = {node: sum(each.node == node for each in job.torchruns) for node in NODES}
    if set(counts.values()) == {1}:
        return ""
    return f"{counts} torchruns are started. One per node is enough, since each starts a rank for each of its GPUs."


def _all_gpus(job: SlurmJob) -> str:
    gpus = {each.gpus for each in job.torchruns}
    if gpus == {GPUS}:
        return ""
    if gpus == {0}:
        return f"it asks for no GPUs, so Slurm hides them all: `#SBATCH --gpus-per-node={GPUS}`."
    return (
        f"each torchrun sees {min(gpus)} of the node's {GPUS} GPUs. `--gpus-per-task` counts for torchrun, not a rank."
    )


def _ranks(job: SlurmJob) -> str:
    counts = {each.options.nproc_per_node for each in job.torchruns}
    if counts <= {str(GPUS), "gpu", "auto"}:
        return ""
    return (
        f"torchrun starts {', '.join(counts)} per node: `--nproc-per-node={GPUS}`, one rank for each GPU *of a node*."
    )


def _bound(job: SlurmJob) -> str:
    cores = min(each.cores for each in job.torchruns)
    if cores >= CORES:
        return ""
    if int(job.asked.get("cpus-per-task", 1)) >= CORES:
        return (
            f"`srun` binds torchrun and its ranks to {cores} core: since Slurm 22.05 it doesn't take `--cpus-per-task` "
            "from `#SBATCH`. Say it again: `srun --cpus-per-task=$SLURM_CPUS_PER_TASK`."
        )
    return f"torchrun and its ranks share {cores} of {CORES} cores: `--cpus-per-task={CORES}`, here and for `srun`."


def _meet(job: SlurmJob) -> str:
    backend, _, endpoint = job.torchruns[0].meeting
    host = endpoint.rpartition(":")[0]
    if any(each.options.nnodes != str(len(NODES)) or each.options.standalone for each in job.torchruns):
        return f"each node trains on its own: with `--nnodes={len(NODES)}`, without `--standalone`, they meet."
    if len({each.meeting for each in job.torchruns}) > 1:
        return "the torchruns go to different places, or under different names, and wait there. Give them all the same."
    if host in ("localhost", "127.0.0.1", "") or host not in (*NODES, ADDRESS):
        return f"they meet at {host or 'no host'}, which is a different machine on each node, or none: name one node."
    if backend == "static" and [each.options.node_rank for each in job.torchruns] != list(range(len(NODES))):
        return "every torchrun takes itself for node 0: `--rdzv-backend=c10d` numbers them, or use `--node-rank`."
    return ""


def _requeued(job: SlurmJob) -> str:
    if "requeue" not in job.asked:
        return "if a node fails, the job is gone: `#SBATCH --requeue` puts it back into the queue."
    if job.asked.get("open-mode", "truncate")[:1] != "a":
        return "the second start overwrites the output of the first, with its error: `#SBATCH --open-mode=append`."
    return ""


def _resumes(job: SlurmJob) -> str:
    given = job.torchruns[0].options
    if Path(given.training_script).name != "ddp_resume.py":
        return f"{Path(given.training_script).name} starts over every time: `ddp_resume.py` loads its checkpoint."
    words = given.training_script_args
    out = words[words.index("--out") + 1] if "--out" in words[:-1] else ""
    out = next((word[6:] for word in words if word.startswith("--out=")), out)
    if not out:
        return "where is the checkpoint? Say so with `--out`."
    if out.startswith(LOCAL) or "RESTART" in out:
        return f"{out} is on one node's own disk. After a requeue the job may get other nodes: use a shared folder."
    return ""


SRUN_CPUS = ' --cpus-per-task="$SLURM_CPUS_PER_TASK"'
ENDPOINT = ' --rdzv-endpoint="$first:$port"'
TRAINING = 'torchrun --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node=2 \\\n    --rdzv-backend=c10d'
EACH_ITS_OWN = (
    "bash -c 'torchrun --rdzv-endpoint=$(hostname):29500 \"$@\"' _ --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d"
)
RULES = [
    JobRule("Slurm reads all of it", _reads, {("#SBATCH --requeue", "true\n#SBATCH --requeue"): "comes below"}),
    JobRule("it gets two nodes", _nodes, {("#SBATCH --nodes=2\n", ""): "asks for 1 node"}),
    JobRule(
        "each node has one torchrun",
        _one_each,
        {
            (f"srun{SRUN_CPUS} --export=ALL --kill-on-bad-exit=1", "env"): "runs on the first node alone",
            ("--ntasks-per-node=1", "--ntasks-per-node=2"): "One per node is enough",
            ("torchrun --nnodes", "torchrun --nodes"): "no torchrun is started",
        },
    ),
    JobRule(
        "which sees both GPUs of its node",
        _all_gpus,
        {
            ("#SBATCH --gpus-per-node=2\n", ""): "hides them all",
            ("--gpus-per-node=2", "--gpus-per-task=1"): "counts for torchrun, not a rank",
        },
    ),
    JobRule(
        "and starts a rank for each of them", _ranks, {("--nproc-per-node=2", "--nproc-per-node=4"): "*of a node*"}
    ),
    JobRule(
        "which share all of its cores",
        _bound,
        {(SRUN_CPUS, ""): "since Slurm 22.05", ("--cpus-per-task=32", "--cpus-per-task=1"): "share 1 of 32"},
    ),
    JobRule(
        "all ranks meet",
        _meet,
        {
            ('--nnodes="$SLURM_JOB_NUM_NODES"', "--standalone"): "trains on its own",
            ("$first:$port", "localhost:$port"): "which is a different machine on each node",
            (" --rdzv-backend=c10d", ""): "takes itself for node 0",
            (f"{TRAINING}{ENDPOINT}", EACH_ITS_OWN): "to different places",
        },
    ),
    JobRule(
        "a job whose node fails starts again",
        _requeued,
        {("#SBATCH --requeue\n", ""): "the job is gone", ("#SBATCH --open-mode=append\n", ""): "overwrites the output"},
    ),
    JobRule(
        "and continues where it stopped",
        _resumes,
        {
            ("ddp_resume.py", "ddp.py"): "starts over",
            ("=../build/10_compute_nodes", "=/tmp"): "one node's own disk",
            (' --out "$checkpoint"', ""): "where is the checkpoint",
        },
    ),
]


def job(script: str | Path) -> Verdict:
    """Judge the job script at this path."""
    return _verdict(Path(script)).recorded()


def _verdict(path: Path) -> Verdict:
    verdict = Verdict(path.name, to_do="Write the lines that are missing")
    if "your code here" in path.read_text(encoding="utf-8"):
        return verdict
    try:
        found = dry_run(path)
        verdict.follow((rule.text, rule.problem(found)) for rule in RULES)
    except (ValueError, OSError) as error:  # for example, the value of an option is not a number
        verdict.passed = False
        verdict.failed = "its options can't be read"
        verdict.hint = str(error)
    return verdict


def on_this_machine(script: str | Path, *options: object) -> Iterator[str]:
    """Yield one torchrun command per node, changed so that all run on this machine and meet at a free local port.

    The commands come from the learner's script once it is right, and from the finished script until then. `options`
    are passed to the script as arguments. All ranks compute on CPUs, because here the ranks of both nodes would use
    the same GPUs.
    """
    path = Path(script) if _verdict(Path(script)).passed else SCRIPTS / "job.sh"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for each in dry_run(path, *map(str, options)).torchruns:
        given = each.options
        words = ["env", "CUDA_VISIBLE_DEVICES=", "torchrun", f"--nnodes={given.nnodes}", f"--nproc-per-node={GPUS}"]
        words += ["--local-addr=127.0.0.1", f"--rdzv-backend={given.rdzv_backend}", f"--rdzv-id={given.rdzv_id}"]
        words += [f"--node-rank={given.node_rank}", f"--rdzv-endpoint=127.0.0.1:{port}"]
        yield shlex.join([*words, given.training_script, *given.training_script_args])
