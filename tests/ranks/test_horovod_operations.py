"""The Horovod that was built: each of its operations, in both frameworks, at two and three ranks."""

import json
from pathlib import Path

import pytest
from ranks.launching import run_script

pytest.importorskip("horovod", reason="Horovod is not installed")

SCRIPT = Path(__file__).with_name("horovod_operations.py")


@pytest.mark.parametrize(
    ("framework", "n"),
    [
        ("torch", 2),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in (("torch", 3), ("tensorflow", 2), ("tensorflow", 3))
        ),
    ],
)
def test_every_operation(framework, n, tmp_path):
    file = tmp_path / "wrong.json"
    run_script(n, SCRIPT, framework, file, timeout_s=200)
    wrong = json.loads(file.read_text())
    assert len(wrong) == 41
    assert {name: troubles for name, troubles in wrong.items() if troubles} == {}
