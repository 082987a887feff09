"""Every notebook as an assignment for nbgrader: nothing is missing, nothing given away, and nbgrader can use it."""

import ast
import re

import jupytext
import nbformat
import pytest
from command_line import workshop

from workshop_lib.classroom import generate, grading
from workshop_lib.exercises.judge import NotPassed
from workshop_lib.exercises.sources import YOURS

from lessons import start_here

SOURCES = {source.stem: source for source in generate.sources()}
FLAGS = ("grade", "solution", "locked", "task")
REGION = re.compile(rf"^( *){grading.BEGIN}\n.*?\n *{grading.END}$", re.MULTILINE | re.DOTALL)
MARKS = re.compile(rf"^ *(?:{grading.BEGIN}|{grading.END})\n?", re.MULTILINE)


def released(answer: str) -> str:
    """An answer's cell as students get it."""
    return REGION.sub(r"\1# YOUR CODE HERE\n\1raise NotImplementedError()", answer)


def solved(answer: str) -> str:
    """An answer's cell of a student who solved it."""
    return MARKS.sub("", answer)


def problems(notebook) -> list[str]:
    """What nbgrader would refuse: its schema, version 3, and the rules beside it."""
    found, ids = [], set()
    for cell in notebook.cells:
        about = dict(cell.metadata.get("nbgrader", {}))
        if not about:
            continue
        name, points = about.pop("grade_id", ""), about.pop("points", None)
        if about.pop("schema_version", 0) != 3 or set(about) != set(FLAGS):
            found.append(f"{name}: not the fields of version 3")
        if not all(isinstance(value, bool) for value in about.values()):
            found.append(f"{name}: flags are true or false")
        if not re.fullmatch(r"[a-zA-Z0-9_\-]+", name) or name in ids:
            found.append(f"{name!r}: not an id, or there twice")
        if about.get("grade") != isinstance(points, int | float):
            found.append(f"{name}: points are for graded cells")
        if cell.cell_type != "code" or (about.get("grade") and about.get("solution")):
            found.append(f"{name}: it would have to be graded by hand")
        if (grading.BEGIN in cell.source) != about.get("solution"):
            found.append(f"{name}: a solution that's not marked as one, or none")
        ids.add(name)
    return found


@pytest.fixture(scope="module", params=SOURCES)
def made(request):
    text, exercises = grading.assignment(SOURCES[request.param])
    return request.param, nbformat.reads(text, as_version=4), exercises


def test_nbgrader_can_use_it(made):
    _, notebook, exercises = made
    nbformat.validate(notebook)
    assert not problems(notebook)
    about = [cell.metadata["nbgrader"] for cell in notebook.cells if "nbgrader" in cell.metadata]
    graded = [each["grade_id"] for each in about if each["grade"]]
    assert graded == [f"check-{name.replace('.', '-')}" for name in exercises]
    assert {each["grade_id"] for each in about if each["solution"]} == {name.removeprefix("check-") for name in graded}
    assert all(each["locked"] and each["points"] == 1 for each in about if each["grade"])
    starts = [cell for cell in notebook.cells if cell.cell_type == "code" and "ranks.start(" in cell.source]
    assert all(cell.metadata["nbgrader"]["locked"] for cell in starts)


def test_no_exercise_is_missing_and_no_solution_given_away(made):
    stem, notebook, exercises = made
    learner = nbformat.read(generate.NOTEBOOKS / f"{stem}.ipynb", as_version=4)
    assert len(exercises) == sum(YOURS in cell.source for cell in learner.cells if cell.cell_type == "code")
    text = "\n".join(cell.source for cell in notebook.cells)
    assert not re.search(r"<(solution|stub)>|\{solution of|>Solution<|your code here", text)
    shown = "\n".join(released(cell.source) for cell in notebook.cells)
    for answer in (cell for cell in notebook.cells if grading.BEGIN in cell.source):
        for region in REGION.finditer(answer.source):
            assert region[0].splitlines()[1:-1] and "\n".join(region[0].splitlines()[1:-1]) not in shown


