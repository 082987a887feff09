"""What a rank imports of the package that starts ranks: its errors, not the notebook's side."""

import subprocess
import sys

import pytest

from workshop_lib import ranks
from workshop_lib.paths import ROOT
from workshop_lib.ranks import errors, session


@pytest.mark.parametrize("module", ["ranks.errors", "ranks.engine", "ranks.progress", "exercises.sync_sgd", "cli"])
def test_a_rank_loads_no_notebook(module):
    code = (
        f"import sys, workshop_lib.{module}\n"
        "print(*{'IPython', 'ipyparallel', 'ipywidgets', 'workshop_lib.ranks.cluster'} & set(sys.modules))"
    )
    shown = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT, timeout=60)
    assert shown.strip() == ""


def test_the_notebooks_side_is_there_when_it_is_used():
    for name in set(ranks.__all__) - {"RankError"}:
        assert getattr(ranks, name) is getattr(session, name)
    assert ranks.RankError is errors.RankError
    with pytest.raises(AttributeError, match="strat"):
        _ = ranks.strat


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/a/workshop_lib/b/workshop_lib/comm/ring.py", "workshop_lib/comm/ring.py"),
        ("/venv/lib/python3.11/site-packages/torch/nn.py", "torch/nn.py"),
        ("/home/me/mine.py", "/home/me/mine.py"),
    ],
)
def test_files_are_named_as_the_learner_knows_them(file, shown):
    assert errors._short(file) == shown
