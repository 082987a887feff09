"""Every notebook, learner's and solution: a fresh kernel, no error, no process left behind."""

import os
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest

import psutil
import pytest
from browser.test_browser import NAMES as IN_THE_BROWSER

from workshop_lib.notebook import execute, generate
from workshop_lib.ranks import processes

STEMS = [source.stem for source in generate.sources()]
# Where a browser is required, it runs the learner's version of most.
THERE = IN_THE_BROWSER if os.environ.get("WORKSHOP_REQUIRE_BROWSER") == "1" else []


def pairs() -> list[tuple[str, ...]]:
    """All notebooks in twos, but never the two versions of one: they would write to the same files."""
    learners = [f"{name}.ipynb" for name in STEMS if name not in THERE]
    solutions = [f"solutions/{name}.ipynb" for name in STEMS]
    for turned in range(len(solutions)):
        names = learners + solutions[turned:] + solutions[:turned]
        half = (len(names) + 1) // 2
        found = [tuple(filter(None, pair)) for pair in zip_longest(names[:half], names[half:])]
        if all(len({name.removeprefix("solutions/") for name in pair}) == len(pair) for pair in found):
            return found
    raise ValueError("no two notebooks that can run at the same time")


MARK = "WORKSHOP_TEST_NOTEBOOK"


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


@pytest.mark.timeout(900)
@pytest.mark.parametrize("names", pairs(), ids=" and ".join)
def test_runs_from_a_fresh_kernel_and_leaves_nothing(names):
    """Two at a time: much of a notebook's time is waiting, for kernels and ranks to start and to time out."""
    if any("horovod" in name for name in names):
        pytest.importorskip("horovod", reason="Horovod is not installed")
    with ThreadPoolExecutor(len(names)) as pool:
        for _ in pool.map(run, names):
            pass


def run(name: str) -> None:
    mark = uuid.uuid4().hex
    env = {"WORKSHOP_PROFILE": "quick", MARK: mark}
    path, output = generate.NOTEBOOKS / name, execute.EXECUTED / name
    outcome = execute.run_notebook(path, output, cell_timeout_s=180, env=env)
    left = left_after(mark, 10)
    assert not outcome.error, str(outcome)
    assert not left, f"{name} left processes behind: {left}"


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
