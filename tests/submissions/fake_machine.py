"""Stands in for a machine's scheduler and launcher: checks what the real one would, then runs the job here.

`python fake_machine.py NAME ARGUMENT...` is what `NAME ARGUMENT...` would be there: qsub, sbatch and salloc
run the job at once, on nodes that are this machine; mpiexec, mpirun, aprun and srun run at most
FAKE_MACHINE_MOST_RANKS ranks with FAKE_MACHINE_MPIEXEC. FAKE_MACHINE_MACHINE says which machine; each call is a line of
FAKE_MACHINE_LOG.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from scheduler_rules import MACHINES, Job, Rejected, accept

# Of a job here, unknown to the real mpiexec, which would look for the scheduler.
SCHEDULER = ("PBS_", "COBALT_", "SLURM_")
JOB_ID = "4711"
# The command with which Slurm opens a prompt on a job's first node: slurm.conf, InteractiveStepOptions.
INTERACTIVE = ["srun", "--interactive", "--preserve-env", "--export=ALL", "--pty", "bash"]


def main(name: str, arguments: list[str]) -> int:
    machine = os.environ["FAKE_MACHINE_MACHINE"]
    launchers = {"mpiexec": pals, "mpirun": open_mpi, "aprun": aprun, "srun": srun}
    try:
        if name in launchers:
            ranks, program = launchers[name](machine, arguments)
            log(name, arguments, ranks=ranks)
            return start(min(ranks, int(os.environ["FAKE_MACHINE_MOST_RANKS"])), program)
        if name != {"pbs": "qsub", "cobalt": "qsub"}.get(MACHINES[machine].scheduler, name):
            raise Rejected(f"{machine} has no {name}")
        job = accept(machine, arguments)
        if machine == "slurm" and name == "salloc" and job.command != INTERACTIVE:
            raise Rejected(f"salloc: {job.command} would not open a prompt on the first node")
    except Rejected as error:
        print(error, file=sys.stderr)
        return 1
    log(name, arguments, nodes=job.nodes)
    return run(job)


def run(job: Job) -> int:
    """Run the job's script, or what standard input says, as the scheduler would on the first node."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | job.variables | _environment(job, Path(folder))
        cwd, script = Path.cwd(), job.script
        if MACHINES[job.machine].scheduler == "pbs":  # jobs start at home
            cwd = Path(folder)
        if script is not None and MACHINES[job.machine].scheduler != "cobalt":  # theirs is a copy
            script = Path(folder) / f"{JOB_ID}.script"
            shutil.copy(job.script, script)
        command = ["bash", "-s"] if script is None else ["bash", str(script)]
        return subprocess.run(command, env=environment, cwd=cwd).returncode


def _environment(job: Job, folder: Path) -> dict[str, str]:
    """The variables and the node file that a job finds."""
    hosts = [socket.gethostname(), *(f"stand-in-{n}" for n in range(1, job.nodes))]
    node_file = folder / "nodes"
    node_file.write_text("".join(f"{host}\n" for host in hosts))
    common = {"FAKE_MACHINE_NODES": str(job.nodes)}
    match MACHINES[job.machine].scheduler:
        case "pbs":
            return common | {
                "PBS_JOBID": f"{JOB_ID}.server",
                "PBS_NODEFILE": str(node_file),
                "PBS_O_WORKDIR": os.getcwd(),
            }
        case "cobalt":
            where = {"COBALT_NODEFILE": str(node_file)}
            if job.machine == "theta":
                where = {"COBALT_PARTNAME": f"0-{job.nodes - 1}"}
            return common | where | {"COBALT_JOBID": JOB_ID, "COBALT_JOBSIZE": str(job.nodes)}
    return common | {
        "SLURM_JOB_ID": JOB_ID,
        "SLURM_JOB_NUM_NODES": str(job.nodes),
        "SLURM_JOB_NODELIST": ",".join(hosts),
        "SLURM_NTASKS_PER_NODE": str(job.tasks_per_node),
        "SLURM_SUBMIT_DIR": os.getcwd(),
    }


def start(ranks: int, program: list[str]) -> int:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(SCHEDULER)}
    environment |= json.loads(os.environ["FAKE_MACHINE_MPI_SETTINGS"])
    return subprocess.run([os.environ["FAKE_MACHINE_MPIEXEC"], "-n", str(ranks), *program], env=environment).returncode


def log(name: str, arguments: list[str], **facts) -> None:
    with open(os.environ["FAKE_MACHINE_LOG"], "a") as file:
        file.write(json.dumps({"name": name, "arguments": arguments} | facts) + "\n")


def pals(machine: str, arguments: list[str]) -> tuple[int, list[str]]:
    """HPE's mpiexec, of Polaris and Aurora."""
    known = {"-n": 1, "--np": 1, "--ppn": 1, "-ppn": 1, "--cpu-bind": 1, "--depth": 1, "-d": 1, "--hostfile": 1}
    given, program = _words(arguments, known)
    per_node = int(given.get("--ppn", given.get("-ppn", 1)))
    ranks = _fitting("mpiexec", given.get("-n"), per_node)
    _check_cpu_list(machine, given.get("--cpu-bind", ""), per_node)
    return ranks, program


