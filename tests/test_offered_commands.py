"""Every command that a page or `make help` offers is one that its program takes, and that a test runs.

The commands are collected from the pages' blocks of bash and from inline code. A `make` command runs in a copy of the
Makefile, with a Python that only writes down what it's asked to run. Arguments are then read by the real parsers.
"""

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from torch.distributed.run import get_args_parser

from workshop_lib import rooms
from workshop_lib.cli import commands
from workshop_lib.paths import ROOT

TESTS = ROOT / "tests"
FOLDERS = ("assets", "book", "notebooks", "submissions")
PAGES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")) + sorted(ROOT.glob("*.md"))
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = re.findall(r"^([a-z-]+):.*##", MAKEFILE, re.MULTILINE)
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
BLOCK = re.compile(r"^( *)```bash\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:\w+=\S* )*(?:make|bash|workshop|\.venv/bin/\S+)(?: [^`\n]+)?)`")
SUBSTITUTED = re.compile(r"\$\((?:[^()]|\([^()]*\))*\)")  # $(a command), and $((a sum))
KEYWORDS = ("do", "while")
# Reads nothing, runs nothing: it adds its name and arguments to a file, at once, because `make -j2` runs two of them.
RECORDER = """\
#!/bin/sh
printf '%s\\0' ".venv/bin/${0##*/}" "$@" END >> "$RECORDED"
"""
# What runs here, whole, in a checkout that has one tiny notebook.
SMALLEST = ["run-notebooks", "gallery NAME=00_start_here", "bench NAME=start"]
TINY = """\
# %% [markdown] track="core path"
# # Tiny
#
# **Time** 5 minutes.

# %%
print("it ran")
"""
# The tests that run the other programs. Those of commands of `workshop` are found by their calls, and
# test_take_home.py has a test for each script in notebooks/scripts.
RUN_BY = {
    "jupyter lab": "test_offered_commands.py::test_make_lab_opens_the_first_notebook",
    "workshop engines": "ranks/test_lifetime.py::test_engines_fill_the_job_and_end_when_they_are_asked_to",
    "workshop_lib.lessons.large_batch.recipes": (
        "lessons/large_batch/test_recipes.py::test_the_command_writes_the_runs_that_the_table_reads"
    ),
    "workshop_lib.maintain.book": "maintain/test_book.py::test_the_book_is_built_without_a_warning",
    "workshop_lib.maintain.gpu_check": "maintain/test_gpu_check.py::test_without_a_gpu_it_says_so",
    "workshop_lib.maintain.generate": "maintain/test_generate.py::test_the_command_writes_or_says_which_line_is_wrong",
    "workshop_lib.maintain.lock": "maintain/test_setup.py::test_make_lock_writes_both_files",
    "workshop_lib/maintain/bootstrap.py": "maintain/test_setup.py::test_each_command_of_make_installs_what_it_says",
    "workshop_lib.lessons.forecasting.benchmark": (
        "lessons/forecasting/test_benchmarks.py::test_the_command_prints_one_table"
    ),
}
INSTALLED = ("ANY_PYTHON=true", f"BIN={Path(sys.executable).parent}")  # these tests' packages, without a set-up


def offered_on(page: Path) -> Iterator[list[str]]:
    """The words of each simple command on a page."""
    text = page.read_text(encoding="utf-8")
    for _, block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            yield from simple_commands(line)
    for line in INLINE.findall(text):
        yield from simple_commands(line)


