"""The Horovod that was built: each of its operations, in both frameworks, at two and three ranks."""

import json
from pathlib import Path

import pytest
from ranks.launching import run_script

pytest.importorskip("horovod", reason="Horovod is not installed")

SCRIPT = Path(__file__).with_name("horovod_operations.py")


@pytest.mark.parametrize("n", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_every_operation(framework, n, tmp_path):
    file = tmp_path / "wrong.json"
    run_script(n, SCRIPT, framework, file, timeout_s=200)
    wrong = json.loads(file.read_text())
    assert len(wrong) == 41
    assert {name: troubles for name, troubles in wrong.items() if troubles} == {}
