"""Every notebook, learner's and solution: a fresh kernel, no error, no process left behind."""

import time
import uuid
from pathlib import Path

import psutil
import pytest
from needs import NEEDED_BY_NOTEBOOKS, require
from training.ladder import write_packed_mnist

from workshop_lib.classroom import execute, generate
from workshop_lib.exercises import exercises
from workshop_lib.ranks.launch import processes

STEMS = [source.stem for source in generate.sources()]
# The long ones first: what starts late in one lane is waited for in the other. `make test` and `make test-full` run the
# learner's versions, quickly and on a part of MNIST, because every fresh rank would unpack all of it and test on it
# after each epoch; `make test-all` runs both versions, as on a learner's laptop.
ORDER = sorted(STEMS, key=lambda stem: -(generate.NOTEBOOKS / "source" / f"{stem}.py").stat().st_size)
IN_CORE = ("00", "02")  # `make test` runs these, and the exercises of the core path's others without their pages
RUNS = [pytest.param("quick", "", stem, marks=() if stem[:2] in IN_CORE else pytest.mark.full) for stem in ORDER]
RUNS += [
    pytest.param("laptop", folder, stem, marks=pytest.mark.exhaustive) for folder in ("", "solutions") for stem in ORDER
]
MARK = "WORKSHOP_TEST_NOTEBOOK"
CELL_LIMIT_S = {"quick": 180, "laptop": 600}  # beside the other lane


def alive(mark: str) -> list[str]:
    """Processes that inherited this run's mark: its kernel, and everything started from it."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if environment.get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                rank_of = environment.get(processes.VARIABLE, "no set of ranks")
                found.append(f"{process.pid} ({rank_of}): {' '.join(process.cmdline())[:120]}")
        except psutil.Error:
            continue
    return found


def left_after(mark: str, seconds: float) -> list[str]:
    end = time.monotonic() + seconds
    while (left := alive(mark)) and time.monotonic() < end:
        time.sleep(0.2)
    return left


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("profile", "version", "stem"), RUNS)
def test_runs_from_a_fresh_kernel_and_leaves_nothing(profile, version, stem, part_of_mnist):
    require(*NEEDED_BY_NOTEBOOKS.get(stem, ()))
    env = {"WORKSHOP_PROFILE": profile} | ({"WORKSHOP_MNIST": str(part_of_mnist)} if profile == "quick" else {})
    mark = uuid.uuid4().hex
    name = Path(f"{stem}.ipynb")
    if version == "solutions":
        name = exercises.solutions_of(name)
    path, output = generate.NOTEBOOKS / name, execute.EXECUTED / name
    outcome = execute.run_notebook(path, output, CELL_LIMIT_S[profile], env | {MARK: mark})
    left = left_after(mark, 10)
    assert not outcome.error, str(outcome)
    assert not left, f"{name} left processes behind: {left}"


@pytest.fixture(scope="session")
def part_of_mnist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mnist")
    write_packed_mnist(folder)
    return folder


def test_a_process_left_behind_would_be_seen(tmp_path):
    path, mark = tmp_path / "05_x.ipynb", uuid.uuid4().hex
    start = "import subprocess\nsubprocess.Popen(['sleep', '60'], start_new_session=True).pid"
    path.write_text(generate.notebook_json(f"# %%\n{start}\n"))
    outcome = execute.run_notebook(path, tmp_path / "out.ipynb", 60, {MARK: mark}, tmp_path)
    left = left_after(mark, 2)
    for line in left:
        psutil.Process(int(line.split()[0])).kill()
    assert not outcome.error, str(outcome)
    assert len(left) == 1
    assert "sleep 60" in left[0]
