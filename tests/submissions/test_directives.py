"""Every script passes shellcheck and stands on its machine's page, and its scheduler reads all of its directives."""

import os
import re
import subprocess

import pytest
from needs import needs
from submissions.stand_in import MACHINES, RECORDS, SCRIPTS, job_scripts

from workshop_lib.paths import ROOT

from tools import torch_build

JOBS = [(machine, script) for machine in MACHINES for script in job_scripts(machine)]
DIRECTIVE = re.compile(r"^#(?:PBS|COBALT|SBATCH) ", re.MULTILINE)


@pytest.mark.parametrize("machine", MACHINES)
def test_each_machine_has_its_scripts(machine):
    names = {path.name for path in SCRIPTS if path.parent.name == machine}
    expected = {"interactive.sh", "engines.sh", "train.sh", "sweep.sh", "lab.sh", "scale.sh", "preflight.sh"}
    if machine in RECORDS:
        expected = {RECORDS[machine]}
    if machine == "perlmutter":
        expected.add("srun.sh")
    assert names == {"machine.sh", *expected}


@pytest.mark.parametrize(("machine", "script"), JOBS)
def test_the_scheduler_reads_every_directive(machine, script):
    """It reads up to the first command, and Cobalt only up to the first blank line."""
    is_cobalt = MACHINES[machine]["scheduler"] == "cobalt"
    path = ROOT / "submissions" / machine / script
    text = path.read_text()
    head = re.split(r"\n(?!#)" if is_cobalt else r"\n(?!#|\n)", text)[0]
    assert len(DIRECTIVE.findall(head)) == len(DIRECTIVE.findall(text)) > 0
    assert not re.search("^#PBS.*[ \\t]#", text, re.MULTILINE), "qsub takes a comment on such a line for an option"
    assert "scale" not in script or "learned nothing on 128 ranks" in text, "say which recipe it is"
    assert not is_cobalt or os.access(path, os.X_OK), "qsub takes no script that isn't executable"


@needs("shellcheck")
def test_shellcheck_finds_nothing():
    found = subprocess.run(
        ["shellcheck", "-x", *map(str, SCRIPTS)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 0, found.stdout


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
