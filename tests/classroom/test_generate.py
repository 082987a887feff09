import json
import signal
import sys

import pytest

from workshop_lib.classroom import execute as executing
from workshop_lib.classroom import generate
from workshop_lib.exercises import exercises
from workshop_lib.exercises.sources import YOURS

SOURCE = """# %% [markdown]
# # Average
# Divide by the number of ranks.

# %%
def average(total, world_size):
    # <solution>
    mean = total / world_size
    return mean
    # <stub>
    # mean = ...  # divide by what?
    #     # deeper
    # # a comment stays

    # return mean
    # </stub>
    # </solution>


# %%
for rank in range(2):
    # <solution>
    print(rank)
    # </solution>

# %%
# <solution>
x = 1
# <stub>
# x = None
# </stub>
# </solution>
x

# %%
# %%ranks --timeout 5
print("here")

# %%
x
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "03_average.py").write_text(SOURCE)
    (tmp_path / "source" / "helper.py").write_text("not a notebook")
    return tmp_path


def cells(path):
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]


def test_learner_gets_stubs_and_solution_gets_code(folder):
    written = generate.write(folder)
    assert written == [folder / "03_average.ipynb", folder / "solutions" / "03_average_solutions.ipynb"]
    learner, solution = map(cells, written)
    assert learner[1] == (
        "def average(total, world_size):\n    mean = ...  # divide by what?\n        # deeper\n"
        "    # a comment stays\n\n    return mean"
    )
    assert solution[1] == ("def average(total, world_size):\n    mean = total / world_size\n    return mean")
    assert learner[2] == "for rank in range(2):\n    ...  # your code here"
    assert (learner[3], solution[3]) == ("x = None\nx", "x = 1\nx")
    assert learner[4] == solution[4] == '%%ranks --timeout 5\nprint("here")'
    for path in written:
        text = path.read_text()
        assert "<solution>" not in text and "<stub>" not in text


def test_notebooks_have_no_outputs_and_a_kernel_and_writing_again_changes_nothing(folder):
    written = {path: path.read_bytes() for path in generate.write(folder)}
    for content in written.values():
        notebook = json.loads(content)
        assert notebook["metadata"] == generate.METADATA
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert code and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert generate.write(folder) == []
    assert {path: path.read_bytes() for path in written} == written


def test_ids_are_unique_and_an_edit_leaves_the_others_alone(folder):
    def ids():
        notebook = json.loads((folder / "03_average.ipynb").read_text())
        return [cell["id"] for cell in notebook["cells"]]

    generate.write(folder)
    before = ids()
    assert len(set(before)) == len(before)
    source = folder / "source" / "03_average.py"
    source.write_text(SOURCE.replace("Divide by", "Divide it by"))
    generate.write(folder)
    assert ids()[1:] == before[1:] and ids()[0] != before[0]


def test_the_first_line_of_a_fenced_shell_script_is_kept(folder):
    text = "# %% [markdown]\n# # Jobs\n# ```bash\n# #!/bin/bash\n# #SBATCH --nodes=1\n# ```\n"
    (folder / "source" / "03_average.py").write_text(text)
    notebooks = [content for path, content in generate.render(folder).items() if path.suffix == ".ipynb"]
    assert [json.loads(each)["cells"][0]["source"][-4:-1] for each in notebooks] == [
        ["```bash\n", "#!/bin/bash\n", "#SBATCH --nodes=1\n"]
    ] * 2


def test_drift_is_found(folder):
    learner, solution = generate.write(folder)
    (folder / "Untitled.ipynb").write_text("a learner's own notebook")
    assert generate.drifted(folder) == []
    learner.write_text(learner.read_text().replace("Divide", "Multiply"))
    orphan = folder / "09_gone.ipynb"
    orphan.write_text("{}")
    solution.unlink()
    assert generate.drifted(folder) == [learner, solution, orphan]
    generate.write(folder)
    assert generate.drifted(folder) == [orphan]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x\n# <solution>\ny\n", "2: '# <solution>': this marker"),
        ("x\n\n# </solution>\n", "3: '# </solution>': this marker"),
        ("# <solution>\n# </solution>\n# <stub>\n# x\n# </stub>\n", "3: '# <stub>': this marker"),
        ("# <solution>\nx\n# <stub>\n# y\n# </solution>\nx\n", "1: '# <solution>': this marker"),
        ("# <solution>\n# <stub>\n# x\n\ny = 1\n# </stub>\n# </solution>\n", "1: '# <solution>': this marker"),
        ("# <solution>\nx\n# %%\n# </solution>\n", "1: '# <solution>': this marker"),
    ],
)
def test_markers_that_do_not_pair_are_named(text, complaint):
    with pytest.raises(generate.SourceError, match=f"^01_x.py:{complaint}"):
        generate.split(text, "01_x.py")


TIMED = """# %% [markdown]
# # Title
# **Time** is computed. **Needs** nothing.
#
# <details><summary>Solution</summary>
#
# {solution of add}
#
# </details>
#
# ## Exercise 1 (normal): add

# %%
def add(a, b):
    # <solution>
    # the comment stays
    return a + b
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>

