"""Write the notebooks from their sources.

    python -m workshop_lib.classroom.generate    notebooks/, notebooks/solutions/, and the README's table

A source (jupytext py:percent) holds the solutions between markers, each alone on its line:

    # <solution>
    gradient /= world_size
    # <stub>
    # gradient = ...  # divide by what?
    # </stub>
    # </solution>

The learner's notebook gets the lines of the stub without their "# " (or `...  # your code here` if there is no stub).
The solution notebook gets the lines of the solution. In a cell that writes a shell script, the script's lines are
comments, too.

In a text cell, a line `{solution of NAME}` is replaced by the solution of the function NAME, of the method CLASS.NAME,
or of the file NAME that a cell writes, as the last of its hints. An exercise's heading says how hard it is, as in
"Exercise 2 (hard): the ring".
The first cell's "**Time** …." is replaced by the time that the notebook takes: see `Effort`. A source's first line
names the notebook's track on the map: see course_map.py.
"""

import ast
import functools
import hashlib
import json
import os
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jupytext
import nbformat

from workshop_lib import paths
from workshop_lib.classroom import course_map
from workshop_lib.errors import InputError, WorkshopError
from workshop_lib.exercises import exercises
from workshop_lib.exercises.sources import SourceError, split
from workshop_lib.notebook import take_home

NOTEBOOKS = paths.ROOT / "notebooks"
MAP = "map.svg"  # in the folder of the notebooks, because JupyterLab only shows what is in there
TABLE = re.compile(r"(?<=<!-- the map -->\n).*?(?=<!-- end of the map -->)", re.DOTALL)  # in the README
SOLUTION_OF = re.compile(r"# (\{solution of ([\w.]+)\})")
HEADING = re.compile(r"(#+) (.+)")
NOT_READ = re.compile(r"```.*?```|</?\w+>|\]\(.*?\)|\$\$.*?\$\$", re.DOTALL)
SHELL_FILE = re.compile(r"%%writefile \S+\.sh\n")
EXERCISE_MINUTES = {"warm-up": 5, "normal": 12, "hard": 25}
EXERCISE = re.compile(rf"Exercise \w+ \(({'|'.join(EXERCISE_MINUTES)})\): ")
PREDICTION = re.compile(r"(?<![\w.])predict\(")
PRINTS_PART = re.compile(r"^take_home\.(diff|marked)\((.+)\)$", re.MULTILINE)
SHOWS_SCRIPT = re.compile(r'^\w+ = lesson\.check\.to_edit\("(\w+\.py)"', re.MULTILINE)
WRITTEN_FILE = re.compile(r"^# %%writefile \S*?([\w.]+)\n(.+?)(?=^# %%|\Z)", re.MULTILINE | re.DOTALL)
NOTE_ON_SOLUTIONS = (
    "**These are the solutions.** Your own notebook is [{0}](../{0}.ipynb). Write your answers there, because what you "
    "run here doesn't count."
)
RUN_SECONDS = "run_seconds.json"  # gallery.py writes {"core": s, "deeper": s} per solution to this file
# The metadata that JupyterLab writes, so that a notebook which was only opened doesn't count as changed. The version of
# Python, which differs from machine to machine, is left out by kernel.json in workshop_lib/notebook/jupyter.
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    },
}


def sources(folder: Path = NOTEBOOKS) -> list[Path]:
    """The sources under `folder`, in the order of their numbers."""
    return sorted(p for p in (folder / "source").glob("*.py") if exercises.NOTEBOOK.fullmatch(p.stem))


def chosen(names: Sequence[str]) -> list[str]:
    """The notebooks with these names or numbers (all if there are none), in the order of their numbers.

    Raises InputError for unknown ones.
    """
    known = [source.stem for source in sources()]
    by_number = {name.partition("_")[0]: name for name in known}
    names = [by_number.get(name, name) for name in names]
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"There's no notebook {unknown[0]!r}. There are {', '.join(known)}.")
    return [name for name in known if name in (names or known)]


