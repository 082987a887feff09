"""The Horovod that was built: each of its operations, in both frameworks, at two and three ranks."""

import json
from itertools import product
from pathlib import Path

import pytest
from training.ladder import cases
from training.launching import run_script

pytestmark = pytest.mark.full

pytest.importorskip("horovod", reason="Horovod is not installed")

SCRIPT = Path(__file__).with_name("horovod_operations.py")


@pytest.mark.parametrize(
    ("framework", "n"), cases(product(("torch", "tensorflow"), (2, 3)), lambda *case: case == ("torch", 2))
)
def test_every_operation(framework, n, tmp_path):
    file = tmp_path / "wrong.json"
    run_script(n, SCRIPT, framework, file, timeout_s=200)
    wrong = json.loads(file.read_text())
    assert len(wrong) == 41
    assert {name: troubles for name, troubles in wrong.items() if troubles} == {}
