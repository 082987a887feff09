"""Every script's directives pass the checks of its machine's scheduler, and wrong ones do not."""

import os
import re
import shutil
import subprocess

import pytest
from shell_programs import program
from submissions.jobs import SCRIPTS, FakeMachine, job_scripts, submission
from submissions.scheduler_rules import MACHINES, Rejected, accept

from workshop_lib.maintain import torch_build
from workshop_lib.paths import ROOT

JOBS = [(machine, script.name) for machine in MACHINES for script in job_scripts(machine)]


def options(machine: str) -> list[str]:
    return submission(machine)[1:]


@pytest.mark.parametrize("machine", MACHINES)
def test_each_machine_has_its_scripts(machine):
    names = {path.name for path in SCRIPTS if path.parent.name == machine}
    own = {"qsub_pytorch_mnist_scale.sh", "qsub_keras_mnist_scale.sh"} if machine == "theta" else {"sweep.sh", "lab.sh"}
    own |= {"scale.sh", "preflight.sh"} if machine not in ("theta", "thetagpu") else set()
    own |= {"srun.sh"} if machine == "perlmutter" else set()
    assert names == {"machine.sh", "interactive.sh", "engines.sh", "train.sh"} | own


@pytest.mark.parametrize(("machine", "name"), JOBS)
def test_the_scheduler_takes_the_script(machine, name):
    job = accept(machine, [*options(machine), str(ROOT / "submissions" / machine / name)])
    assert job.nodes == (128 if "mnist_scale" in name else job.nodes) and job.minutes <= 60


def test_the_documents_jobs_are_kept():
    """The command lines of the documents of 2021 and 2022, with their own numbers."""
    for name, script in (("pytorch", "qsub_pytorch_mnist_scale.sh"), ("tensorflow", "qsub_keras_mnist_scale.sh")):
        path = f"submissions/theta/{script}"
        words = f"-O {name}_mnist_scale -n 128 -q training -A comp_perf_workshop {path}".split()
        assert accept("theta", words) == accept("theta", [path])
    text = (ROOT / "submissions/theta/interactive.sh").read_text()
    assert "qsub -n 4 -q training -A comp_perf_workshop -I -t 1:00:00" in text


WRONG = [
    ("polaris", ["#PBS -l nodes=2"], "Unknown resource: nodes"),
    ("polaris", ["#PBS -l filesystems=home:grand"], "no file system 'grand'"),
    ("polaris", ["#PBS -q gpu"], "Unknown queue 'gpu'"),
    ("polaris", ["#PBS -l select=3:system=polaris"], "takes 1 to 2"),
    ("polaris", ["#PBS -l walltime=02:00:00"], "120 minutes"),
    ("polaris", ["#PBS -l walltime=1h"], "'1h' is no time"),
    ("polaris", ["#PBS -k oe"], "-k doe is enforced"),
    ("polaris", ["#PBS -A <project>"], "no name of a project"),
    ("polaris", ["#PBS --account project"], "--account not recognized"),
    ("polaris", ["without:walltime"], "walltime is required"),
    ("polaris", ["without:-A"], "Account_Name is required"),
    ("theta", ["#COBALT -q default"], "takes 128 to"),
    ("theta", ["without:-A"], "No required options provided"),
    ("theta", ["#COBALT --attrs mcdram=cache:gpus=8"], "Unknown attribute 'gpus'"),
    ("theta", ["blank line"], "No required options provided"),
    ("thetagpu", ["#COBALT -q training"], "Unknown queue 'training'"),
    ("perlmutter", ["without:--constraint"], "no constraint"),
    ("perlmutter", ["#SBATCH --qos=interactive"], "takes no batch jobs"),
    ("perlmutter", ["#SBATCH --gpus-per-node=8"], "8 GPUs"),
    ("slurm", ["#SBATCH --cpus-per-task=64"], "not available"),
    ("slurm", ["#SBATCH --partition=gpu"], "Unknown queue 'gpu'"),
    ("slurm", ["#SBATCH --nice=5"], "--nice not recognized: if Slurm has this option, add it to LONG"),
]


@pytest.mark.parametrize(("machine", "changes", "words"), WRONG, ids=[f"{w[0]}: {w[1][-1]}" for w in WRONG])
def test_planted_directives_are_rejected(machine, changes, words, tmp_path):
    script, given = tmp_path / "train.sh", options(machine)
    first, *lines = (ROOT / "submissions" / machine / "train.sh").read_text().splitlines()
    for change in changes:
        if change == "blank line":
            lines.insert(0, "")
        elif change.startswith("without:"):
            name = change.partition(":")[2]
            given = [] if name == "-A" else given
            lines = [line for line in lines if not re.match(r"#\w+ .*" + name, line)]
        else:  # after the script's own, so that it wins
            own = [n for n, line in enumerate(lines) if re.match(r"#(PBS|COBALT|SBATCH) ", line)]
            lines.insert(own[-1] + 1, change)
    script.write_text("\n".join([first, *lines]) + "\n")
    script.chmod(0o755)
    if "-A <project>" in changes[0]:
        given = []
    with pytest.raises(Rejected, match=re.escape(words)):
        accept(machine, [*given, str(script)])


