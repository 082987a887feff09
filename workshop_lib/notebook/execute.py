"""Execute notebooks, each from a fresh kernel, and say which cell of which notebook failed.

python -m workshop_lib.notebook.execute [NAME …]    all of them, or those named, to build/notebooks/
"""

import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from workshop_lib import paths
from workshop_lib.notebook.generate import NOTEBOOKS, sources

EXECUTED = paths.BUILD / "notebooks"
CELL_TIMEOUT_S = 300.0
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Outcome:
    """What came of one notebook: seconds, and of the first failed cell its place (from 1) and error."""

    notebook: Path
    seconds: float
    cell: int | None = None
    source: str = ""
    error: str = ""

    def __str__(self) -> str:
        name = os.path.relpath(self.notebook, paths.ROOT)
        if self.cell is None and not self.error:
            return f"{name}: passed in {self.seconds:.1f} s"
        code = "\n".join(f"    {line}" for line in self.source.splitlines())
        return f"{name}: failed in cell {self.cell} after {self.seconds:.1f} s\n{code}\n{self.error}"


def run_notebook(
    path: Path, output: Path, cell_timeout_s: float = CELL_TIMEOUT_S, env: dict | None = None, folder: Path = NOTEBOOKS
) -> Outcome:
    """Execute the notebook at `path` with `folder` as working folder, and write it to `output`.

    Every cell may take `cell_timeout_s`; the first error ends the run. The kernel gets this process's
    environment, WORKSHOP_WIDGETS=0 (progress as text), and `env`. The executed notebook is written
    also when a cell failed.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellControlSignal, DeadKernelError

    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=cell_timeout_s, kernel_name="python3", resources=resources)
    begun: list[int] = []  # by nbclient's own word: a kernel that dies at once sends no message
    client.on_cell_execute = lambda cell, cell_index: begun.append(cell_index)
    started, error = time.perf_counter(), ""
    try:
        client.execute(env={**os.environ, "WORKSHOP_WIDGETS": "0", **(env or {})})
    except CellControlSignal as failure:  # an error in a cell, or a cell over its time
        error = ANSI.sub("", str(failure))
    except DeadKernelError:
        error = "The kernel died."
    seconds = time.perf_counter() - started
    with paths.replacing(output) as temporary:
        nbformat.write(notebook, temporary)
    if not error or not begun:
        return Outcome(path, seconds, error=error)
    return Outcome(path, seconds, begun[-1] + 1, notebook.cells[begun[-1]].source, error)


def run_all(names: list[str]) -> int:
    """Execute the learner's and the solution notebook of each name (all if none); 1 if any failed."""
    known = [source.stem for source in sources()]
    if unknown := set(names) - set(known):
        listed = ", ".join(map(repr, sorted(unknown)))
        print(f"no notebook {listed} in notebooks/source; there are {', '.join(known)}.", file=sys.stderr)
        return 1
    outcomes = []
    for name in [name for name in known if name in (names or known)]:
        for path in (Path(f"{name}.ipynb"), Path("solutions", f"{name}.ipynb")):
            outcomes.append(run_notebook(NOTEBOOKS / path, EXECUTED / path))
            print(outcomes[-1], flush=True)
    failed = [outcome for outcome in outcomes if outcome.error]
    seconds = sum(outcome.seconds for outcome in outcomes)
    print(f"{len(outcomes)} notebooks in {seconds:.0f} s, {len(failed)} failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1:]))
