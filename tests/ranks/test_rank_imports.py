"""What importing a module loads: on a rank no notebook, and no framework where none is needed."""

import json
import subprocess
import sys

import pytest

from workshop_lib import ranks
from workshop_lib.paths import ROOT
from workshop_lib.ranks import session
from workshop_lib.ranks.faults import rank_errors

NOTEBOOK = {"IPython", "ipyparallel", "ipywidgets", "workshop_lib.ranks.launch.cluster"}
FRAMEWORKS = {"torch", "tensorflow"}
# What each must not load, those that may load least first: one process imports them in this order.
MUST_NOT_LOAD = {
    "lessons.start_here.judge": {"mpi4py", *FRAMEWORKS, *NOTEBOOK},
    "workshop_lib.training.data.mnist": {"mpi4py", *FRAMEWORKS, *NOTEBOOK},
    "workshop_lib.training.data.shard": {"mpi4py", *FRAMEWORKS, *NOTEBOOK},
    "workshop_lib.training.callbacks": FRAMEWORKS | NOTEBOOK,
    "workshop_lib.training.equivalence": FRAMEWORKS | NOTEBOOK,
    "workshop_lib.training.record": FRAMEWORKS | NOTEBOOK,
    "workshop_lib.notebook.figures.accuracy": NOTEBOOK,
    "workshop_lib.ranks.faults.rank_errors": NOTEBOOK,
    "workshop_lib.ranks.call.engine": NOTEBOOK,
    "workshop_lib.training.progress": NOTEBOOK,
    "workshop_lib.training.publisher": NOTEBOOK,
    "lessons.synchronous_sgd.judge": NOTEBOOK,
    "workshop_lib.cli": NOTEBOOK,
}


@pytest.fixture(scope="module")
def loaded():
    """All modules that have been loaded once each of these is imported."""
    code = (
        "import importlib, json, sys, workshop_lib\n"
        "print(json.dumps({name: importlib.import_module(name) and list(sys.modules) for name in sys.argv[1:]}))"
    )
    return json.loads(subprocess.check_output([sys.executable, "-c", code, *MUST_NOT_LOAD], cwd=ROOT, timeout=60))


@pytest.mark.parametrize("module", MUST_NOT_LOAD)
def test_a_module_loads_no_more_than_it_may(loaded, module):
    assert module in loaded[module]
    assert not MUST_NOT_LOAD[module] & set(loaded[module])


def test_the_notebooks_side_is_there_when_it_is_used():
    for name in set(ranks.__all__) - {"RankError"}:
        assert getattr(ranks, name) is getattr(session, name)
    assert ranks.RankError is rank_errors.RankError
    with pytest.raises(AttributeError, match="strat"):
        _ = ranks.strat


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/a/workshop_lib/b/workshop_lib/training/collectives/ring.py", "workshop_lib/training/collectives/ring.py"),
        ("/venv/lib/python3.11/site-packages/torch/nn.py", "torch/nn.py"),
        ("/home/me/mine.py", "/home/me/mine.py"),
    ],
)
def test_files_are_named_as_the_learner_knows_them(file, shown):
    assert rank_errors.short_name(file) == shown
