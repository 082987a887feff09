"""What is under version control: the layout, the data and its card, nothing that ties it to one place."""

import gzip
import hashlib
import os
import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from command_line import workshop
from matplotlib import image
from needs import require

import workshop_lib
from workshop_lib.examine.findings import TABLE
from workshop_lib.notebook.results import records
from workshop_lib.paths import ROOT, SCRIPTS

FIGURES, RESULTS = ROOT / "assets" / "figures", ROOT / "assets" / "results"


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "assets" / "mnist").glob("*.gz")))
def test_the_data_card_describes_the_files(name):
    card = (ROOT / "assets" / "mnist" / "README.md").read_text()
    packed = (ROOT / "assets" / "mnist" / name).read_bytes()
    for file, content in ((name, packed), (name.removesuffix(".gz"), gzip.decompress(packed))):
        row = f"| `{file}` | {len(content):,} | `{hashlib.sha256(content).hexdigest()}` |"
        assert row in card, f"the card does not say: {row}"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_emulated_records_are_in_files_of_their_own(path):
    trained = [record for record in records.read(path) if record["kind"] == "train"]
    emulated = {record["what"]["machine"] is not None for record in trained}
    assert emulated <= {path.stem.startswith("emulated")}


def test_the_book_says_what_was_measured_and_what_was_emulated():
    text = (ROOT / "book" / "measured.md").read_text()
    for record in [*records.read(RESULTS / "bench.jsonl"), *records.read(RESULTS / "emulated_bench.jsonl")]:
        row = f"| {record['name']} | {record['median']:.3g} |"
        assert row in text, f"book/measured.md does not say: {row}"
        for cells in record.get("rows", []):
            row = f"| {' | '.join(cells)} |"
            assert row in text, f"book/measured.md does not say: {row}"


@pytest.fixture(scope="module")
def tracked():
    """Names of the files under version control."""
    require("git")
    return subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True, timeout=30).splitlines()


def test_a_git_that_is_set_up_for_windows_writes_scripts_that_bash_can_run(tracked, tmp_path):
    command = ["git", "-c", "core.autocrlf=true", "checkout-index", f"--prefix={tmp_path}/", "--", *tracked]
    subprocess.run(command, cwd=ROOT, check=True, timeout=60)
    text = (".sh", ".py", ".md", ".toml", ".ipynb", "Makefile")
    written = [path for path in tmp_path.rglob("*") if path.name.endswith(text)]
    assert len(written) > 500
    assert not [path for path in written if b"\r\n" in path.read_bytes()]
    assert (tmp_path / "assets" / "session.png").read_bytes() == (ROOT / "assets" / "session.png").read_bytes()


def test_a_checkout_whose_venv_is_another_one_s_uses_its_own_library(tmp_path):
    """Accounts share one .venv, which knows where its own checkout is."""
    recipe = subprocess.run(["make", "-n", "lab"], cwd=ROOT, capture_output=True, text=True, timeout=30).stdout
    assert f'PYTHONPATH="{ROOT}" .venv/bin/jupyter lab' in recipe
    library = tmp_path / "workshop_lib" / "__init__.py"
    library.parent.mkdir()
    library.touch()
    kernel = [sys.executable, "-P", "-c", "import workshop_lib; print(workshop_lib.__file__)"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    assert subprocess.check_output(kernel, env=environment, text=True, timeout=60).strip() == str(library)


@pytest.mark.full
def test_the_figures_are_what_the_records_draw(tmp_path):
    for folder in FIGURES.iterdir():
        record = f"{RESULTS / folder.name}.jsonl"
        if folder.name == "steps_to_target":  # notebook 07b's own figure
            output = tmp_path / folder.name / f"{folder.name}.png"
            command = [sys.executable, "-m", "lessons.gradient_noise.figures", record, str(output)]
            environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'notebooks'}"}
            subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=120)
        else:
            done = workshop("plot", record, "--out-dir", tmp_path / folder.name)
            assert done.exit_code == 0, done.output
    figures = sorted(str(path.relative_to(FIGURES)) for path in FIGURES.rglob("*.png"))
    assert figures == sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.png"))
    for name in figures:
        kept, drawn = (image.imread(folder / name) for folder in (FIGURES, tmp_path))
        assert kept.shape == drawn.shape, f"run `make figures`: {name} has another size"
        assert abs(kept - drawn).mean() < 0.002, f"run `make figures`: {name} shows something else"