# %% [markdown]
# One two three.
#
# ## Deeper: more
# Four five.

# %%
guess = predict("How many?", 0, 10)

y = model.predict(2)

# %% [markdown]
# ## Remember
# Six, in [scripts](scripts).
"""


def test_minutes_are_computed_for_the_core_and_what_is_deeper(folder):
    source = folder / "source" / "04_timed.py"
    source.write_text(TIMED)
    learner, _ = generate.split(TIMED, "x")
    of_parts = generate.efforts(generate.jupytext.reads(learner, fmt="py:percent").cells, {"core": 30, "deeper": 60})
    assert of_parts["core"] == generate.Effort(words=20, code_lines=2, cells=1, exercise_minutes=12, run_s=30)
    assert of_parts["deeper"] == generate.Effort(words=4, code_lines=2, cells=1, predictions=1, run_s=60)
    effort = generate.Effort(260, 24, cells=6, predictions=3, exercise_minutes=25, run_s=60)
    assert effort.minutes == 2 + 2 + 2 + 3 + 25 + 2
    generate.write(folder)
    assert "[scripts](scripts)" in cells(folder / "04_timed.ipynb")[-1]
    assert "[scripts](../scripts)" in cells(folder / "solutions" / "04_timed_solutions.ipynb")[-1]
    said = "**Time** 13 minutes for the core, 2 more for the sections marked *Deeper*, plus what the runs take."
    assert said in cells(folder / "04_timed.ipynb")[0]
    (folder / "source" / generate.RUN_SECONDS).write_text(json.dumps({"04_timed": {"core": 60, "deeper": 60}}))
    generate.write(folder)
    said = "**Time** 15 minutes for the core, 4 more for the sections marked *Deeper*. **Needs** nothing."
    assert said in cells(folder / "04_timed.ipynb")[0]


def test_scripts_that_a_cell_prints_are_read_too():
    printed = [
        'mine = lesson.check.to_edit("one_process.py", "mine.py")',
        'take_home.marked("one_process.py", "main")',
        'take_home.marked("one_process.py", "def main", 1)',
    ]
    whole, marked, neighbors = [len(generate.printed(code)) for code in printed]
    assert whole == marked > neighbors > 0
    changes = generate.printed('take_home.diff("one_process.py", "ddp.py")')
    assert changes and all(line[0] in "+-" for line in changes)
    effort = generate.Effort()
    effort.add("code", 'take_home.diff("one_process.py", "ddp.py")')
    assert effort.code_lines == 1 + sum(map(generate.is_read, changes))


def test_a_hint_shows_the_solution_of_the_function_it_names(folder):
    source = folder / "source" / "04_timed.py"
    source.write_text(TIMED)
    generate.write(folder)
    for path in (folder / "04_timed.ipynb", folder / "solutions" / "04_timed_solutions.ipynb"):
        assert "```python\ndef add(a, b):\n    # the comment stays\n    return a + b\n```" in cells(path)[0]
    source.write_text(TIMED.replace("of add", "of subtract"))
    with pytest.raises(
        generate.SourceError, match=r"04_timed.py:7: \{solution of subtract\}, but there is no function"
    ):
        generate.render(folder)


def test_a_heading_of_an_exercise_says_how_hard_it_is(folder):
    (folder / "source" / "04_timed.py").write_text(TIMED.replace("Exercise 1 (normal): add", "Exercise 1 (easy): add"))
    with pytest.raises(generate.SourceError, match="04_timed.py:11: 'Exercise.*doesn't say how hard it is"):
        generate.render(folder)


def test_every_exercise_counts_once():
    for source in generate.sources():
        learner, _ = generate.split(source.read_text(encoding="utf-8"), source.name)
        cells = generate.jupytext.reads(learner, fmt="py:percent").cells
        pieces = [(text, under[-1]) for _, text, under in generate.pieces(cells)]
        exercises = [
            text.partition("\n")[0].lstrip("# ") for text, _ in pieces if generate.EXERCISE.match(text.lstrip("# "))
        ]
        assert exercises == [heading for text, heading in pieces if YOURS in text], source.name


def test_a_hint_shows_a_method_or_a_file_that_a_cell_writes():
    method = "class Sum:\n    def add(self, a, b):\n        return a + b\n"
    file = "# %%writefile {folder}/changes.py\n# <solution>\nx = 1\n# <stub>\n# x = ...\n# </stub>\n# </solution>\n"
    asked = "# %% [markdown]\n# {solution of Sum.add}\n# {solution of changes.py}\n"
    shown = generate.with_hints(f"{asked}\n# %%\n{method}\n# %%\n{file}", "05_sum.py")
    assert "# ```python\n# def add(self, a, b):\n#     return a + b\n# ```\n# ```python\n# x = 1\n# ```\n" in shown


def test_the_overview_lists_every_notebook_with_its_minutes_and_what_is_solved(folder, monkeypatch):
    kept = [
        {"what": "check", "notebook": "02_timed", "exercise": "add", "passed": passed} for passed in (False, True, True)
    ]
    monkeypatch.setattr(exercises.learners_log, "kept", lambda: [*kept, {"what": "training", "notebook": "02_timed"}])
    asked = TIMED.replace("# %% [markdown]\n# One", "# %%\nlesson.check.add(add)\n\n# %% [markdown]\n# One")
    asked = asked.replace("# %% [markdown]", '# %% [markdown] track="core path"', 1)
    (folder / "source" / "02_timed.py").write_text(asked)
    (folder / "source" / "03b_more.py").write_text(asked.replace("core path", "measuring"))
    (folder / "source" / generate.RUN_SECONDS).write_text(json.dumps({"02_timed": {"core": 60, "deeper": 60}}))
    generate.write(folder)
    solved = folder / "02_timed.ipynb"
    solved.write_text(solved.read_text().replace(YOURS, "mine"))  # the learner's own notebook has no stub left
    rows = generate.overview("03_average", folder).splitlines()
    assert rows[2:] == [
        "| **core path** | [02 Title](02_timed.ipynb) (15) ✓ | 15 min | 1 of 1 |",
        "| measuring | [03b Title](03b_more.ipynb) (15) | 15 min | 0 of 1 |",
    ]


def test_the_command_writes_or_says_which_line_is_wrong(folder, capsys):
    assert generate.main(folder) == 0
    assert "03_average.ipynb" in capsys.readouterr().out
    (folder / "source" / "03_average.py").write_text("# <solution>\n")
    assert generate.main(folder) == 1
    assert "03_average.py:1: '# <solution>': this marker" in capsys.readouterr().err


@pytest.fixture
def execute(tmp_path):
    """Executes a notebook of these cells; returns the outcome and the outputs of each."""

    def run(*code, **limit):
        path, output = tmp_path / "05_x.ipynb", tmp_path / "out" / "05_x.ipynb"
        path.write_text(generate.notebook_json("".join(f"# %%\n{cell}\n\n" for cell in code)))
        outcome = executing.run_notebook(path, output, folder=tmp_path, **limit)
        return outcome, [cell["outputs"] for cell in json.loads(output.read_text())["cells"]]

    return run


def test_a_notebook_is_executed_in_its_folder_with_text_progress_and_timed(execute, tmp_path):
    shown = "import os, sys, time; print(os.getcwd(), os.environ['WORKSHOP_WIDGETS'], sys.executable); time.sleep(0.2)"
    outcome, [[output]] = execute(shown)
    seconds = executing.run_seconds(tmp_path / "out" / "05_x.ipynb")
    assert 0.2 <= seconds["core"] < outcome.seconds and seconds["deeper"] == 0
    assert outcome.error == "" and "passed in" in str(outcome)
    assert "".join(output["text"]).split() == [str(tmp_path), "0", sys.executable]


def test_the_cell_that_failed_is_named_and_the_notebook_kept(execute):
    outcome, outputs = execute("print('fine')", "1 / 0", "print('never')")
    assert outcome.cell == 2 and outcome.source == "1 / 0"
    assert "ZeroDivisionError" in outcome.error and "\x1b" not in str(outcome)
    assert "failed in cell 2" in str(outcome)
    assert outputs[0] and outputs[1] and not outputs[2]


@pytest.mark.parametrize(
    ("code", "limit_s", "error"),
    [("import time\ntime.sleep(600)", 1, "timed out"), ("import os\nos._exit(1)", 20, "kernel died")],
)
def test_a_cell_that_never_ends_is_ended_and_a_dead_kernel_reported(execute, code, limit_s, error):
    outcome, _ = execute(code, cell_timeout_s=limit_s)
    assert outcome.cell == 1 and error in outcome.error.lower()


@pytest.mark.full
def test_a_kernel_that_dies_before_its_first_cell_is_started_once_more(execute, tmp_path, monkeypatch):
    once = "import os\nif not os.path.exists('died'):\n    open('died', 'w').close()\n    os._exit(1)\n"
    (tmp_path / "sitecustomize.py").write_text(once)  # of the kernel alone, which starts in this folder
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcome, [[output]] = execute("print('fine')")
    assert not outcome.error and output["text"] == ["fine\n"]
    (tmp_path / "sitecustomize.py").write_text("import os\nos._exit(1)\n")
    outcome, _ = execute("print('fine')")
    assert outcome.cell is None and outcome.error == executing.DIED
    assert "failed before its first cell" in str(outcome)
    with pytest.raises(KeyboardInterrupt):  # Ctrl-C still ends the process, and doesn't wait for the next notebook
        signal.raise_signal(signal.SIGINT)
    (tmp_path / "sitecustomize.py").unlink()
    outcome, _ = execute("print('fine')")
    assert not outcome.error


def test_a_letter_puts_a_notebook_after_another_of_the_same_number(folder):
    for name in ("03b_more", "04_next", "03bb_not_a_notebook"):
        (folder / "source" / f"{name}.py").write_text("# %%\nx = 1\n")
    assert [path.stem for path in generate.sources(folder)] == ["03_average", "03b_more", "04_next"]
    generate.write(folder)
    (folder / "source" / "03b_more.py").unlink()
    assert folder / "03b_more.ipynb" in generate.drifted(folder)
