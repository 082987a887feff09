"""Which exercises there are, and where a learner stands: counted from the sources, whatever their notebooks hold."""

import jupytext
import pytest

from workshop_lib import paths
from workshop_lib.classroom import generate
from workshop_lib.exercises import exercises, learners_log
from workshop_lib.exercises.learners_log import Check
from workshop_lib.exercises.sources import YOURS
from workshop_lib.paths import SCRIPTS

from lessons.compute_nodes import judge as compute_nodes
from lessons.ddp import clinic
from lessons.large_batch import recipe_clinic


@pytest.fixture
def kernel_of(tmp_path, monkeypatch):
    """Makes this process the kernel of a learner's notebook of this name."""
    monkeypatch.setattr(paths, "LEARNER", tmp_path / "kept" / "progress.jsonl")

    def start(name):
        monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / f"{name}.ipynb"))

    return start


def solve(kernel_of, notebook, only_core=False):
    kernel_of(notebook)
    for name, place in exercises.by_notebook()[notebook].items():
        if place.is_core or not only_core:
            learners_log.keep(Check(name, True))


def core_of(notebook):
    return sum(place.is_core for place in exercises.by_notebook()[notebook].values())


ON_PATH = sum(len(names) for notebook, names in exercises.by_notebook().items() if exercises.is_on_core_path(notebook))


def here(notebook, solved):
    """How `standing` counts the exercises of a notebook."""
    return f"{solved} of {len(exercises.by_notebook()[notebook])} here"


def test_each_cell_to_be_written_has_its_exercise_in_the_core_or_deeper():
    found = exercises.by_notebook()
    assert list(found) == [source.stem for source in generate.sources()]
    for source in generate.sources():
        asked, _ = generate.split(source.read_text(encoding="utf-8"), source.name)
        cells = jupytext.reads(asked, fmt="py:percent").cells
        code = [(part, text) for part, at, text in generate.by_part(cells) if cells[at].cell_type == "code"]
        in_core = [part == "core" for part, text in code if YOURS in text]
        assert [place.is_core for place in found[source.stem].values()] == in_core, source


def test_where_one_stands_names_the_next_notebook_once_the_core_here_is_solved(kernel_of):
    kernel_of("00_start_here")
    first, second = core_of("00_start_here"), core_of("01_mpi_basics")
    assert exercises.standing("00_start_here") == f"{here('00_start_here', 0)}, 0 of {ON_PATH} on the core path"
    solve(kernel_of, "00_start_here")
    solve(kernel_of, "01_mpi_basics", only_core=True)
    so_far = f"{first + second} of {ON_PATH} on the core path"
    assert exercises.standing("00_start_here") == f"{here('00_start_here', first)}, {so_far}, next: 02"
    assert exercises.standing("01_mpi_basics") == f"{here('01_mpi_basics', second)}, {so_far}, next: 02"
    assert exercises.standing("02_synchronous_sgd") == f"{here('02_synchronous_sgd', 0)}, {so_far}"
    for name in filter(exercises.is_on_core_path, exercises.by_notebook()):
        solve(kernel_of, name)
    last = len(exercises.by_notebook()["08_scaling_curves"])
    everything = f"{ON_PATH} of {ON_PATH} on the core path"
    assert exercises.standing("08_scaling_curves") == f"{here('08_scaling_curves', last)}, {everything}"
    assert exercises.standing("my_copy") == ""


def test_every_kind_of_check_is_kept_and_says_where_one_stands(kernel_of, tmp_path):
    kernel_of("05_ddp")
    assert clinic.diagnoses(clinic.RUNS | {"A": "one rank is slow"}).standing == ""
    assert repr(clinic.diagnoses(clinic.RUNS)).endswith(f"\n{here('05_ddp', 1)}, 1 of {ON_PATH} on the core path")
    kernel_of("07_large_batch")
    assert here("07_large_batch", 1) in repr(recipe_clinic.diagnoses(recipe_clinic.RUNS))
    kernel_of("10_compute_nodes")
    assert here("10_compute_nodes", 1) in repr(compute_nodes.job(SCRIPTS / "job.sh"))
    kept = [(event["notebook"], event["exercise"], event["passed"]) for event in learners_log.kept()]
    assert kept == [
        ("05_ddp", "diagnoses", False),
        ("05_ddp", "diagnoses", True),
        ("07_large_batch", "diagnoses", True),
        ("10_compute_nodes", "job.sh", True),
    ]


def test_an_open_check_without_a_not_implemented_error_does_not_ask_to_replace_one():
    for verdict in (clinic.diagnoses({"A": ...}), recipe_clinic.diagnoses({})):
        assert verdict.passed is None and "Write a diagnosis" in verdict.headline
