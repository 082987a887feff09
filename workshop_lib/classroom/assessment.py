"""A record of the core path's exercises that a learner has solved, which others can check.

`assess` takes the learner's answers from their saved notebooks and runs the checks once more. `write` writes a line for
each solved exercise: its source, the number of ranks, and the properties that held. `rerun` is the proof: it runs the
checks on the sources in the record, which executes these sources.
"""

import ast
import contextlib
import hashlib
import importlib
import importlib.metadata
import io
import itertools
import json
import linecache
import platform
import signal
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import workshop_lib
from workshop_lib import paths, ranks
from workshop_lib.classroom import answers
from workshop_lib.errors import InputError
from workshop_lib.judge import Verdict

SCHEMA = 1
MOST_BYTES = 2_000_000  # largest record that is read; a complete one has about 30,000 bytes
MOST_RANKS = 8
FIELDS = {"ranks": int, "properties": list, "source": str}
IN_HEAD = {"learner": str, "made": str, "versions": dict, "checks": str}
LOAD_LIMIT_S = 60.0  # limit for defining a function, because its imports may take long
ALL_LIMIT_S = 300.0  # limit for checking a whole record again
VERSIONS = ("numpy", "torch", "mpi4py")
_number = itertools.count(1)


class Task(NamedTuple):
    """An exercise: its notebook, its name there, and the name of its check in the lesson's module.

    ranks: the number of ranks it needs; None for any number, 0 for none. core: whether it is in a core section.
    """

    notebook: str
    name: str
    module: str
    check: str
    ranks: int | None = None
    core: bool = True

    @property
    def title(self) -> str:
        return f"{self.notebook}, {self.name}"


def _functions(notebook: str, module: str, core: str, deeper: str = "", **ranks: int) -> list[Task]:
    """Tasks whose check has the same name as the learner's function. `ranks` is the number of ranks by name."""
    parts = [(name, True) for name in core.split()] + [(name, False) for name in deeper.split()]
    return [Task(notebook, name, module, name, ranks.get(name), is_core) for name, is_core in parts]


DDP, LARGE = "05_ddp", "07_large_batch"
TASKS = [
    *_functions("00_start_here", "start_here.judge", "whoami my_part"),
    *_functions(
        "01_mpi_basics",
        "mpi_basics.judge",
        "exchange ring_allreduce",
        "global_mean collect",
        exchange=4,
        global_mean=4,
        ring_allreduce=4,
    ),
    # This check starts processes of its own.
    Task("01_mpi_basics", "hello.py", "mpi_basics.programs", "hello", 0, core=False),
    *_functions(
        "02_synchronous_sgd",
        "synchronous_sgd.judge",
        "average_gradients train_epoch broadcast_weights average_in_one_message",
        "weighted_mean",
    ),
    Task(DDP, "changes.py", "ddp.judge", "script"),
    *_functions(DDP, "ddp.judge", "my_ddp", "my_buckets accumulate"),
    Task(DDP, "diagnoses", "ddp.judge", "diagnoses", 0, core=False),
    *_functions("06_zero_and_fsdp", "zero_and_fsdp.judge", "Zero1 Zero2 bytes_per_rank", "OverlappedZero2 Lookahead"),
    *_functions(LARGE, "large_batch.judge", "learning_rate"),
    Task(LARGE, "diagnoses", "large_batch.judge", "diagnoses", 0, core=False),
    *_functions("08_scaling_curves", "scaling_curves.judge", "scaling_table serial_fraction"),
]
# Exercises that have left the core path. Records that name them are still checked.
FORMER = _functions(LARGE, "large_batch_optimizers.judge", "", "layer_rate")
TITLES = {task.title: task for task in [*TASKS, *FORMER]}


def answer(task: Task, notebooks: Path) -> str | None:
    """The source of the learner's answer, from the saved notebook; None if there is no answer yet."""
    cells = answers.code_cells(notebooks / f"{task.notebook}.ipynb")
    if task.name.endswith(".py"):
        return answers.file(cells, task.name)
    return (answers.answers if task.check == "diagnoses" else answers.function)(cells, task.name)


def verdict(task: Task, source: str) -> Verdict:
    """The verdict on an answer, on the current ranks. Executes the answer."""
    check = getattr(importlib.import_module(f"workshop_lib.lessons.{task.module}"), task.check)
    try:
        if task.check == "diagnoses":
            return check(ast.literal_eval(source))
        if not task.name.endswith(".py"):
            return check(_defined(source, task.name))
    except (Exception, SystemExit) as error:
        return Verdict(task.name, False, failed=f"its source can't be used: {type(error).__name__}: {error}")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder, task.name)
        path.write_text(source, encoding="utf-8")
        return check(path)


def _defined(source: str, name: str):
    """The function `name` of this source, as if a notebook had defined it."""
    file = f"answer_{next(_number)}.py"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # for tracebacks
    namespace = {"__name__": "__main__"}
    before = signal.signal(signal.SIGALRM, _too_long)
    timer = signal.setitimer(signal.ITIMER_REAL, LOAD_LIMIT_S)
    try:
        exec(compile(source, file, "exec"), namespace)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)
    return namespace[name]


def _too_long(*_) -> None:
    raise TimeoutError(f"it had not been defined after {LOAD_LIMIT_S:g} s")


def _on_ranks(tasks: dict[Task, str], n: int) -> Iterator[tuple[Task, Verdict, int]]:
    """Each task with the verdict on its answer and the number of ranks used. Tasks on few ranks come first."""
    for task in sorted(tasks, key=lambda task: n if task.ranks is None else task.ranks):
        count = n if task.ranks is None else task.ranks
        if count:
            ranks.start(count)
        yield task, verdict(task, tasks[task]), count


