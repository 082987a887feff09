"""The page on JAX beside 11: its program prints what the page says. No other part of the workshop needs JAX."""

import re
import subprocess
import sys

import pytest
from needs import needs

from workshop_lib.paths import ROOT


@pytest.mark.exhaustive
@needs("jax")
def test_the_program_prints_what_the_page_says(tmp_path):
    """8 s."""
    page = (ROOT / "book" / "jax.md").read_text()
    [program] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    [expected] = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "two_layers.py"
    path.write_text(program)
    ran = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120)
    printed, expected = (re.sub(r"JAX [\d.]+", "JAX", text) for text in (ran.stdout, expected))
    assert printed == expected, ran.stderr
