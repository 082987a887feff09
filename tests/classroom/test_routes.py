"""The instructor's routes: what they name exists, their minutes add up, and people get the time that they need."""

import re

import nbformat
import pytest
from command_line import workshop

from workshop_lib.classroom import execute, generate, routes
from workshop_lib.errors import InputError
from workshop_lib.exercises import exercises

ROUTES = routes.load()
STEPS = list(dict.fromkeys(step for route in ROUTES.values() for step in route.steps))
PAGE = (routes.FOLDER / "steps.md").read_text(encoding="utf-8")


def headings(stem: str) -> set[str]:
    cells = nbformat.read(generate.NOTEBOOKS / f"{stem}.ipynb", as_version=4).cells
    found = {heading for _, _, under in routes.pieces(cells) for heading in under[1:]}
    return found | {heading + routes.OPENING for heading in found} | {routes.CORE}


@pytest.mark.parametrize("name", ROUTES)
def test_a_route_takes_the_minutes_of_its_name_and_a_shorter_one_leaves_slack(name):
    promised = {"45-minutes": 45, "90-minutes": 90, "two-hours": 120, "half-day": 240, "one-day": 540, "two-days": 960}
    assert ROUTES[name].minutes == promised.get(name, ROUTES[name].minutes)
    shorter = ("45-minutes", "90-minutes", "two-hours", "large-models", "failures")
    assert ROUTES[name].slack_minutes >= (ROUTES[name].minutes / 20 if name in shorter else 0)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step.title}, {step.minutes} min")
def test_every_section_exists_and_people_have_time_for_it(step):
    assert step.who in ("instructor", "everyone") and step.minutes > 0
    assert not step.notebook or set(step.sections) <= headings(step.notebook)
    assert routes.effort(step).minutes <= step.minutes


def test_the_page_has_what_to_say_at_each_step_and_nothing_else():
    assert set(re.findall(r"^## (.+)$", PAGE, re.MULTILINE)) == {step.title for step in STEPS}


def test_cells_are_those_of_the_sections_with_what_they_need_before_them():
    chosen = ROUTES["90-minutes"]
    steps = {at: step for at, step in enumerate(chosen.steps) if step.notebook == "02_synchronous_sgd"}
    cells = routes.assembled("02_synchronous_sgd", steps).cells
    of_step = [cell.metadata[routes.STEP] for cell in cells]
    assert of_step == sorted(of_step) and set(of_step) == set(steps), "each step has cells, in order"
    assert cells[0].source.startswith("import"), "the top of the notebook"
    assert "def average_gradients" in "".join(cell.source for cell in cells)
    alone = routes.assembled(
        "02_synchronous_sgd", {0: next(step for step in STEPS if step.title == "Equal, to the last bit")}
    )
    assert "def train_epoch" in "".join(cell.source for cell in alone.cells), "what it needs"


def test_headings_in_hints_and_code_are_none():
    text = "# A\n\n## B\n\n<details>\n\n```python\n# no heading\n```\n\n</details>\n\nwords\n\n### C"
    cells = [nbformat.v4.new_markdown_cell(text), nbformat.v4.new_code_cell("# %% x\n## y")]
    assert [under for _, _, under in routes.pieces(cells)] == [("A",), ("A", "B"), ("A", "B", "C"), ("A", "B", "C")]


def test_an_unknown_route_is_answered_with_all_of_them():
    with pytest.raises(InputError, match="45-minutes, 90-minutes, two-hours, half-day"):
        routes.route("5-minutes")
    ended = workshop("rehearse")
    assert ended.exit_code == 0 and ended.output.count("minutes,") == len(ROUTES)


def test_a_plan_has_a_clock_and_names_the_sections():
    ended = workshop("rehearse", "90-minutes", "--plan")
    assert ended.exit_code == 0 and "\n  1:25    85 min" in ended.output
    assert "5 of 90 minutes are slack" in ended.output
    assert "02_synchronous_sgd: Exercise 1 (normal): average the gradients" in ended.output


def fake_run(seconds: float, error: str = ""):
    """In place of running notebooks: every cell ran for so long."""

    def run_notebook(path, output, **_):
        notebook = nbformat.read(path, as_version=4)
        times = {
            "iopub.execute_input": "2026-01-01T00:00:00",
            "shell.execute_reply": f"2026-01-01T00:00:{seconds:05.2f}",
        }
        for cell in notebook.cells:
            cell.metadata["execution"] = times
        nbformat.write(notebook, output)
        return execute.Execution(path, seconds, 1 if error else None, error=error)

    return run_notebook


@pytest.fixture
def rehearsed(monkeypatch, tmp_path):
    monkeypatch.setattr(routes, "REHEARSED", tmp_path)

    def run(*arguments):
        monkeypatch.setattr(execute, "run_notebook", fake_run(*arguments))
        return workshop("rehearse", "45-minutes")

    return run


def test_promised_minutes_are_held_against_those_of_the_cells(rehearsed):
    ended = rehearsed(0.5)
    assert ended.exit_code == 0, ended.output
    ended = rehearsed(59.0)
    assert ended.exit_code == 1 and "TOO LONG" in ended.output and "Too little time for: " in ended.output


def test_a_cell_that_fails_ends_a_rehearsal(rehearsed):
    ended = rehearsed(0.5, "ValueError: boom")
    assert ended.exit_code == 1 and "boom" in ended.output


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["45-minutes", "90-minutes"])
def test_the_route_runs_in_the_time_that_it_promises(name):
    ended = workshop("rehearse", name)
    assert ended.exit_code == 0, ended.output


def test_a_learners_own_notebooks_and_answers_stay_out_of_a_rehearsal(tmp_path, monkeypatch):
    step = next(step for step in STEPS if step.title == "Equal, to the last bit")
    before = routes.effort(step), routes.Code.of(step.notebook).sources
    asked = tmp_path / f"{step.notebook}.ipynb"
    for scratched in (asked, exercises.solutions_of(asked)):
        scratched.parent.mkdir(exist_ok=True)
        scratched.write_text("{}")
    (tmp_path / "source").symlink_to(generate.NOTEBOOKS / "source")
    monkeypatch.setattr(generate, "NOTEBOOKS", tmp_path)
    assert (routes.effort(step), routes.Code.of(step.notebook).sources) == before
    monkeypatch.setattr(generate, "sources", lambda: [tmp_path / "source" / f"{step.notebook}.py"])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "progress.jsonl").write_text("from an earlier run")
    env = execute.without_learner(tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [f"{step.notebook}.ipynb", "solutions"]
    assert env["WORKSHOP_LEARNER_FILE"] == str(tmp_path / "run" / "progress.jsonl")