def assess(notebooks: Path, n: int = 2) -> Iterator[tuple[Task, Verdict | None, dict]]:
    """Each exercise with its verdict (None without an answer) and, if it is solved, its row of the record (else {})."""
    given = {task: source for task in TASKS if (source := answer(task, notebooks)) is not None}
    verdicts = {task: (each, count) for task, each, count in _on_ranks(given, n)}
    for task in TASKS:
        each, count = verdicts.get(task, (None, 0))
        row: dict = {}
        if each is not None and each.passed:
            row = {"notebook": task.notebook, "exercise": task.name, "core": task.core, "ranks": count}
            row |= {"properties": each.held, "source": given[task]}
        yield task, each, row


def write(path: Path, rows: list[dict], learner: str) -> None:
    """Write the record of these exercises, replacing an older one."""
    versions = {name: importlib.metadata.version(name) for name in VERSIONS}
    versions |= {"workshop": workshop_lib.__version__, "python": platform.python_version()}
    with contextlib.suppress(ranks.RankError):  # answers that need no ranks have started none
        versions["mpi"] = ranks.current().about()[0]["mpi"]
    header = {"record": "assessment", "schema": SCHEMA, "learner": learner, "versions": versions, "checks": checks()}
    header["made"] = datetime.now(UTC).isoformat(timespec="seconds")
    with paths.replacing(path) as temporary:
        lines = [json.dumps(line, ensure_ascii=False) for line in [header, *rows]]
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def checks() -> str:
    """A digest of the exercises' checks and solutions, which is equal in two checkouts with the same ones."""
    library = paths.ROOT / "workshop_lib"
    judges = [*(library / "judge").glob("*.py"), *(library / "lessons").rglob("*.py")]
    files = sorted([*judges, *paths.SOURCES.glob("*.py")])
    return hashlib.sha256(b"".join(file.name.encode() + file.read_bytes() for file in files)).hexdigest()


def _title(row: dict) -> str:
    return f"{row.get('notebook')}, {row.get('exercise')}"


def read(path: Path) -> tuple[dict, list[dict]]:
    """A record's first line and its exercises. Raises InputError if it isn't a record, or if a line is damaged."""
    if path.stat().st_size > MOST_BYTES:
        raise InputError(f"{path} is larger than any record ({MOST_BYTES:,} bytes).")
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = [_line(path, number, line) for number, line in enumerate(text.splitlines(), 1)]
    header = lines[0] if lines else {}
    is_head = header.get("record") == "assessment" and header.get("schema") == SCHEMA
    if not is_head or any(not isinstance(header.get(field), kind) for field, kind in IN_HEAD.items()):
        raise InputError(f"{path} is no record of an assessment, as `workshop assess` writes it, or its head is gone.")
    titles = []
    for number, row in enumerate(lines[1:], 2):
        if problem := _problem(row):
            raise InputError(f"{path}, line {number}: {problem}")
        if _title(row) in titles:
            raise InputError(f"{path}, line {number}: {_title(row)} is there twice.")
        titles.append(_title(row))
    return header, lines[1:]


def _line(path: Path, number: int, text: str) -> dict:
    """One line of a record. Raises InputError if it isn't a JSON object."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        line = None
    if not isinstance(line, dict):
        raise InputError(f"{path}, line {number} is no JSON object: the file is damaged, or it is no record.")
    return line


def _problem(row: dict) -> str:
    """What keeps an exercise of a record from being checked; empty if nothing does."""
    task = TITLES.get(_title(row))
    if task is None:
        return f"the core path has no exercise {_title(row)!r}."
    if any(not isinstance(row.get(field), kind) for field, kind in FIELDS.items()):
        return f"{task.title}: one of {', '.join(FIELDS)} is missing, or not what it should be."
    if task.ranks is None and row["ranks"] not in range(2, MOST_RANKS + 1):
        return f"{task.title}: it says {row['ranks']} ranks, but it's checked on 2 to {MOST_RANKS}."
    if task.ranks is not None and row["ranks"] != task.ranks:
        return f"{task.title}: it says {row['ranks']} ranks, but it's checked on {task.ranks}."
    return ""


def in_words(row: dict) -> str:
    held = len(row["properties"])
    return f"{held} propert{'y' if held == 1 else 'ies'}" + (f" on {row['ranks']} ranks" if row["ranks"] else "")


def rerun(rows: list[dict]) -> Iterator[tuple[Task, str]]:
    """Run the checks of a record again, which EXECUTES the sources in it.

    Yields each exercise, and how the result of its check differs from what the record says ("" if it does not).
    """
    end_s = time.monotonic() + ALL_LIMIT_S
    known = {TITLES[_title(row)]: row for row in rows}
    for n in sorted({row["ranks"] for row in rows}):
        sources = {task: row["source"] for task, row in known.items() if row["ranks"] == n}
        for task in sources:
            if time.monotonic() > end_s:
                yield task, f"not checked: {ALL_LIMIT_S:g} s are over."
                continue
            [(_, each, _)] = _on_ranks({task: sources[task]}, n)
            yield task, _difference(known[task], each)


def _difference(row: dict, each: Verdict) -> str:
    if not each.passed:
        return f"its source doesn't pass: {_reason(each)}"
    recorded = set(map(str, row["properties"]))
    if unheld := recorded - set(each.held):
        return f"the record says {min(unheld)!r}, which the check doesn't."
    missing = set(each.held) - recorded
    return f"the record leaves out {min(missing)!r}." if missing else ""


def _reason(verdict: Verdict) -> str:
    """Why an answer didn't pass, in one or two lines."""
    return "\n".join(filter(None, [verdict.failed, *verdict.details.splitlines()[:1]])) or "it is still a stub"