def test_the_citation_agrees_with_the_package():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert cited["version"] == workshop_lib.__version__
    assert (cited["abstract"], cited["license"]) == (package["description"], package["license"])
    assert (ROOT / "README.md").read_text().startswith(f"# {cited['title']}\n")
    assert [each["name"] for each in cited["authors"]] == re.findall(r"20\d\d (.+)", (ROOT / "LICENSE").read_text())
    required = {"cff-version", "message", "title", "authors"}  # of the schema
    assert required <= set(cited) and cited["cff-version"] == "1.2.0"


def test_agents_are_told_of_files_that_exist_and_never_to_fill_in_an_exercise():
    text = (ROOT / "AGENTS.md").read_text()
    assert "Never fill in an exercise" in text
    for path in re.findall(r"`((?:workshop_lib|tools|tests|notebooks|assets)/?[\w./]*)`", text):
        assert (ROOT / path.replace("NAME", "mpi_basics")).exists(), f"AGENTS.md names {path}, which isn't there"


@pytest.mark.parametrize("page", ["README", "CONTRIBUTING", "book/command_line", "notebooks/scripts/README"])
def test_commands_are_those_of_venv(page):
    bare = r"(?:^|`)((?:mpiexec -n|torchrun -|python -|pip install (?!\"distributed-dl-workshop)).*)"
    assert not re.findall(bare, (ROOT / f"{page}.md").read_text(), re.MULTILINE)


def test_every_script_stands_in_its_readme():
    text = (SCRIPTS / "README.md").read_text()
    assert not {path.name for path in SCRIPTS.glob("*.*") if f"{path.name}`" not in text} - {"README.md"}


def test_each_link_leads_to_a_file(tracked):
    for page in (ROOT / name for name in tracked if name.endswith(".md")):
        text = page.read_text()
        for link in re.findall(r"\]\((?!https?:)([^)\s#]+)(?:#[^)\s]*)?\)", text):
            assert (page.parent / link).exists(), f"{page.relative_to(ROOT)} links to {link}, which isn't there"


def test_the_house_in_contributing_has_every_folder(tracked):
    """Its picture has each folder of the top level, of notebooks and of workshop_lib, and no other."""
    drawn = re.findall(r"^(│   |    )?[├└]── (\w+)/", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    inside, top = [], ""
    for indented, name in drawn:
        top = top if indented else name
        inside.append(f"{top}/{name}" if indented else name)
    folders = [name.split("/")[:-1] for name in tracked if not name.startswith(".")]
    there = {parts[0] for parts in folders if parts}
    there |= {"/".join(parts[:2]) for parts in folders if parts[1:] and parts[0] in ("notebooks", "workshop_lib")}
    assert sorted(inside) == sorted(there)


def test_packages_come_from_where_pip_is_told_to_look(tracked):
    """A host name in a file would break machines behind a mirror."""
    names = ("py" r"pi\.org", "python" r"hosted\.org", "download\\.py" r"torch\.org", "ana" r"conda\.org")
    hosts = re.compile(rf"\b({'|'.join(names)})")
    for path in (ROOT / name for name in tracked):
        if path.suffix not in (".gz", ".png", ".pt") and path.is_file():
            found = hosts.search(path.read_text())
            assert not found, f"{path.relative_to(ROOT)} names {found[0]}"


def test_coding_assistants_read_what_to_do_about_each_finding():
    text = (ROOT / "AGENTS.md").read_text()
    missing = {row["check"] for row in TABLE.values() if row["level"] != "ok" and f"`{row['check']}`" not in text}
    assert not missing
