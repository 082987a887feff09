"""Judges the exercises of 10_compute_nodes: a job script for Slurm, the same for PBS, and which GPU each rank uses.

`job` judges a script by what it would start on each node (slurm_dry_run.py, pbs_dry_run.py). The notebook then starts
the Slurm job's torchruns with `on_this_machine`.
"""

import shlex
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from workshop_lib.exercises.judge import Verdict
from workshop_lib.exercises.play import Edit, played
from workshop_lib.paths import SCRIPTS
from workshop_lib.words import plural

from lessons.compute_nodes import pbs_dry_run, slurm_dry_run
from lessons.compute_nodes.fake_programs import ADDRESS, CORES, GPUS, NODES, JobScript

LOCAL = ("/tmp", "/dev/shm", "/local", "/var/tmp")
# What differs between the schedulers: the beginning of a directive, the launcher, and what to write.
SLURM = {
    "name": "Slurm",
    "directive": "#SBATCH",
    "launcher": "srun",
    "nodes": f"`#SBATCH --nodes={len(NODES)}`",
    "gpus": f"`#SBATCH --gpus-per-node={GPUS}`. (`--gpus-per-task` counts for torchrun, not a rank.)",
    "cores": f"Since Slurm 22.05 it doesn't take `--cpus-per-task={CORES}` from `#SBATCH`. Say it again: "
    "`srun --cpus-per-task=$SLURM_CPUS_PER_TASK`.",
}
PBS = {
    "name": "PBS",
    "directive": "#PBS",
    "launcher": "mpiexec",
    "nodes": f"`#PBS -l select={len(NODES)}`, followed by what each of them must have",
    "gpus": f"`#PBS -l select={len(NODES)}:ncpus={CORES}:ngpus={GPUS}`.",
    "cores": f"`mpiexec --depth {CORES} --cpu-bind depth` gives it all of them.",
}


def job(script: str | Path) -> Verdict:
    """Judge the job script for Slurm at this path."""
    return _verdict(Path(script), slurm_dry_run.dry_run, SLURM).recorded()


def pbs_job(script: str | Path) -> Verdict:
    """Judge the job script for PBS at this path."""
    return _verdict(Path(script), pbs_dry_run.dry_run, PBS).recorded()


def _verdict(path: Path, dry_run: Callable[[Path], JobScript], words: dict[str, str]) -> Verdict:
    verdict = Verdict(path.name, to_do="Write the lines that are missing")
    if "your code here" in path.read_text(encoding="utf-8"):
        return verdict
    try:
        return verdict.follow(_rules(dry_run(path), words))
    except (ValueError, OSError) as error:  # for example, the value of an option is not a number
        return verdict.follow([("its options can be read", f"{error}.")])


def _rules(job: JobScript, words: dict[str, str]) -> Iterator[tuple[str, str]]:
    """What must hold of the job, each with a hint if it doesn't. Later rules rely on earlier ones."""
    name, launcher = words["name"], words["launcher"]
    hint = f"bash says: {job.problem}" if job.problem else ""
    if job.late:
        hint = f"{name} reads `{words['directive']}` only above the first command, and `{job.late[0]}` comes below it."
    if job.refused:
        hint = (
            f"`qsub` stops with a *directive error*: {job.refused}. It takes every word of the line for an option or "
            "its value, so a comment needs a line of its own."
        )
    yield f"{name} reads all of it", hint
    hint = f"it asks for {job.nodes} of {len(NODES)} nodes: {words['nodes']}."
    yield "it gets two nodes", hint if job.nodes != len(NODES) else ""
    counts = [sum(each.node == node for each in job.torchruns) for node in NODES]
    hint = (
        f"its nodes start {' and '.join(map(str, counts))} torchruns, and one per node is enough: each starts a rank "
        f"per GPU. Does `{launcher}` come before torchrun, and are its options right (`torchrun --help`)?"
    )
    yield "each node has one torchrun", hint if job.alone or set(counts) != {1} else ""
    gpus = min(each.gpus for each in job.torchruns)
    hint = f"each torchrun sees {gpus} of the node's {GPUS} GPUs: {words['gpus']}"
    yield "which sees both GPUs of its node", hint if gpus != GPUS else ""
    ranks = {each.options.nproc_per_node for each in job.torchruns}
    hint = f"torchrun starts {', '.join(ranks)} per node: `--nproc-per-node={GPUS}`, one rank for each GPU *of a node*."
    yield "and starts a rank for each of them", hint if not ranks <= {str(GPUS), "gpu", "auto"} else ""
    cores = min(each.cores for each in job.torchruns)
    hint = f"`{launcher}` binds torchrun and its ranks to {cores} of {CORES} cores. {words['cores']}"
    yield "which share all of its cores", hint if cores < CORES else ""
    yield "all ranks meet", _apart(job)
    if name == "Slurm":
        yield "a job whose node fails starts again", _lost(job)
    else:
        hint = 'PBS starts it in your home folder, where its files aren\'t: begin with `cd "$PBS_O_WORKDIR"`.'
        at_home = any(Path(each.folder).resolve() != SCRIPTS.parent.resolve() for each in job.torchruns)
        yield "they find the files of the folder that you submit from", hint if at_home else ""
    yield "and continues where it stopped", _starts_over(job)


