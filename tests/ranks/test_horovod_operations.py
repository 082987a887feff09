"""The Horovod that was built: each of its operations, in both frameworks, at two and three ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workshop_lib.ranks import mpi

pytest.importorskip("horovod", reason="Horovod is not installed")

SCRIPT = Path(__file__).with_name("horovod_operations.py")


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_every_operation(framework, n):
    ran = subprocess.run(
        [*mpi.mpiexec(), "-n", str(n), sys.executable, str(SCRIPT), framework],
        env=os.environ | mpi.environment() | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    wrong = json.loads(ran.stdout.strip().splitlines()[-1])
    assert len(wrong) == 41
    assert {name: troubles for name, troubles in wrong.items() if troubles} == {}
