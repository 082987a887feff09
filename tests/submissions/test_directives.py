"""Every script is one that its machine's scheduler takes, passes shellcheck, and stands on its machine's page."""

import os
import re
import subprocess

import pytest
from needs import needs
from submissions.stand_in import MACHINES, SCRIPTS, job_scripts

from workshop_lib.maintain import torch_build
from workshop_lib.paths import ROOT

JOBS = [(machine, script) for machine in MACHINES for script in job_scripts(machine)]
SENTINELS = {"pbs": "#PBS ", "cobalt": "#COBALT ", "slurm": "#SBATCH "}
# The directives that each scheduler knows, and what their values name. Add one that a center documents.
KNOWN = {
    "pbs": r"-I|-N [\w-]+|-k doe|-j oe|-q (?P<queue>\S+)|-l select=(?P<nodes>\d+)(:system=(?P<system>\w+))?"
    r"|-l place=scatter|-l walltime=(?P<time>\S+)|-l filesystems=(?P<filesystems>\S+)",
    "cobalt": r"-I|-O \w+|-n (?P<nodes>\d+)|-t (?P<time>\S+)|-q (?P<queue>\S+)|-A (?P<account>\w+)"
    r"|--attrs (mcdram=cache:numa=quad|filesystems=(?P<filesystems>\S+))",
    "slurm": r"--job-name=\S+|--output=%x-%j.out|--constraint=(?P<constraint>gpu|cpu)|--qos=(?P<queue>\S+)"
    r"|--nodes=(?P<nodes>\d+)|--ntasks-per-node=(?P<tasks>\d+)|--gpus-per-node=(?P<gpus>\d+)"
    r"|--cpus-per-task=(?P<threads>\d+)|--time=(?P<time>\S+)",
}
NEEDED = {"pbs": {"nodes", "time", "filesystems"}, "cobalt": {"nodes", "time", "account"}, "slurm": {"nodes", "time"}}
NEEDED_ON = {"perlmutter": {"queue", "constraint"}}


def directives(scheduler: str, text: str) -> list[str]:
    """A script's directives: those above its first command. Cobalt stops at a blank line, too."""
    end = r"\n(?!#)" if scheduler == "cobalt" else r"\n(?!#|\n)"
    head = re.split(end, text)[0]
    sentinel = SENTINELS[scheduler]
    return [line.removeprefix(sentinel) for line in head.splitlines() if line.startswith(sentinel)]


def refused(machine: str, given: list[str]) -> str:
    """Why the machine's scheduler turns a job with these directives away, in a few words; "" if it takes it."""
    of_machine = MACHINES[machine]
    asked: dict[str, str] = {}
    for directive in given:
        found = re.fullmatch(KNOWN[of_machine["scheduler"]], directive)
        if not found:
            return f"unknown: {directive}"
        asked |= {name: value for name, value in found.groupdict().items() if value}
    if missing := (NEEDED[of_machine["scheduler"]] | NEEDED_ON.get(machine, set())) - asked.keys():
        return f"missing: {', '.join(sorted(missing))}"
    if not re.fullmatch(r"\d?\d:[0-5]\d:00", asked["time"]):
        return f"no time: {asked['time']}"
    hours, minutes, _ = map(int, asked["time"].split(":"))
    queues = of_machine.get("queues", {"": [1, 9999, 9999]})
    fewest, most, longest = queues.get(asked.get("queue", ""), [1, 0, 0])
    if not fewest <= int(asked["nodes"]) <= most or 60 * hours + minutes > longest:
        return f"{asked['nodes']} nodes for {asked['time']} don't fit queue {asked.get('queue')}"
    if {*re.split("[:,]", asked.get("filesystems", ""))} - {"", *of_machine.get("filesystems", ())}:
        return f"no such file system: {asked['filesystems']}"
    if int(asked.get("tasks", 1)) * int(asked.get("threads", 1)) > of_machine["threads"]:
        return "more threads than a node has"
    return "" if int(asked.get("gpus", 0)) <= of_machine["ranks"] else "more GPUs than a node has"


