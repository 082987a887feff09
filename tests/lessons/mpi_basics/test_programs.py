"""A learner's program is started with mpiexec, and judged by what it prints."""

import ast
import socket
import textwrap

import pytest

from workshop_lib.classroom import generate

from lessons.mpi_basics import programs

HOST = socket.gethostname()
SAID = "".join(f"rank {rank} of 3 on {HOST}\n" for rank in range(3))
TOTAL = "3 ranks on 1 hosts\n"


def failed(output):
    return next((prop for prop in programs.hello_properties(output) if not prop.holds), None)


@pytest.mark.parametrize("output", [SAID + TOTAL, TOTAL.replace("hosts", "host") + "noise\n" + SAID])
def test_a_right_output_passes_in_any_order(output):
    assert failed(output) is None


@pytest.mark.parametrize(
    ("output", "hint"),
    [
        (f"rank 0 of 1 on {HOST}\n" * 3, "rank and size of `MPI.COMM_WORLD`"),
        (SAID + SAID + TOTAL, "rank and size of `MPI.COMM_WORLD`"),
        (SAID.replace(f" on {HOST}", "") + TOTAL, "`socket.gethostname()`"),
        (SAID.replace(HOST, "elsewhere") + TOTAL, "`socket.gethostname()`"),
        (SAID + TOTAL.replace("1", "3"), "print '3 ranks on 1 hosts' there"),
        (SAID + 3 * TOTAL, "nowhere else"),
    ],
)
def test_a_wrong_output_gets_its_hint(output, hint):
    assert hint in failed(output).hint


def program(solved, tmp_path):
    """hello.py, as the notebook writes it."""
    source = generate.NOTEBOOKS / "source" / "01_mpi_basics.py"
    text = generate.split(source.read_text(encoding="utf-8"), source.name)[solved]
    cell = text.partition("# %%writefile {folder}/hello.py\n")[2].partition("\n# %%")[0]
    path = tmp_path / "hello.py"
    path.write_text(textwrap.dedent(cell))
    ast.parse(path.read_text())
    return path


def test_the_notebooks_program_passes_and_its_stub_is_not_started(tmp_path, capsys):
    assert programs.hello(program(False, tmp_path)).passed is None
    assert capsys.readouterr().out == ""
    verdict = programs.hello(program(True, tmp_path))
    assert verdict.passed, verdict
    assert TOTAL in capsys.readouterr().out


def test_a_program_that_fails_is_not_waited_for(tmp_path, capsys):
    path = tmp_path / "hello.py"
    path.write_text(
        "from mpi4py import MPI\nif MPI.COMM_WORLD.rank == 1: raise ValueError('broken')\nMPI.COMM_WORLD.Barrier()\n"
    )
    verdict = programs.hello(path)
    assert verdict.passed is False
    assert "exit code" in verdict.failed
    assert "ValueError: broken" in capsys.readouterr().out


def test_the_solution_among_the_hints_is_the_end_of_the_program(tmp_path):
    given = program(False, tmp_path).read_text().partition("raise NotImplementedError")[0]
    rest = program(True, tmp_path).read_text().removeprefix(given).splitlines()
    assert len(rest) == 3
    text = (generate.NOTEBOOKS / "source" / "01_mpi_basics.py").read_text(encoding="utf-8")
    hint = ["```python", *rest, "```"]
    assert "\n".join(f"# {line}" for line in hint) in text


@pytest.mark.parametrize(
    ("script", "error"),
    [("print('done')", ""), ("import time; print('waits', flush=True); time.sleep(60)", "had not finished after")],
)
def test_a_program_is_started_as_in_a_terminal_and_its_failure_is_printed(script, error, tmp_path, capsys):
    path = tmp_path / "program.py"
    path.write_text(script)
    programs.mpiexec(2, "python", path, timeout_s=2)
    output = capsys.readouterr().out
    assert "mpiexec -n 2 python" in output
    assert ("done" in output) == (not error)
    assert error in output