def python(code: str) -> str:
    """What a cell means to Python, whatever its comments are."""
    code = re.sub(r"^%%writefile \S+\.py\n", "", code)
    return "" if code.startswith("%%") else ast.dump(ast.parse(re.sub("^[%!].*", "pass", code, flags=re.MULTILINE)))


def test_the_answers_are_those_of_the_solution_notebook(made):
    stem, notebook, _ = made
    learner, solution = generate.split(SOURCES[stem].read_text(encoding="utf-8"), stem)
    pairs = zip(*(jupytext.reads(text, fmt="py:percent").cells for text in (learner, solution)), strict=True)
    wanted = [right.source for mine, right in pairs if mine.source != right.source and mine.cell_type == "code"]
    found = [at for at, cell in enumerate(notebook.cells) if grading.BEGIN in cell.source]
    assert len(found) == len(wanted)
    for at, right in zip(found, wanted, strict=True):
        answer, following = solved(notebook.cells[at].source), notebook.cells[at + 1]
        if python(answer) != python(right):  # the check is in the same cell
            assert python(f"{answer}\n{following.source.removesuffix('.must_pass()')}") == python(right), answer
        assert python(released(answer)) is not None, "a stub is Python, too"


@pytest.mark.usefixtures("healthy")
def test_the_solution_gets_the_point_but_neither_the_stub_nor_a_mistake_which_gets_its_hint():
    text, _ = grading.assignment(SOURCES["00_start_here"])
    cells = {cell.metadata.get("nbgrader", {}).get("grade_id"): cell for cell in nbformat.reads(text, 4).cells}
    answer, check = cells["whoami"].source, cells["check-whoami"].source

    def graded(cell: str):
        namespace = {"lesson": start_here, "__name__": "__main__"}
        exec(cell, namespace)
        return eval(check, namespace)

    assert graded(solved(answer)).passed
    with pytest.raises(NotPassed, match="not solved yet"):
        graded(released(answer))
    with pytest.raises(NotPassed, match="The rank comes first, then the size."):
        graded(solved(answer).replace("return comm.rank, comm.size", "return comm.size, comm.rank"))


def export(*words):
    ended = workshop("export-nbgrader", *words)
    return ended.exit_code, ended.output


def test_an_export_is_a_course(tmp_path):
    code, said = export("00_start_here", "10_compute_nodes", "--out", tmp_path)
    assert code == 0 and "2 points, for whoami, my_part" in said, said
    compile((tmp_path / "nbgrader_config.py").read_text(), "nbgrader_config.py", "exec")
    folders = {path.name for path in (tmp_path / "source").iterdir()}
    assert folders == {"00_start_here", "10_compute_nodes"}
    assert (tmp_path / "source" / "10_compute_nodes" / "scripts" / "job.sh").exists()
    text = (tmp_path / "source" / "00_start_here" / "00_start_here.ipynb").read_text()
    assert "(../01_mpi_basics/01_mpi_basics.ipynb)" in text, "links go to the next assignment's folder"
    (tmp_path / "nbgrader_config.py").write_text("mine = 1\n")
    assert export("05_ddp", "--out", tmp_path)[0] == 0
    assert (tmp_path / "nbgrader_config.py").read_text() == "mine = 1\n"


@pytest.mark.parametrize(
    ("names", "words"), [(["99_x"], "There's no notebook '99_x'"), (["05_ddp", "00_start_here"], "is there already")]
)
def test_what_cannot_be_exported_is_a_sentence_and_nothing_is_written(tmp_path, names, words):
    export("00_start_here", "--out", tmp_path)
    code, said = export(*names, "--out", tmp_path)
    assert code == 1 and words in said.replace("\n", " ") and "Traceback" not in said
    assert [path.name for path in (tmp_path / "source").iterdir()] == ["00_start_here"]