@pytest.mark.parametrize("machine", MACHINES)
def test_each_machine_has_its_scripts(machine):
    names = {path.name for path in SCRIPTS if path.parent.name == machine}
    own = {"qsub_pytorch_mnist_scale.sh", "qsub_keras_mnist_scale.sh"} if machine == "theta" else {"sweep.sh", "lab.sh"}
    own |= {"scale.sh", "preflight.sh"} if machine not in ("theta", "thetagpu") else set()
    own |= {"srun.sh"} if machine == "perlmutter" else set()
    assert names == {"machine.sh", "interactive.sh", "engines.sh", "train.sh"} | own


@pytest.mark.parametrize(("machine", "script"), JOBS)
def test_the_scheduler_takes_the_script(machine, script):
    scheduler, path = MACHINES[machine]["scheduler"], ROOT / "submissions" / machine / script
    text = path.read_text()
    given = directives(scheduler, text)
    assert refused(machine, given) == ""
    assert len(given) == text.count(f"\n{SENTINELS[scheduler]}"), "one of them stands below the first command"
    assert ("-n 128" in given) == ("mnist_scale" in script), "the documents' scaling jobs"
    assert scheduler != "cobalt" or os.access(path, os.X_OK), "qsub takes no script that isn't executable"


@pytest.mark.parametrize("machine", MACHINES)
def test_the_scheduler_takes_the_interactive_job(machine):
    text = (ROOT / "submissions" / machine / "interactive.sh").read_text()
    asked = re.search(r'exec (?:qsub|qsub-gpu|salloc) (.*?) *"\$@"', text.replace("\\\n", ""))[1]
    assert refused(machine, re.split(r" +(?=-)", asked)) == ""
    assert machine != "theta" or asked == "-n 4 -q training -A comp_perf_workshop -I -t 1:00:00", "the documents' own"


@pytest.mark.parametrize(
    ("machine", "old", "new", "why"),
    [
        ("polaris", "-q debug", "-q gpu", "don't fit queue gpu"),
        ("polaris", "select=2", "select=3", "3 nodes"),
        ("polaris", "#PBS -k doe", "#PBS --nice=5", "unknown: --nice=5"),
        ("theta", "#COBALT -A", "\n#COBALT -A", "missing: account"),
        ("perlmutter", "#SBATCH --constraint=gpu\n", "", "missing: constraint"),
        ("perlmutter", "--gpus-per-node=4", "--gpus-per-node=8", "more GPUs"),
    ],
)
def test_a_planted_directive_is_refused(machine, old, new, why):
    text = (ROOT / "submissions" / machine / "train.sh").read_text()
    assert old in text and why in refused(machine, directives(MACHINES[machine]["scheduler"], text.replace(old, new)))


@needs("shellcheck")
def test_shellcheck_finds_nothing():
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
    if "preflight.sh" in job_scripts(machine):
        first = re.search(r"(\w+)\.sh", text.partition("\nThen")[2] or text)
        assert first[1] == "preflight", "the first job looks at the nodes"
    for script in job_scripts(machine):
        assert script in text, f"the page does not mention {script}"
    scripts = "".join((ROOT / "submissions" / machine / script).read_text() for script in job_scripts(machine))
    for queue in re.findall(r"(?:-q |--qos=|--partition=)([\w-]+)", scripts):
        assert queue in text, f"the page does not mention queue {queue}"


def test_pages_have_the_name_of_pytorchs_build():
    text = (ROOT / "submissions" / "README.md").read_text()
    for build in ("cu130", torch_build.CUDA_12_BUILD, "xpu"):
        assert f"| `{build}` |" in text
    for page in (ROOT / "submissions").glob("*/README.md"):
        assert not re.search(r"TORCH_INDEX=(?!(cu126|cu130|xpu)\b)", page.read_text()), page


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_slurm_ends_all_ranks_when_one_fails(path):
    for line in re.findall(r"^.*\bsrun .*$", path.read_text(), re.MULTILINE):
        starts_ranks = not line.lstrip().startswith("#") and "--interactive" not in line
        assert not starts_ranks or "--kill-on-bad-exit=1" in line, line