def with_hints(text: str, name: str) -> str:
    """A source with each `{solution of NAME}` replaced by that function, method or file, as the solution has it.

    Raises SourceError naming `name`:line.
    """
    _, solution = split(text, name)
    code_of = _functions(solution) | {name: text.rstrip() for name, text in WRITTEN_FILE.findall(solution)}
    lines = []
    for number, line in enumerate(text.split("\n"), 1):
        hint = SOLUTION_OF.fullmatch(line)
        if not hint:
            lines.append(line)
        elif hint[2] not in code_of:
            raise SourceError(f"{name}:{number}: {hint[1]}, but there is no function or file {hint[2]}.")
        else:
            code = ["```python", *code_of[hint[2]].splitlines(), "```"]
            lines += [f"# {each}".rstrip() for each in code]
    return "\n".join(lines)


def _functions(solution: str) -> dict[str, str]:
    """The code of each function NAME and of each method CLASS.NAME."""
    found = {}
    for node in ast.parse(solution).body:
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for each in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(each, ast.FunctionDef):
                code = ast.get_source_segment(solution, each, padded=True) or ""
                found[prefix + each.name] = textwrap.dedent(code)
    return found


def check_labels(text: str, name: str) -> None:
    """Raise SourceError, naming `name`:line, unless each exercise's heading says how hard it is."""
    for number, line in enumerate(text.split("\n"), 1):
        heading = re.fullmatch(r"# #+ (Exercise\b.*)", line)
        if heading and not EXERCISE.match(heading[1]):
            labels = ", ".join(f"'Exercise 1 ({label}): …'" for label in EXERCISE_MINUTES)
            raise SourceError(f"{name}:{number}: {heading[1]!r} doesn't say how hard it is. Write one of {labels}.")


@dataclass
class Effort:
    """The effort that a part of a notebook asks of a learner.

    words: also those of hints.
    code_lines: also those of scripts that a cell prints or opens. Of a difference, these are the lines that change.
    Lines of brackets alone don't count.
    """

    words: int = 0
    code_lines: int = 0
    cells: int = 0  # with code
    predictions: int = 0
    exercise_minutes: int = 0
    run_s: float = 0.0  # measured in the laptop profile

    @property
    def minutes(self) -> int:
        """The minutes that all this takes: three cells' tables and figures a minute, and each run twice.

        The constants are fitted to what first readers of 05, 06, 08, 08c, 12, 13 and 15 needed, 45 to 85 minutes. These
        minutes are within 8 % of it.
        """
        reading = self.words / 130 + self.code_lines / 12 + self.cells / 3
        return round(reading + self.predictions + self.exercise_minutes + 2 * self.run_s / 60)

    def add(self, cell_type: str, text: str) -> None:
        """Add the effort of a cell, or of a piece of one, which begins with its heading."""
        if cell_type == "markdown":
            self.words += len(re.findall(r"[^\W\d_][\w'’-]*", NOT_READ.sub(" ", text)))
            heading = HEADING.match(text)
            exercise = EXERCISE.match(heading[2]) if heading else None
            if exercise:
                self.exercise_minutes += EXERCISE_MINUTES[exercise[1]]
        elif cell_type == "code":
            self.cells += 1
            self.code_lines += sum(map(is_read, [*text.splitlines(), *printed(text)]))
            self.predictions += len(PREDICTION.findall(text))


def is_read(line: str) -> bool:
    """Whether a line of code has more than brackets."""
    return any(map(str.isalnum, line))


def printed(code: str) -> list[str]:
    """The lines of scripts to take home that this code prints or opens for its reader."""
    lines: list[str] = []
    for name in SHOWS_SCRIPT.findall(code):
        lines += (paths.SCRIPTS / name).read_text(encoding="utf-8").splitlines()
    for how, arguments in PRINTS_PART.findall(code):
        words = ast.literal_eval(f"({arguments},)")
        if how == "diff":
            lines += take_home.diff(*words).changes
        else:
            lines += take_home.marked(*words).lines
    return lines


def pieces(cells: list) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """(index, text, the headings above it) for each cell. A text cell yields one such piece for each heading in it."""
    under: list[tuple[int, str]] = []
    for index, cell in enumerate(cells):
        texts = [cell.source]
        if cell.cell_type == "markdown":  # drops code, which has lines that look like headings
            texts = re.split(r"^(?=#+ )", NOT_READ.sub(" ", cell.source), flags=re.MULTILINE)
        for text in filter(None, texts):
            if cell.cell_type == "markdown" and (heading := HEADING.match(text)):
                level = len(heading[1])
                under = [each for each in under if each[0] < level] + [(level, heading[2].strip())]
            yield index, text, tuple(title for _, title in under)


