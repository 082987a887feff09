"""Execute notebooks, each from a fresh kernel, and say which cell of which notebook failed.

python -m workshop_lib.classroom.execute [NAME …]    all of them, or those named, to build/notebooks/
"""

import argparse
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
from jupyter_core.utils import ensure_event_loop
from nbclient import NotebookClient
from nbclient.exceptions import CellControlSignal
from nbformat import NotebookNode

from workshop_lib import paths
from workshop_lib.classroom.generate import NOTEBOOKS, by_part, chosen, write_pristine
from workshop_lib.errors import InputError
from workshop_lib.exercises.exercises import solutions_of

EXECUTED = paths.BUILD / "notebooks"
CELL_TIMEOUT_S = 300.0
DIED = "The kernel died."
ANSI = re.compile(r"\x1b\[[0-9;]*m")

Expressions = Callable[[NotebookNode], dict[str, str]]


@dataclass(frozen=True)
class Execution:
    """The result of running a notebook: its seconds, and the failed cell's number (from 1), source and error."""

    notebook: Path
    seconds: float
    cell: int | None = None
    source: str = ""
    error: str = ""

    def __str__(self) -> str:
        name = os.path.relpath(self.notebook, paths.ROOT)
        if not self.error:
            return f"{name}: passed in {self.seconds:.1f} s"
        if self.cell is None:
            return f"{name}: failed before its first cell, after {self.seconds:.1f} s\n{self.error}"
        code = "\n".join(f"    {line}" for line in self.source.splitlines())
        return f"{name}: failed in cell {self.cell} after {self.seconds:.1f} s\n{code}\n{self.error}"


def run_notebook(
    path: Path,
    output: Path,
    cell_timeout_s: float = CELL_TIMEOUT_S,
    env: dict | None = None,
    folder: Path = NOTEBOOKS,
    expressions: Expressions = lambda cell: {},
) -> Execution:
    """Execute the notebook at `path` with `folder` as working folder, and write it to `output`.

    Every cell may take up to `cell_timeout_s`; the first error ends the run. The kernel gets this process's
    environment, WORKSHOP_WIDGETS=0 (progress as text), and `env`. The executed notebook is written even if
    a cell failed. `expressions` returns, for a cell that ran, Python expressions by name. The kernel evaluates them
    after this cell, and its replies are in the cell's metadata, as `user_expressions`.
    """
    notebook = nbformat.read(path, as_version=4)
    begun: list[int] = []
    started = time.perf_counter()
    environment = {**os.environ, "WORKSHOP_WIDGETS": "0", **(env or {})}
    error = _run_cells(notebook, begun, cell_timeout_s, environment, folder, expressions)
    if error == DIED and not begun:  # perhaps another process took a port that was free a moment ago
        error = _run_cells(notebook, begun, cell_timeout_s, environment, folder, expressions)
    seconds = time.perf_counter() - started
    with paths.replacing(output) as temporary:
        nbformat.write(notebook, temporary)
    if not error or not begun:
        return Execution(path, seconds, error=error)
    return Execution(path, seconds, begun[-1] + 1, notebook.cells[begun[-1]].source, error)


def without_learner(folder: Path) -> dict[str, str]:
    """The environment for a run that neither reads nor writes what a learner of this checkout solved or kept.

    Writes the unsolved notebooks into `folder`, where the run's own log is, too.
    """
    write_pristine(folder)
    log = folder / "progress.jsonl"
    log.unlink(missing_ok=True)
    return {"WORKSHOP_LEARNER_FILE": str(log)}


def _run_cells(
    notebook, begun: list[int], cell_timeout_s: float, env: dict, folder: Path, expressions: Expressions
) -> str:
    """Run all cells in a fresh kernel; return the error, if any. Each cell's index is added to `begun` as it starts."""
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=cell_timeout_s, kernel_name="python3", resources=resources)
    client.extra_arguments = ["--log-level=ERROR"]  # keeps the kernel's own warnings out of the output
    # nbclient itself calls this, so it works even for a kernel that dies at once and sends no message.
    client.on_cell_execute = lambda cell, cell_index: begun.append(cell_index)

    async def evaluate(cell, cell_index, execute_reply) -> None:
        if execute_reply["content"]["status"] == "ok" and (asked := expressions(cell)):
            kernel: Any = client.kc
            request = kernel.execute("", silent=True, store_history=False, user_expressions=asked)
            reply = await client.async_wait_for_reply(request, cell)
            cell.metadata.user_expressions = reply["content"]["user_expressions"] if reply else {}

    client.on_cell_executed = evaluate
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        client.execute(env=env)
    except CellControlSignal as failure:  # an error in a cell, or a cell that took too long
        return ANSI.sub("", str(failure))
    except RuntimeError:  # nbclient and jupyter_client raise this if the kernel died
        client.create_kernel_manager()  # nbclient looks for a kernel manager when Python ends
        # nbclient leaves its own handlers then: Ctrl-C would do nothing, and would end the next notebook's start.
        for number, handler in handlers.items():
            ensure_event_loop().remove_signal_handler(number)
            signal.signal(number, handler)
        return DIED
    return ""


def seconds_of(cell) -> float:
    """The seconds for which a cell of an executed notebook ran; 0 if it did not run."""
    times = cell.metadata.get("execution", {})
    if "shell.execute_reply" not in times:
        return 0.0
    begun, ended = (datetime.fromisoformat(times[at]) for at in ("iopub.execute_input", "shell.execute_reply"))
    return (ended - begun).total_seconds()


def run_seconds(executed: Path) -> dict[str, float]:
    """The seconds for which an executed notebook's cells ran, in its "core" and in its "deeper" sections."""
    cells = nbformat.read(executed, as_version=4).cells
    seconds = {"core": 0.0, "deeper": 0.0}
    for part, index, _ in by_part(cells):
        seconds[part] += seconds_of(cells[index])
    return {part: round(spent, 1) for part, spent in seconds.items()}


def run_all(names: list[str]) -> int:
    """Execute the learner's and the solution notebook of each name (all if none is given); return 1 if any failed.

    Raises InputError for an unknown name.
    """
    outcomes = []
    for name in chosen(names):
        for path in (Path(f"{name}.ipynb"), solutions_of(Path(f"{name}.ipynb"))):
            outcomes.append(run_notebook(NOTEBOOKS / path, EXECUTED / path))
            print(outcomes[-1], flush=True)
    failed = [outcome for outcome in outcomes if outcome.error]
    seconds = sum(outcome.seconds for outcome in outcomes)
    print(f"{len(outcomes)} notebooks in {seconds:.0f} s, {len(failed)} failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m workshop_lib.classroom.execute")
    parser.add_argument("names", nargs="*", metavar="NAME")
    try:
        sys.exit(run_all(parser.parse_args().names))
    except InputError as error:
        sys.exit(str(error))