def _check_cpu_list(machine: str, binding: str, per_node: int) -> None:
    kind, _, text = binding.partition(":")
    if kind != "list":
        raise Rejected(f"mpiexec: --cpu-bind {binding!r} does not say which cores")
    taken: set[int] = set()
    shares = text.split(":")
    for share in shares:
        for part in share.split(","):
            low, _, high = part.partition("-")
            cores = set(range(int(low), int(high or low) + 1))
            if cores & taken or cores & MACHINES[machine].reserved:
                raise Rejected(f"mpiexec: cores {part} are another's")
            if max(cores) >= MACHINES[machine].threads:
                raise Rejected(f"mpiexec: there are no cores {part}")
            taken |= cores
    if len(shares) != per_node:
        raise Rejected(f"mpiexec: {len(shares)} lists of cores for {per_node} ranks a node")


def open_mpi(machine: str, arguments: list[str]) -> tuple[int, list[str]]:
    """Open MPI 4's mpirun, of ThetaGPU and Sophia."""
    known = {"-n": 1, "-np": 1, "--hostfile": 1, "--map-by": 1, "--bind-to": 1, "-x": 1}
    given, program = _words(arguments, known)
    if not Path(given.get("--hostfile", "/nonexistent")).is_file():
        raise Rejected(f"mpirun: the hostfile {given.get('--hostfile')} could not be opened")
    mapping = re.fullmatch(r"ppr:(\d+):node:PE=(\d+)", given.get("--map-by", ""))
    if mapping is None:
        raise Rejected(f"mpirun: --map-by {given.get('--map-by')} does not say how many ranks and cores a node")
    per_node, cores = map(int, mapping.groups())
    if per_node * cores > MACHINES[machine].threads // 2:
        raise Rejected(f"mpirun: {per_node} x {cores} cores are more than a node has")
    if given.get("--bind-to") != "core":
        raise Rejected(f"mpirun: PE={cores} needs --bind-to core")
    return _fitting("mpirun", given.get("-n"), per_node), program


def aprun(machine: str, arguments: list[str]) -> tuple[int, list[str]]:
    """Cray's aprun, of Theta."""
    given, program = _words(arguments, {"-n": 1, "-N": 1, "-d": 1, "-j": 1, "-cc": 1, "-e": 1})
    per_node, depth = int(given.get("-N", 1)), int(given.get("-d", 1))
    if per_node * depth > 64 * int(given.get("-j", 1)):
        raise Rejected(f"aprun: -N {per_node} -d {depth} exceeds the CPUs of a node")
    if depth > 1 and given.get("-cc") != "depth":
        raise Rejected("aprun: -d needs -cc depth")
    if any("=" not in value for value in given.get("-e", "A=1").split()):
        raise Rejected(f"aprun: -e {given['-e']} is no NAME=VALUE")
    return _fitting("aprun", given.get("-n"), per_node), program


def srun(machine: str, arguments: list[str]) -> tuple[int, list[str]]:
    """Slurm's srun."""
    names = (
        "--overlap",
        "--export",
        "--nodes",
        "--ntasks-per-node",
        "--cpus-per-task",
        "--cpu-bind",
        "--gpus-per-node",
        "--mpi",
        "--kill-on-bad-exit",
    )
    given, program = _words(arguments, {"-n": 1} | dict.fromkeys(names, 0))
    per_node = int(given.get("--ntasks-per-node", 1))
    if per_node * int(given.get("--cpus-per-task", 1)) > MACHINES[machine].threads:
        raise Rejected("srun: error: More processors requested than permitted")
    if int(given.get("--gpus-per-node", 0)) > MACHINES[machine].gpus:
        raise Rejected("srun: error: Requested node configuration is not available")
    nodes, fewest = int(given.get("--nodes", os.environ["FAKE_MACHINE_NODES"])), -(-int(given["-n"]) // per_node)
    if nodes != fewest:
        raise Rejected(f"srun would spread {given['-n']} ranks over {nodes} nodes, though {fewest} would do")
    return _fitting("srun", given.get("-n"), per_node), program


def _words(arguments: list[str], known: dict[str, int]) -> tuple[dict[str, str], list[str]]:
    """Options with their values, up to the program. known: 1 where a value is the next word, 0 after "="."""
    given, rest = {}, list(arguments)
    while rest and rest[0].startswith("-"):
        name, _, value = rest.pop(0).partition("=")
        if name not in known:
            raise Rejected(f"unknown option {name}")
        if known[name]:
            value = rest.pop(0)
        given[name] = f"{given[name]} {value}" if name in ("-x", "-e") and name in given else value
    if not rest:
        raise Rejected("no program to start")
    return given, rest


def _fitting(launcher: str, ranks: str | None, per_node: int) -> int:
    room = per_node * int(os.environ["FAKE_MACHINE_NODES"])
    if ranks is None or not ranks.isdigit() or not 1 <= int(ranks) <= room:
        raise Rejected(f"{launcher}: {ranks} ranks, but {per_node} a node are {room} in this job")
    return int(ranks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