def is_deeper(under: tuple[str, ...]) -> bool:
    """Whether text or code under these headings is in a section "## Deeper…"."""
    return len(under) > 1 and under[1].startswith("Deeper")


def by_part(cells: list) -> Iterator[tuple[str, int, str]]:
    """(part, index, text) of each piece of these cells; the part is "deeper" or "core"."""
    for index, text, under in pieces(cells):
        yield "deeper" if is_deeper(under) else "core", index, text


def efforts(cells: list, run_s: dict[str, float] | None = None) -> dict[str, Effort]:
    """The effort of the core and of the deeper sections, from a learner's cells and the seconds of the runs."""
    of_parts = {part: Effort(run_s=(run_s or {}).get(part, 0.0)) for part in ("core", "deeper")}
    for part, index, text in by_part(cells):
        of_parts[part].add(cells[index].cell_type, text)
    return of_parts


def in_words(of_parts: dict[str, Effort]) -> str:
    """The sentence on time in the first cell: the minutes of the core and of the deeper sections."""
    core = of_parts["core"].minutes
    deeper = of_parts["deeper"].minutes
    rest = f" for the core, {deeper} more for the sections marked *Deeper*" if deeper else ""
    return f"**Time** {core} minutes{rest}{'' if of_parts['core'].run_s else ', plus what the runs take'}."


def notebook_json(text: str, time: str = "") -> str:
    """The py:percent `text` as a notebook file without outputs. The same text always gives the same bytes.

    time: the sentence on time for the first cell. A cell's id is derived from its content, so editing one cell does
    not change the ids of other cells.
    """
    return finished(jupytext.reads(text, fmt="py:percent"), time)


def finished(notebook: nbformat.NotebookNode, time: str = "") -> str:
    """The file of a notebook whose cells come from a source, with metadata, ids, and shell scripts as they are run."""
    if time:
        notebook.cells[0].source = course_map.TIME.sub(time, notebook.cells[0].source)
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat = 4
    notebook.nbformat_minor = 5
    seen: Counter[str] = Counter()
    for cell in notebook.cells:
        if SHELL_FILE.match(cell.source):  # a source is Python, so the lines of a shell script are comments
            magic, _, lines = cell.source.partition("\n")
            cell.source = "\n".join([magic, *(re.sub("^# |^#$", "", line) for line in lines.split("\n"))])
        if cell.cell_type == "markdown":  # jupytext reads the first line of a shell script as a magic, without its "#"
            cell.source = re.sub("^!/", "#!/", cell.source, flags=re.MULTILINE)
        content = f"{cell.cell_type}:{cell.source}"
        seen[content] += 1
        cell.id = hashlib.sha256(f"{seen[content]}:{content}".encode()).hexdigest()[:8]
    nbformat.validate(notebook)
    return nbformat.writes(notebook, version=4) + "\n"


def render(folder: Path = NOTEBOOKS) -> dict[Path, str]:
    """The path and content of every notebook that the sources under `folder` should generate."""
    files = {}
    for source in sources(folder):
        path = folder / f"{source.stem}.ipynb"
        files[path], files[exercises.solutions_of(path)] = of_source(source, NOTE_ON_SOLUTIONS.format(source.stem))
    return files | readme_with(files, folder)


def readme_with(files: dict[Path, str], folder: Path) -> dict[Path, str]:
    """The path and content of the README with the table of these notebooks, linked as they ran: to the gallery.

    Raises SourceError for a notebook whose track isn't one of the map's. Empty for a `folder` outside a checkout.
    """
    readme = folder.parent / "README.md"
    if not readme.exists():
        return {}
    stops = list(stops_of(files, folder))
    for each in stops:
        if each.track not in course_map.KNOWN:
            known = ", ".join(course_map.KNOWN)
            first_line = '# %% [markdown] track="…"'
            raise SourceError(f"{each.name}.py: begin it with `{first_line}`, naming one of the tracks: {known}.")
    page = readme.read_text(encoding="utf-8")
    table = course_map.course_table(stops, link="assets/gallery/{}".format)
    return {readme: TABLE.sub(lambda _: f"{table}\n", page)}


