"""A rank that is asked where it is goes on, whatever it is doing."""

import os
import subprocess
import sys
import time

import pytest

from workshop_lib.ranks.faults import whereabouts

CALLS_FUNCTIONS = """\
import sys
from pathlib import Path
from workshop_lib.ranks.faults import whereabouts
whereabouts.answer(Path(sys.argv[1]), 0)
print("ready", flush=True)
while True:
    sum(map(lambda value: value, range(1000)))
"""
QUESTIONS = 1500


@pytest.mark.full
def test_a_rank_that_calls_functions_survives_any_number_of_questions(tmp_path):
    """Every few hundred of them, faulthandler would read a frame that is only half there, and crash the rank."""
    command = [sys.executable, "-c", CALLS_FUNCTIONS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as rank:
        assert rank.stdout is not None and rank.stdout.readline()
        for _ in range(QUESTIONS):
            os.kill(rank.pid, whereabouts.ASK)
            time.sleep(0.001)
        assert rank.poll() is None
        rank.kill()
    assert '  File "<string>", line 7 in <module>\n' in (tmp_path / "stack.0.txt").read_text()
