"""Several sessions of one user on one host: none ends or removes what belongs to another one."""

import contextlib
import os
import shutil
import subprocess
import sys

import pytest
from needs import needs
from our_ranks import left_after

from workshop_lib import ranks
from workshop_lib.paths import ROOT
from workshop_lib.ranks.launch import agents

pytestmark = pytest.mark.full

# A line on its stdin has it use its ranks, then start others.
SESSION = """\
import sys
from workshop_lib import ranks
team = ranks.start(1)
print("ready", flush=True)
for _ in sys.stdin:
    used = team.run(max, 1, 2, show=False)
    ranks.stop()
    print(used, ranks.start(1).run(max, 3, 4, show=False), flush=True)
"""
CONTAINER = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


@contextlib.contextmanager
def session(before, checkout):
    """A function that has a session of this checkout go on, and returns what it printed."""
    process = subprocess.Popen(
        [*before, sys.executable, "-c", SESSION],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout), agents.FORK: "no"},  # one rank imports less than an agent
    )

    def go_on():
        process.stdin.write("\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    with process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield go_on
            process.stdin.close()
            assert process.wait(20) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("where", [pytest.param("container", marks=needs("root")), "another checkout"])
def test_sessions_start_ranks_beside_each_other(where, tmp_path):
    """They share the temporary folder and shared memory, and a container the checkout, too."""
    ranks.stop()
    before, checkout = CONTAINER, ROOT
    if where == "another checkout":
        before, checkout = [], tmp_path
        shutil.copytree(ROOT / "workshop_lib", checkout / "workshop_lib")
    with session(before, checkout) as go_on:
        team = ranks.start(1)
        assert go_on() == "[2] [4]"
        assert team.run(max, 1, 2, show=False) == [2]
        ranks.stop()
    assert not left_after(10)
