"""Time for which the machine was asleep doesn't count toward a time-out."""

import signal
import subprocess
import sys
import time

import psutil
import pytest

CALL = """
import time
from workshop_lib import ranks
from workshop_lib.ranks import clock

clock.LONGEST_STEP_S = 0.5

def work():
    import time
    from mpi4py import MPI
    for _ in range(20):
        time.sleep(0.1)
        MPI.COMM_WORLD.Barrier()
    return MPI.COMM_WORLD.rank

if __name__ == "__main__":
    team = ranks.start(2)
    print("started", flush=True)
    print(team.run(work, timeout=8), team.run(work, timeout=8), team.healthy)
    ranks.stop()
"""
ASLEEP_S = 10.0


@pytest.mark.full
def test_ranks_and_notebook_that_slept_during_a_call_go_on(nothing_left):
    notebook = subprocess.Popen([sys.executable, "-c", CALL], stdout=subprocess.PIPE, text=True)
    try:
        assert notebook.stdout.readline().startswith(("started", "Other programs"))
        time.sleep(1)
        asleep = [psutil.Process(notebook.pid), *psutil.Process(notebook.pid).children(recursive=True)]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for process in asleep:
                process.send_signal(number)
            time.sleep(ASLEEP_S if number == signal.SIGSTOP else 0)
        output, _ = notebook.communicate(timeout=60)
    finally:
        notebook.kill()
    assert output.splitlines()[-1] == "[0, 1] [0, 1] True"
