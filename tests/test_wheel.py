"""The library as a wheel: complete, and at work in environments that have PyTorch and only what the wheel asks for.

The environments are made of links to packages that are installed here, so nothing is downloaded.
"""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from workshop_lib.paths import ROOT

pytestmark = pytest.mark.full
OURS = "distributed-dl-workshop"
SCRIPT = ROOT / "tests" / "examine" / "scripts" / "ddp.py"
# A network that is trained by calls that DDP doesn't see.
UNWRAPPED = (
    ("model = DistributedDataParallel(model)", "ddp = DistributedDataParallel(model)"),
    ("model.module", "ddp.module"),
    ("contextlib.nullcontext() if last else model.no_sync()", "contextlib.nullcontext()"),
)
NOTEBOOKS = 'pip install "distributed-dl-workshop[notebooks]"'
CHECKOUT = "Run it in a checkout"
RECORD = ROOT / "assets" / "results" / "demo.jsonl"
# What each command says that does without something it needs.
COMMANDS = {
    "train": NOTEBOOKS,
    "sweep --ranks 1,2": NOTEBOOKS,
    f"plot {RECORD}": NOTEBOOKS,
    "engines start --ranks 2": NOTEBOOKS,
    "preflight --ranks 2": NOTEBOOKS,
    "train --backend ddp": "MNIST comes with the workshop's checkout",
    **dict.fromkeys(("rehearse", "present 45-minutes", "export-nbgrader", "share x", "board x"), CHECKOUT),
}
IN_A_NOTEBOOK = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in (
    "%load_ext workshop_lib",
    "from workshop_lib import ranks; team = ranks.start(2)",
    "%%ranks\\nfrom mpi4py.MPI import COMM_WORLD as world; print(f'rank {world.rank} of {world.size}')",
    "ranks.stop()",
):
    shell.run_cell(cell).raise_error()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy, because a build writes beside its sources."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "workshop_lib", copy / "workshop_lib", ignore=shutil.ignore_patterns("__pycache__"))
    build = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=copy, capture_output=True, check=True, timeout=60)
    (made,) = (copy / "dist").glob("*.whl")
    return made


class Environment:
    """A virtual environment that has PyTorch, the wheel, and what the wheel asks for with this extra."""

    def __init__(self, folder: Path, wheel: Path, extra: str = ""):
        venv.create(folder / "venv", symlinks=True)
        (self.site,) = (folder / "venv" / "lib").glob("python3*/site-packages")
        self.empty = folder / "empty"  # where the commands run
        self.empty.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.site)
        self.added: set[tuple[str, str]] = set()
        self._add(Requirement("torch"))
        self._add(Requirement(f"{OURS}[{extra}]" if extra else OURS))

    def _add(self, wanted: Requirement) -> None:
        """Link the files of a package that is installed here, and those of all packages that it needs."""
        for extra in ("", *wanted.extras):
            if (wanted.name.lower(), extra) in self.added:
                continue
            self.added.add((wanted.name.lower(), extra))
            path = [str(self.site)] if wanted.name == OURS else sys.path
            (package, *_) = importlib.metadata.distributions(name=wanted.name, path=path)
            if wanted.name != OURS:
                for file in package.files or []:
                    # A package's files outside site-packages are linked one by one, for example mpiexec.
                    part = file if file.parts[0] == ".." else Path(file.parts[0])
                    self._link(Path(package.locate_file(part)), self.site / part)
            for each in map(Requirement, package.requires or []):
                if each.marker is None or each.marker.evaluate({"extra": extra}):
                    self._add(each)

    def _link(self, existing: Path, link: Path) -> None:
        calls_this_python = ".." in link.parts and existing.is_file() and existing.read_bytes()[:2] == b"#!"
        if existing.exists() and not os.path.lexists(link) and not calls_this_python:
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(existing.resolve())

    def run(self, *words: object, limit_s: float = 100) -> subprocess.CompletedProcess:
        """Run this environment's Python with these words in an empty folder."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "WORKSHOP_"))}
        python = self.site.parents[2] / "bin" / "python"
        return subprocess.run(
            [python, *map(str, words)],
            cwd=self.empty,
            env=clean | {"XDG_CACHE_HOME": str(self.empty.parent / "cache"), "OUT": str(self.empty.parent)},
            capture_output=True,
            text=True,
            timeout=limit_s,
        )

    def workshop(self, *words: object) -> subprocess.CompletedProcess:
        return self.run("-m", "workshop_lib", *words)

    def written(self) -> list[Path]:
        """What was written into the empty folder, or beside the installed library."""
        return [
            *self.empty.iterdir(),
            *(self.site / name for name in ("build", "progress") if (self.site / name).exists()),
        ]


@pytest.fixture(scope="module")
def bare(tmp_path_factory, wheel):
    return Environment(tmp_path_factory.mktemp("bare"), wheel)


def test_every_file_of_the_library_is_in_the_wheel(wheel):
    listed = subprocess.check_output(["git", "ls-files", "workshop_lib"], cwd=ROOT, text=True).splitlines()
    assert set(listed) <= set(zipfile.ZipFile(wheel).namelist())


def edited(path: Path, edits: tuple[tuple[str, str], ...]) -> Path:
    source = SCRIPT.read_text()
    for old, new in edits:
        assert old in source
        source = source.replace(old, new)
    path.write_text(source)
    return path


@pytest.mark.parametrize("edits", [(), UNWRAPPED], ids=["right", "faulty"])
def test_a_script_is_examined_with_pytorch_alone(bare, tmp_path, edits):
    ran = bare.workshop("examine", "--json", "--", edited(tmp_path / "train.py", edits))
    wrong = [finding["seen"] for finding in json.loads(ran.stdout)["findings"] if finding["level"] == "wrong"]
    assert len(wrong) == bool(edits), ran.stderr
    assert (ran.returncode == 3) == bool(edits)
    assert not edits or "the script calls the model itself and not its DDP wrapper" in wrong[0]
    assert not bare.written()


def test_a_script_runs_dry_on_512_ranks_with_pytorch_alone(bare, tmp_path):
    script = edited(tmp_path / "train.py", (("Points(256,", "Points(32_768,"),))
    ran = bare.workshop("dryrun", script, "--world-size", 512, "--machine", "h100", "--json")
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["world_size"] == 512 and report["step_s"] > 0 and report["peak_bytes"] > 0
    assert {each["kind"] for each in report["collectives"]} >= {"allreduce"}
    assert not bare.written()


def test_the_doctor_finds_nothing_wrong_with_pytorch_alone(bare):
    ran = bare.workshop("doctor", "--json")
    assert ran.returncode == 0, ran.stdout
    (look,) = [finding for finding in json.loads(ran.stdout) if finding["check"] == "ranks in notebooks"]
    assert "mpi4py" in look["seen"] and look["remedy"] == NOTEBOOKS


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_command_lacks_is_one_sentence(bare, command):
    ran = bare.workshop(*command.split())
    assert ran.returncode == 1 and ran.stderr.count("\n") == 1, ran.stderr
    assert COMMANDS[command] in ran.stderr
    assert not bare.written()


def test_two_ranks_start_in_an_empty_folder_with_what_notebooks_need(tmp_path, wheel, nothing_left):
    environment = Environment(tmp_path, wheel, "notebooks")
    ran = environment.run("-c", IN_A_NOTEBOOK)
    assert ran.returncode == 0, ran.stderr
    assert "rank 0 of 2" in ran.stdout and "rank 1 of 2" in ran.stdout
    assert not environment.written()
