"""Slides: which cells a section needs, and what a projector shows of a text."""

import nbformat
import pytest
from command_line import workshop

from workshop_lib.classroom import needs, present, routes


def needed_by(*sources: str) -> list[int]:
    """What the last of these cells needs."""
    return needs.before(list(sources), [len(sources) - 1])


@pytest.mark.parametrize(
    ("cells", "needed"),
    [
        (["x = 1", "y = 2", "print(x)"], [0]),
        (["x = 1", "y = x", "z = y"], [0, 1]),
        (["x = 1", "x = 2", "print(x)"], [1]),
        (["x = 1", "x += 1", "print(x)"], [0, 1]),
        (["x = {}", "x['a'] = 1", "print(x)"], [0, 1]),
        (["x = 1", "x = 2\nprint(x)"], []),
        (["x = 1", "for x in range(3):\n    print(x)"], []),
        (["x = 1", "def f():\n    return x", "y = 2", "f()"], [0, 1]),
        (["x = 1", "def f(x):\n    return x", "f(2)"], [1]),
        (["import numpy as np", "class A:\n    b = np.pi", "A()"], [0, 1]),
        (["team = start()", "%%ranks\nx = 1", "x = 5", "%%ranks --on 0\nprint(x)"], [0, 1]),
        (["team = start()", "%%ranks\nx = 1", "x = 5", 'team.pull("x")'], [0, 1]),
        (["team = start()", "mine = ranks.current()"], [0]),
        (["team = start()", "x = 1", "team.push(x=x)", "%%ranks\nprint(x)"], [0, 1, 2]),
        (["team = start()", "team.restart()", "team.restart(4)", "team.n"], [0, 2]),
        (["team = start()", "%%ranks\nfrom mpi4py import MPI", "f = lambda: MPI.Wtime()", "team.run(f)"], [0, 1, 2]),
        (["folder = 1", "%%writefile {folder}/job.sh\nx", 'print("sh job.sh")'], [0, 1]),
    ],
)
def test_a_cell_needs_those_that_define_what_it_uses(cells, needed):
    assert needed_by(*cells) == needed


def test_a_section_needs_what_the_sections_before_it_define_and_no_more():
    equal = next(step for route in routes.load().values() for step in route.steps if step.title.startswith("Equal"))
    assert routes.before(equal) == [
        "One batch, in parts", "Exercise 1 (normal): average the gradients", "Exercise 2 (warm-up): the training loop",
    ]  # fmt: skip


def test_a_projector_shows_the_heading_and_the_first_sentences():
    long = " ".join(["A sentence has words."] * 15)
    assert present.short("## A\n\nFew words.") == "## A\n\nFew words."
    shown, folded = present.short(f"## A\n\n{long}\n\nMore.").split("\n\n<details><summary>more</summary>\n\n")
    assert shown.startswith("## A\n\nA sentence") and len(shown.split()) <= present.LEAD_WORDS + 2
    assert folded.endswith("More.\n\n</details>") and (shown + folded).count("words.") == 15
    assert present.short("The formula:\n\n$$x$$\n\nrest").startswith("The formula:\n\n$$x$$\n\n<details>")
    table = "| a | b |\n|---|---|\n| One. Two. | 3 |"
    assert present.short(table) == table


@pytest.fixture
def stage(monkeypatch, tmp_path):
    monkeypatch.setattr(present, "STAGE", tmp_path)
    monkeypatch.setattr(present, "SETTINGS", tmp_path / ".jupyter")
    return tmp_path


def test_a_route_gives_a_file_per_notebook_with_its_sections_folded_up(stage):
    ended = workshop("present", "--no-open", "45-minutes")
    assert ended.exit_code == 0, ended.output
    names = ["01_00_start_here", "02_02_synchronous_sgd", "03_07_large_batch"]
    assert sorted(file.stem for file in (stage / "45-minutes").glob("*.ipynb")) == names
    cells = nbformat.read(stage / "45-minutes" / f"{names[1]}.ipynb", as_version=4).cells
    headings = [cell for cell in cells if cell.source.startswith("## ")]
    assert [cell.source for cell in headings] == [
        "## One batch, in parts", "## Exercise 1 (normal): average the gradients", "## Equal, to the last bit",
        "## Exercise 3 (normal): do the ranks agree?", "## Next: [07_large_batch](03_07_large_batch.ipynb)",
    ]  # fmt: skip
    assert all(cell.metadata["jp-MarkdownHeadingCollapsed"] for cell in headings[:-1])
    prepares = [cell.source for cell in cells if cell.source.startswith("# what this section needs\n")]
    sections = [cell.source.removeprefix("## ") for cell in headings[:-1]]
    assert len(prepares) == len(sections)
    assert all(f'"{section}")' in source for section, source in zip(sections, prepares, strict=True))
    exercise = next(cell for cell in cells if "def average_gradients" in cell.source and cell.cell_type == "code")
    assert exercise.metadata["jupyter"]["source_hidden"], "a solution is folded up"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["5-minutes"], "'5-minutes' is neither a notebook nor a route. There are 45-minutes, "),
        (["05_ddp", "--section", "Nothing"], "05_ddp has no section 'Nothing'; it has 'How do processes"),
        (["45-minutes", "--section", "Ranks"], "45-minutes is a route: give --section with a notebook."),
    ],
)
def test_what_there_is_not_is_answered_in_one_sentence(stage, arguments, sentence):
    ended = workshop("present", "--no-open", *arguments)
    assert ended.exit_code == 1 and sentence in " ".join(ended.output.split())
    assert not list(stage.iterdir())
