"""Every command that a page or `make help` offers is one that its program takes.

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
FOLDERS_OF_MODULES = {"workshop_lib": "", "tools": "", "lessons": "notebooks"}
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


def check(command: list[str]) -> None:
    """Fail if a program of the workshop that this command runs doesn't take its arguments."""
    match command:
        case ["make", *words]:
            for made in made_by(*words):
                check(made)
        case ["srun" | ".venv/bin/mpiexec", *words]:
            started = [number for number, word in enumerate(words) if word.startswith(".venv/bin/")]
            check(words[started[0] :] if started else [])
        case [".venv/bin/torchrun", *words]:
            given = get_args_parser().parse_args(words)
            options = ["-m"] if given.module else []
            check([".venv/bin/python", *options, given.training_script, *given.training_script_args])
        case [".venv/bin/python", "-m", "mpi4py", *words]:
            check([".venv/bin/python", *words])
        case [".venv/bin/python", "-m", "workshop_lib", name, *words] | [
            "workshop" | ".venv/bin/workshop",
            name,
            *words,
        ]:
            check_workshop(name, words)
        case [".venv/bin/python", "-m", module, *words] if module.startswith(tuple(FOLDERS_OF_MODULES)):
            folder = FOLDERS_OF_MODULES[module.partition(".")[0]]
            check_options(ROOT / folder / f"{module.replace('.', '/')}.py", words)
        case [".venv/bin/python", file, *words] if not file.startswith("-"):
            check_options(ROOT / file, words)
        case ["bash", "-c", line]:
            for each in simple_commands(line):
                check(each)


def check_workshop(name: str, words: list[str]) -> None:
    """Let the command's parser take the words. A command may be named on a page without what it needs."""
    parser = commands.parser_of(name) if name != "--help" else None
    if parser and words:
        values, rest = parser.parse_known_args(words)
        assert not rest or hasattr(values, "rest"), f"workshop {name} doesn't take {rest}"


def check_options(file: Path, words: list[str]) -> None:
    """A program's text has all options among the words."""
    text = file.read_text()
    for option in re.findall(r"^--[a-z-]+", "\n".join(words), re.MULTILINE):
        assert f'"{option}"' in text, f"{file} has no option {option}"


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
        check(command)
        for word in command:
            file = ROOT / word.replace("mycluster", "perlmutter")  # CONTRIBUTING.md's recipe makes a new one
            assert word.partition("/")[0] not in (*FOLDERS, "tests") or file.exists(), f"{word} isn't there"


def test_programs_take_what_make_asks_of_them():
    for target in TARGETS:
        check(["make", target])


def test_a_test_calls_each_command_of_workshop():
    calls = re.compile(r"""\bworkshop\(\s*"([a-z-]+)"(?!, "--help")""")
    called = {name for path in TESTS.rglob("test_*.py") for name in calls.findall(path.read_text())}
    assert set(commands.COMMANDS) - called == {"engines"}, "test_lifetime.py starts these by a script"


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
    assert runs and all(run.startswith("make ") for run in runs)
    for run in runs:
        check(run.split())
    assert pythons and all(version in supported for version in pythons if version != "${{ matrix.python }}")
    assert all((ROOT / file).exists() for file in re.findall(r"'([\w/.]+)'", text)), "a file of a cache's key"


@pytest.fixture(scope="module")
def small_checkout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("workshop_lib", "tools", "notebooks/lessons"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
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