def _lost(job: JobScript) -> str:
    """What is lost if a node of this Slurm job fails; empty if nothing is."""
    if "requeue" not in job.asked:
        return "if a node fails, the job is gone: `#SBATCH --requeue` queues it again."
    if job.asked.get("open-mode", "truncate")[:1] != "a":
        return "the second start overwrites the output of the first, with its error: `#SBATCH --open-mode=append`."
    return ""


def _apart(job: JobScript) -> str:
    """Why not all ranks meet; empty if they do."""
    options = [each.options for each in job.torchruns]
    endpoints = [given.rdzv_endpoint or f"{given.master_addr}:{given.master_port}" for given in options]
    host = endpoints[0].rpartition(":")[0]
    if any(given.nnodes != str(len(NODES)) or given.standalone for given in options):
        return f"each node trains on its own: with `--nnodes={len(NODES)}`, without `--standalone`, they meet."
    if len(set(zip(endpoints, [(given.rdzv_backend, given.rdzv_id) for given in options], strict=True))) > 1:
        return "the torchruns go to different places, or under different names, and wait there. Give them all the same."
    if host not in (*NODES, ADDRESS):
        return f"they meet at {host or 'no host'}, which is a different machine on each node, or none: name one node."
    if options[0].rdzv_backend == "static" and [given.node_rank for given in options] != list(range(len(NODES))):
        return "every torchrun takes itself for node 0: `--rdzv-backend=c10d` numbers them, or use `--node-rank`."
    return ""


def _starts_over(job: JobScript) -> str:
    """Why the job doesn't continue after a requeue; empty if it does."""
    given = job.torchruns[0].options
    if Path(given.training_script).name != "ddp_resume.py":
        return f"{Path(given.training_script).name} starts over every time: `ddp_resume.py` loads its checkpoint."
    words = " ".join(given.training_script_args).replace("--out=", "--out ").split()
    out = words[words.index("--out") + 1] if "--out" in words[:-1] else ""
    if not out or out.startswith(LOCAL) or "RESTART" in out:
        return f"it saves to {out or 'no file'}. The job may get other nodes: name a shared folder with `--out`."
    return ""


def on_this_machine(script: str | Path, *options: object) -> Iterator[str]:
    """Yield one torchrun command per node, changed so that all run on this machine and meet at a free local port.

    The commands come from the learner's script once it is right, and from the finished script until then. `options`
    are passed to the script as arguments. All ranks compute on CPUs, because here the ranks of both nodes would use
    the same GPUs.
    """
    judged = _verdict(Path(script), slurm_dry_run.dry_run, SLURM)
    path = Path(script) if judged.passed else SCRIPTS / "job.sh"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for each in slurm_dry_run.dry_run(path, *map(str, options)).torchruns:
        given = each.options
        words = ["env", "CUDA_VISIBLE_DEVICES=", "torchrun", f"--nnodes={given.nnodes}", f"--nproc-per-node={GPUS}"]
        words += ["--local-addr=127.0.0.1", f"--rdzv-backend={given.rdzv_backend}", f"--rdzv-id={given.rdzv_id}"]
        words += [f"--node-rank={given.node_rank}", f"--rdzv-endpoint=127.0.0.1:{port}"]
        yield shlex.join([*words, given.training_script, *given.training_script_args])


# Each letter is the host of one rank, in rank order, and the number says how many GPUs each rank sees.
HOSTS = {
    ("aaaabbbb", 4): "every rank of a host has its own GPU, where nodes are filled one after the other",
    ("abababab", 4): "also where ranks are dealt out to the nodes in turn",
    ("aaabbccc", 3): "also where nodes have different numbers of ranks",
    ("aabb", 1): "a rank that sees only its own GPU finds it at number 0",
}


def play_device_of(device_of: Callable, comm) -> Iterator[tuple]:
    for (hosts, visible), text in HOSTS.items():
        devices = [device_of(rank, list(hosts), visible) for rank in range(len(hosts))]
        yield text, devices, f"on the hosts {' '.join(hosts)}, where each rank sees {plural(visible, 'GPU')}"


SOLUTION = "hosts[:rank].count(hosts[rank]) % visible"
device_of = played(
    "device_of",
    "10_compute_nodes",
    play_device_of,
    [
        Edit("that is the rank in the whole job: count only the ranks of the same host.", (SOLUTION, "rank")),
        Edit(
            "a rank that sees a single GPU has no number 1: take the remainder by `visible`.",
            (SOLUTION, SOLUTION[:-10]),
        ),
        Edit(
            "a remainder alone is right only if nodes are filled one after the other, not in turn: look at `hosts`.",
            (SOLUTION, "rank % visible"),
        ),
    ],
    returns="the number of the GPU",
    communicates=False,
    unknown="how many ranks of the same host come before this one?",
)