def stops_of(files: dict[Path, str], folder: Path) -> Iterator[course_map.Stop]:
    """The place on the map of each learner's notebook in `folder`, given the content of the notebooks' files."""
    for name, track in exercises.tracks(folder / "source").items():
        if text := files.get(folder / f"{name}.ipynb"):
            yield course_map.stop(name, "".join(json.loads(text)["cells"][0]["source"]), track)


def of_source(source: Path, note: str = "") -> tuple[str, str]:
    """The learner's notebook and the one with solutions, as files without outputs.

    note: text below the title of the one with solutions.
    """
    text = source.read_text(encoding="utf-8")
    check_labels(text, str(source))
    learner, solution = split(with_hints(text, str(source)), str(source))
    measured = source.with_name(RUN_SECONDS)
    run_s = json.loads(measured.read_text(encoding="utf-8")) if measured.exists() else {}
    time = in_words(efforts(jupytext.reads(learner, fmt="py:percent").cells, run_s.get(source.stem)))
    if note:
        solution = re.sub(r"^# # .*$", rf"\g<0>\n#\n# {note}", solution, count=1, flags=re.MULTILINE)
    one_folder_down = solution.replace("](../", "](../../")
    for linked in ("scripts", MAP):
        one_folder_down = one_folder_down.replace(f"]({linked}", f"](../{linked}")
    return notebook_json(learner, time), notebook_json(one_folder_down, time)


@functools.cache
def _pristine(source: Path) -> tuple[str, str]:
    return of_source(source)


def pristine(name: str) -> tuple[nbformat.NotebookNode, nbformat.NotebookNode]:
    """The learner's notebook and the one with solutions as the source gives them, whatever became of their files."""
    asked, solved = _pristine(NOTEBOOKS / "source" / f"{name}.py")
    return nbformat.reads(asked, as_version=4), nbformat.reads(solved, as_version=4)


def stops() -> list[course_map.Stop]:
    """All notebooks on the map, as the sources give them. `course_map.course_table` makes a table of them."""
    tracks = exercises.tracks()
    return [course_map.stop(name, pristine(name)[0].cells[0].source, track) for name, track in tracks.items()]


def write_pristine(folder: Path) -> None:
    """Write all notebooks into a folder as the sources give them, for runs that must not see a learner's answers."""
    for source in sources():
        path = folder / f"{source.stem}.ipynb"
        for each, text in zip((path, exercises.solutions_of(path)), _pristine(source), strict=True):
            with paths.replacing(each) as temporary:
                temporary.write_text(text, encoding="utf-8")


def overview(here: str, folder: Path = NOTEBOOKS) -> str:
    """The tracks as a Markdown table: the minutes of each notebook, and how many exercises this learner has solved.

    here: the notebook that shows the table. The exercises are those of the sources, because a learner's notebook has a
    stub less with each answer.
    """
    solved = exercises.solved()
    asked = exercises.by_notebook(folder / "source")
    files = {path: path.read_text(encoding="utf-8") for path in folder.glob("*.ipynb")}

    def counts(name: str) -> tuple[int, int]:
        return sum((name, exercise) in solved for exercise in asked[name]), len(asked[name])

    return course_map.course_table(stops_of(files, folder), here, solved=counts)


def write(folder: Path = NOTEBOOKS) -> list[Path]:
    """Write every notebook that differs from its source; return the paths of the written ones."""
    changed = {path: text for path, text in render(folder).items() if not _holds(path, text)}
    for path, text in changed.items():
        with paths.replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return list(changed)


def drifted(folder: Path = NOTEBOOKS) -> list[Path]:
    """The generated notebooks that differ from their source, are missing, or have no source any more."""
    files = render(folder)
    there = [*folder.glob("*.ipynb"), *(folder / "solutions").glob("*.ipynb")]
    orphans = [path for path in there if exercises.NOTEBOOK.fullmatch(path.stem) and path not in files]
    return [path for path, text in files.items() if not _holds(path, text)] + sorted(orphans)


def _holds(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


def main(folder: Path = NOTEBOOKS) -> int:
    """Run this module's command; return its exit status."""
    try:
        for path in write(folder):
            print(f"wrote {os.path.relpath(path)}")
    except WorkshopError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
