"""Scripts started from a notebook: their output, their failures, and that nothing of them is left."""

import subprocess
import sys
import time

import pytest
from our_ranks import our_ranks

from workshop_lib.notebook import take_home
from workshop_lib.paths import SCRIPTS
from workshop_lib.ranks import RankError, scripts


def test_the_command_and_what_it_prints_are_shown(capfd):
    scripts.run("python", "-c", "import os; print(os.environ['OMP_NUM_THREADS'], 'thread')", timeout_s=30)
    shown = capfd.readouterr().out.splitlines()
    assert shown[0].startswith("$ python -c ")
    assert shown[1] == "1 thread"


def test_a_failure_is_an_error_that_names_the_command(capfd):
    with pytest.raises(RankError, match=r"python -c .* ended with exit code 3"):
        scripts.run("python", "-c", "import sys; print('why', file=sys.stderr); sys.exit(3)", timeout_s=30)
    assert "why" in capfd.readouterr().out


def test_a_rank_that_gloo_aborts_at_its_end_is_told_from_a_failure():
    program = f"import sys; print({scripts.GLOO_ABORTED!r}); sys.exit(1)"
    with pytest.raises(RankError, match="gloo aborted a rank that was done.*run it again"):
        scripts.run("python", "-c", program, timeout_s=30)


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
    after_s = scripts.run_and_lose(*command, rank=1, once=checkpoint, timeout_s=40, only="exitcode")
    shown = capfd.readouterr().out
    assert after_s is not None and 0 <= after_s < 20
    assert "--- rank 1 is killed" in shown and "exitcode: -9" in shown and "(1 more lines)" in shown
    assert "--- the command ended with exit code 1" in shown
    assert scripts.run_and_lose(sys.executable, "-c", "", rank=1, once=tmp_path / "none", timeout_s=30) is None


def alive(command):
    return [process for process in our_ranks() if command in " ".join(process.cmdline())]


def test_a_child_in_a_session_of_its_own_is_ended_at_the_limit_and_if_it_outlives_its_parent():
    start = (
        "import subprocess, sys; subprocess.{}([sys.executable, '-c', 'import time; time.sleep({})'], "
        "start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)"
    )
    begun = time.monotonic()
    with pytest.raises(RankError, match="had not finished after 1 s"):
        scripts.run(sys.executable, "-c", start.format("run", 60), timeout_s=1)
    assert time.monotonic() - begun < 20 and not alive("time.sleep(60)")
    scripts.run(sys.executable, "-c", start.format("Popen", 61), timeout_s=30)
    assert not alive("time.sleep(61)")


def table_of(*words):
    script = [sys.executable, str(SCRIPTS / "scaling_table.py"), *words]
    return subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)


def test_the_scaling_table_to_take_home_leaves_the_first_epoch_out():
    """What it runs prints 10 images/s in the first epoch and then 1,000 per rank, or 500 from the third rank on."""
    program = "n = {n}; print('10 images/s', *2 * [f'{1000 * n if n < 3 else 500 * n:,} images/s'])"
    ended = table_of("--ranks", "1", "2", "4", "--repeats", "1", "--", sys.executable, "-c", program)
    rows = [line.split() for line in ended.stdout.splitlines()[-4:-1]]
    assert [row[1] for row in rows] == ["1,000", "2,000", "2,000"], ended
    assert [row[-2:] for row in rows] == [["1.00", "100%"], ["2.00", "100%"], ["2.00", "50%"]]


def test_the_scaling_table_says_what_failed():
    failed = table_of("--ranks", "1", "--", sys.executable, "-c", "print('5 images/s')")
    assert failed.returncode and "printed the speed of less than 2 epochs" in failed.stderr
    assert "needs a 1" in table_of("--ranks", "2", "--", "true").stderr


def test_in_a_script_to_take_home_the_lines_that_know_other_ranks_are_marked():
    shown = take_home.marked("horovod_tf.py", r"hvd|\brank\b|\bsize\b").data.splitlines()
    assert {"+ hvd.init()", "+     if rank == 0:", "  import numpy as np"} <= set(shown)
    assert not any(line.startswith("  ") and "hvd." in line for line in shown)