def test_cobalt_takes_no_script_that_is_not_executable(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text((ROOT / "submissions/theta/train.sh").read_text())
    with pytest.raises(Rejected, match="not executable"):
        accept("theta", [str(script)])


LAUNCHES = [
    ("polaris", "mpiexec --ppn 4 --cpu-bind list:24-31:16-23:8-15:0-7 -n 5", "5 ranks, but 4 a node are 4"),
    ("polaris", "mpiexec --ppn 2 --cpu-bind list:0-7:7-15 -n 2", "another's"),
    ("polaris", "mpiexec --ppn 2 --cpu-bind list:0-7:60-64 -n 2", "no cores 60-64"),
    ("polaris", "mpiexec -npernode 4 -n 4", "unknown option -npernode"),
    ("sophia", "mpirun --hostfile /dev/none --map-by ppr:8:node:PE=16 --bind-to core -n 8", "could not be opened"),
    ("sophia", "mpirun --hostfile README.md --map-by ppr:8:node:PE=32 --bind-to core -n 8", "more than a node has"),
    ("sophia", "mpirun --hostfile README.md --map-by ppr:8:node:PE=16 --bind-to none -n 8", "needs --bind-to core"),
    ("theta", "aprun -N 8 -d 32 -j 2 -cc depth -n 8", "exceeds the CPUs"),
    ("theta", "aprun -N 4 -d 32 -j 2 -n 4", "-d needs -cc depth"),
    ("theta", "aprun -N 4 -e OMP_NUM_THREADS 32 -n 4", "no NAME=VALUE"),
    ("perlmutter", "srun --ntasks-per-node=4 --cpus-per-task=64 -n 4", "More processors"),
    ("perlmutter", "srun --ntasks-per-node=8 --gpus-per-node=8 -n 8", "not available"),
]


@pytest.mark.parametrize(("machine", "line", "words"), LAUNCHES)
def test_planted_launches_are_rejected(machine, line, words, monkeypatch):
    from submissions import fake_machine

    launchers = {"mpiexec": "pals", "mpirun": "open_mpi", "aprun": "aprun", "srun": "srun"}
    monkeypatch.setenv("FAKE_MACHINE_NODES", "1")
    monkeypatch.chdir(ROOT)
    name, *arguments = line.split()
    with pytest.raises(fake_machine.Rejected, match=re.escape(words)):
        getattr(fake_machine, launchers[name])(machine, [*arguments, "true"])


def test_a_rejected_job_is_not_run(tmp_path):
    fake_machine = FakeMachine("polaris", tmp_path)
    ran = fake_machine.run("qsub", "submissions/polaris/train.sh")
    assert (ran.returncode, ran.stdout) == (1, "qsub: Account_Name is required to be set.\n")
    assert not fake_machine.calls("mpiexec")


def test_shellcheck_finds_nothing():
    if shutil.which("shellcheck") is None:
        reason = "shellcheck is not installed (Debian: apt-get install shellcheck)"
        assert os.environ.get("WORKSHOP_REQUIRE_CLUSTER") != "1", reason
        pytest.skip(reason)
    found = subprocess.run(
        ["shellcheck", "-x", *map(str, SCRIPTS)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 0, found.stdout


def test_lines_are_short_enough_to_read():
    long = {str(path): n for path in SCRIPTS if (n := max(map(len, path.read_text().splitlines()))) > 120}
    assert not long


@pytest.mark.parametrize("machine", MACHINES)
def test_each_page_says_whether_it_was_tried_and_how_old_its_facts_are(machine):
    text = (ROOT / "submissions" / machine / "README.md").read_text()
    assert re.search(r"(Not tried on the machine|Tried on).*Documentation as of 20\d\d-\d\d-\d\d", text, re.DOTALL)
    if "preflight.sh" in [script.name for script in job_scripts(machine)]:
        first = re.search(r"(\w+)\.sh", text.partition("\nThen")[2] or text)
        assert first[1] == "preflight", "the first job looks at the nodes"
    for script in job_scripts(machine):
        assert script.name in text, f"the page does not mention {script.name}"
    scripts = "".join(path.read_text() for path in job_scripts(machine))
    for queue in re.findall(r"(?:-q |--qos=|--partition=)([\w-]+)", scripts):
        assert queue in text, f"the page does not mention queue {queue}"


def test_pages_have_the_name_of_pytorchs_build():
    text = (ROOT / "submissions" / "README.md").read_text()
    for build in ("cu130", torch_build.CUDA_12_BUILD, "xpu"):
        assert f"| `{build}` |" in text
    for page in (ROOT / "submissions").glob("*/README.md"):
        assert not re.search(r"TORCH_INDEX=(?!(cu126|cu130|xpu)\b)", page.read_text()), page


@pytest.mark.parametrize(
    ("there", "status", "words"),
    [
        (("nvcc",), 0, "Horovod has NCCL"),
        ((), 1, "nvcc is not on PATH: load the module"),
        (("nvcc", "without"), 1, "built, but without NCCL"),
    ],
)
def test_horovod_with_nccl_is_set_up_in_one_command(tmp_path, there, status, words):
    """With programs in the place of make, nvcc and the Python of .venv, which note how they were called."""
    answer = "echo 'Horovod was built, but without NCCL' >&2; exit 1" if "without" in there else "cat >/dev/null"
    for name, text in {"bin/make": 'echo "$@" >setup', "bin/nvcc": "", ".venv/bin/python": answer}.items():
        program(tmp_path / name, text)
    if "nvcc" not in there:
        (tmp_path / "bin/nvcc").unlink()
    ran = subprocess.run(
        ["/bin/bash", ROOT / "submissions/common/horovod_nccl.sh", "MPICC=cc"],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (ran.returncode, words in ran.stdout + ran.stderr) == (status, True), ran
    if "nvcc" in there:
        assert (tmp_path / "setup").read_text() == "setup MPI=system HOROVOD= HOROVOD_GPU_OPERATIONS=NCCL MPICC=cc\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_slurm_ends_all_ranks_when_one_fails(path):
    for line in re.findall(r"^.*\bsrun .*$", path.read_text(), re.MULTILINE):
        starts_ranks = not line.lstrip().startswith("#") and "--interactive" not in line
        assert not starts_ranks or "--kill-on-bad-exit=1" in line, line