def simple_commands(line: str) -> Iterator[list[str]]:
    """The commands in a line of bash, without redirections, variables before them and comments."""
    lexer = shlex.shlex(SUBSTITUTED.sub("VALUE", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    command: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set(";&|()<>"):
            yield from [command] if command else []
            command = []
        elif command or not (word in KEYWORDS or re.match(r"\w+=", word)):
            command.append(word)


def programs(command: list[str]) -> set[str]:
    """The programs of the workshop that a command runs. Fails if one of them doesn't take its arguments."""
    match command:
        case ["make", *words]:
            return {program for made in made_by(*words) for program in programs(made)}
        case ["srun" | ".venv/bin/mpiexec", *words]:
            started = [number for number, word in enumerate(words) if word.startswith(".venv/bin/")]
            return programs(words[started[0] :]) if started else set()
        case [".venv/bin/torchrun", *words]:
            given = get_args_parser().parse_args(words)
            options = ["-m"] if given.module else []
            return programs([".venv/bin/python", *options, given.training_script, *given.training_script_args])
        case [".venv/bin/python", "-m", "mpi4py", *words]:
            return programs([".venv/bin/python", *words])
        case [".venv/bin/python", "-m", "workshop_lib", *words] | ["workshop" | ".venv/bin/workshop", *words]:
            return {f"workshop {name}" for name in parsed(*words)}
        case [".venv/bin/python", "-m", module, *words] if module.startswith("workshop_lib"):
            return known(module, ROOT / f"{module.replace('.', '/')}.py", words)
        case [".venv/bin/python", file, *words] if not file.startswith("-"):
            return known(file, ROOT / file, words)
        case ["bash", "-c", line]:
            return {program for each in simple_commands(line) for program in programs(each)}
        case [".venv/bin/jupyter", name, *_]:
            return {f"jupyter {name}"}
    return set()


def parsed(name: str = "--help", *words: str) -> list[str]:
    """The command of `workshop` that was called, if any, once its parser has taken the words."""
    if name == "--help":
        return []
    parser = commands.parser_of(name)
    if words:  # a command may be named on a page without what it needs
        values, rest = parser.parse_known_args(words)
        assert not rest or hasattr(values, "rest"), f"workshop {name} doesn't take {rest}"
    return [name]


def known(program: str, file: Path, words: list[str]) -> set[str]:
    """The program in this file, unless it's a script to take home, once its text has all options among the words."""
    text = file.read_text()
    for option in re.findall(r"^--[a-z-]+", "\n".join(words), re.MULTILINE):
        assert f'"{option}"' in text, f"{program} has no option {option}"
    return set() if file.is_relative_to(ROOT / "notebooks" / "scripts") else {program}


@functools.cache
def made_by(*words: str) -> list[list[str]]:
    """The commands that `make` with these words runs from .venv, where nothing is built yet."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "Makefile").write_text(MAKEFILE)
        recorded = folder / "recorded"
        recorded.touch()
        for program in (folder / ".venv" / "bin" / "python", folder / ".venv" / "bin" / "jupyter"):
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(RECORDER)
            program.chmod(0o755)
        ran = in_folder(folder, *words, "ANY_PYTHON=.venv/bin/python", RECORDED=str(recorded), PYTHON="")
        assert ran.returncode == 0, ran.stderr
        return [line.split("\0") for line in recorded.read_text().split("\0END\0") if line]


def in_folder(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess:
    """Run `make` there, as if this test weren't run by one itself."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", *words]
    return subprocess.run(command, cwd=folder, env=env | variables, text=True, capture_output=True, timeout=250)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_programs_take_the_commands_of_a_page(page):
    for command in offered_on(page):
        programs(command)
        for word in command:
            file = ROOT / word.replace("mycluster", "perlmutter")  # CONTRIBUTING.md's recipe makes a new one
            assert word.partition("/")[0] not in (*FOLDERS, "tests") or file.exists(), f"{word} isn't there"


def test_a_test_runs_each_program_that_is_offered():
    commands_of_make = [["make", target] for target in TARGETS]
    offered = {program for each in commands_of_make for program in programs(each)}
    offered |= {program for page in PAGES for each in offered_on(page) for program in programs(each)}
    offered |= {f"workshop {name}" for name in (*commands.COMMANDS, *rooms.COMMANDS)}
    run = {program for words in SMALLEST for program in programs(["make", *words.split()])} | called() | set(RUN_BY)
    assert offered == offered & run, f"no test runs {offered - run}"
    for program, test in RUN_BY.items():
        file, _, name = test.partition("::")
        assert program in offered and f"def {name}(" in (TESTS / file).read_text(), f"{test} doesn't run {program}"


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_make_commands_on_supported_pythons(workflow):
    """What only GitHub runs: its file is valid YAML, and its commands and Pythons are the workshop's."""
    supported = SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])
    text = workflow.read_text()
    jobs = yaml.safe_load(text)["jobs"].values()
    pythons, runs = [], []
    for job in jobs:
        pythons += [row["python"] for row in job.get("strategy", {}).get("matrix", {}).get("include", [])]
        for step in job["steps"]:
            pythons += [step["with"]["python-version"]] if "setup-python" in step.get("uses", "") else []
            runs += [step["run"]] if "run" in step else []
    assert runs and all(run.startswith("make ") and programs(run.split()) for run in runs)
    assert pythons and all(version in supported for version in pythons if version != "${{ matrix.python }}")
    assert all((ROOT / file).exists() for file in re.findall(r"'([\w/.]+)'", text)), "a file of a cache's key"


def called() -> set[str]:
    """The commands that tests call as `workshop("NAME", …)`."""
    calls = re.compile(r"""\bworkshop\(\s*"([a-z-]+)"(?!, "--help")""")
    return {f"workshop {name}" for path in TESTS.rglob("test_*.py") for name in calls.findall(path.read_text())}


@pytest.fixture(scope="module")
def small_checkout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "workshop_lib", folder / "workshop_lib", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "README.md"):
        shutil.copy(ROOT / name, folder)
    (folder / "tests").symlink_to(TESTS)
    (folder / "notebooks" / "source").mkdir(parents=True)
    (folder / "notebooks" / "source" / "00_start_here.py").write_text(TINY)
    written = in_folder(folder, "notebooks", *INSTALLED)
    assert written.returncode == 0, written.stderr
    return folder


@pytest.mark.full
@pytest.mark.parametrize("words", SMALLEST)
def test_make_runs_it(words, small_checkout, small_mnist):
    ran = in_folder(small_checkout, *words.split(), *INSTALLED, WORKSHOP_MNIST=small_mnist)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_make_clean_keeps_the_environment_and_distclean_does_not(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    for folder in ("build", ".venv", ".uv", "workshop_lib/__pycache__"):
        (tmp_path / folder).mkdir(parents=True)
    assert in_folder(tmp_path, "clean").returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"Makefile", ".venv", ".uv", "workshop_lib"}
    assert not list((tmp_path / "workshop_lib").iterdir())
    assert in_folder(tmp_path, "distclean").returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"Makefile", "workshop_lib"}


@pytest.mark.full
def test_make_lab_opens_the_first_notebook(small_checkout, tmp_path):
    """In a browser that shows the page it was given, and ends the server."""
    browser = tmp_path / "browser"
    browser.write_text('#!/bin/sh\ncat "${1#file://}"\nkill -INT $PPID\n')
    browser.chmod(0o755)
    ran = in_folder(small_checkout, "lab", *INSTALLED, BROWSER=f"{browser} %s")
    [address] = re.findall(r'http-equiv="refresh" content="1;url=http://[^/"]+/lab/tree/([^?"]+)\?token=', ran.stdout)
    assert (small_checkout / "notebooks" / address).exists(), ran.stderr
