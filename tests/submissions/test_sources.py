"""Each word of a job script that only the machine knows stands in submissions/sources.md, with the page that has it."""

import re

import pytest

from workshop_lib.paths import ROOT

SUBMISSIONS = ROOT / "submissions"
MACHINES = ("aurora", "perlmutter", "polaris", "slurm", "sophia")
DIRECTIVE = re.compile(r"^#(?:PBS|SBATCH) (.+)$", re.MULTILINE)
MODULES = re.compile(r"\bmodule (?:use|load) ([^;\n]+)")
MODULE = re.compile(r'(?<!\S)(?:"\$\{\w+:-)?([\w./-]+)')
VARIABLE = re.compile(r"\b((?:NCCL|FI|CCL|CUDA|MPICH|MPIR|OMPI|LD)_\w+)=")
FOLDER = re.compile(r"(?<![\w}])/(?:soft|usr|local)[\w/.-]+")
LAUNCHER = re.compile(r"\b(?:mpiexec|mpirun|srun)((?: |\\\n\s*)+-(?:\\\n|[^\n])*)")
OPTION = re.compile(r"(?<=\s)--[a-z-]+")
OURS = ("WORKSHOP", "-N workshop", "--job-name=", "--out-dir")


def words_of(machine):
    """The words in a machine's scripts that its documentation has to explain."""
    found = set()
    for path in sorted((SUBMISSIONS / machine).glob("*.sh")):
        text = path.read_text()
        code = "\n".join(line for line in text.splitlines() if not re.match(r"\s*#(?!PBS|SBATCH)", line))
        found |= set(DIRECTIVE.findall(code))
        found |= {name for names in MODULES.findall(code) for name in MODULE.findall(names)}
        found |= set(VARIABLE.findall(code)) | set(FOLDER.findall(code))
        for options in LAUNCHER.findall(code):
            before_python = re.split(r"python|PYTHON|\$\{?WORKSHOP", options)[0]
            found |= set(OPTION.findall(before_python))
    named = {re.sub(r"(?<==)\d+(?::\d+)*", "N", word) for word in found if re.search(r"\w", word)}
    return {word for word in named if not word.startswith(OURS)}


def explained(machine):
    """Word and source of each row of the machine's table."""
    text = (SUBMISSIONS / "sources.md").read_text()
    section = text.partition(f"\n## {machine}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:3] == "| `"]
    return {word: source for words, source in rows for word in re.findall(r"`([^`]+)`", words)}


@pytest.mark.parametrize("machine", MACHINES)
def test_every_external_word_has_its_source(machine):
    words = words_of(machine)
    sources = explained(machine)
    assert len(words) > 5
    assert not words - sources.keys(), "these words stand in a script, and not in sources.md"
    assert not sources.keys() - words, "these words stand in sources.md, and in no script"
    assert all(re.search(r"https://|the same page|not found|\d{4}-\d\d-\d\d", source) for source in sources.values())
