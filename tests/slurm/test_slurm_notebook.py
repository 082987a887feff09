"""One notebook, unedited, three ways: ranks here, ranks of a job around it, ranks of a job elsewhere."""

import re
import subprocess
import sys

import nbformat
import pytest

from workshop_lib.maintain.execute import run_notebook
from workshop_lib.maintain.generate import NOTEBOOKS
from workshop_lib.paths import ROOT

RANKS_PER_NODE = 1
NOTEBOOK = NOTEBOOKS / "solutions" / "02_synchronous_sgd_solutions.ipynb"
# What depends on the data and the seed alone, and not on time.
NUMBERS = re.compile(r"loss .*, digest .*|test accuracy: .*%|.* images are right|weights: .*|.* is off by .*")
RUN = """\
import sys
from pathlib import Path
from workshop_lib.maintain.execute import run_notebook
print(run_notebook(Path(sys.argv[1]), Path(sys.argv[2]), cell_timeout_s=180))
"""


def numbers(executed) -> list[str]:
    """The lines of a notebook's output that must not depend on where its ranks ran."""
    found = []
    for cell in nbformat.read(executed, as_version=4).cells:
        for output in cell.get("outputs", []):
            found += NUMBERS.findall(output.get("text", ""))
    return sorted(found)  # ranks print at the same time


@pytest.fixture(scope="module")
def environment(slurm):
    return {"PYTHONPATH": str(ROOT), "WORKSHOP_PROFILE": "quick", "WORKSHOP_PYTHON": sys.executable}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """What the notebook says with ranks on this machine alone."""
    executed = tmp_path_factory.mktemp("here") / "here.ipynb"
    outcome = run_notebook(NOTEBOOK, executed, cell_timeout_s=180, env={"WORKSHOP_PROFILE": "quick"})
    assert not outcome.error, str(outcome)
    found = numbers(executed)
    assert len(found) > 10, found
    return found


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_inside_a_job_ranks_fill_it_and_the_notebook_says_the_same(slurm, environment, here, tmp_path):
    script, output, executed = (tmp_path / name for name in ("inside.sh", "job.out", "inside.ipynb"))
    (tmp_path / "inside.py").write_text(RUN)
    script.write_text(f'#!/bin/sh\nexec "$WORKSHOP_PYTHON" {tmp_path}/inside.py {NOTEBOOK} {executed}\n')
    job = slurm.submit(
        script, "--nodes=2", "--ntasks-per-node=1", f"--output={output}", f"--chdir={ROOT}", **environment
    )
    slurm.wait(job, "COMPLETED", "FAILED", limit_s=300)
    assert "passed" in output.read_text(), output.read_text()
    assert numbers(executed) == here


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_attached_from_the_login_node_the_notebook_says_the_same(slurm, environment, here, held, tmp_path):
    executed = tmp_path / "attached.ipynb"
    done = subprocess.run(
        slurm.at_login(sys.executable, "-c", RUN, NOTEBOOK, executed),
        env=slurm.environment | environment | {"WORKSHOP_ATTACH": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "passed" in done.stdout, done.stdout + done.stderr
    assert numbers(executed) == here


def test_stop_from_the_login_node_ends_the_job(slurm, environment, held):
    done = subprocess.run(
        slurm.at_login(sys.executable, "-m", "workshop_lib", "engines", "stop"),
        env=slurm.environment | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "were stopped" in done.stdout, done.stdout + done.stderr
    assert slurm.wait(held[0], "COMPLETED", "FAILED", limit_s=15) == "COMPLETED"
