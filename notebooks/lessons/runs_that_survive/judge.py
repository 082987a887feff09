"""Judges the exercises of 13b_runs_that_survive: safe checkpoints, a supervisor, how often to save, and a rank's share.

`resume` is judged in judge_resume.py.
`script` puts the learner's functions into the scripts that the notebook trains with.
"""

import ast
import functools
import inspect
import os
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from workshop_lib.exercises.judge import UNKNOWN_HINT, own_or_library, own_or_solution
from workshop_lib.exercises.play import Edit, played
from workshop_lib.paths import SCRIPTS, replacing

from lessons.runs_that_survive import checkpoints
from lessons.runs_that_survive.fake_ranks import RESTARTS, FakeRanks
from lessons.runs_that_survive.judge_resume import resume

__all__ = ["interval_s", "my_share", "resume", "save", "script", "supervise", "written"]

NOTEBOOK = "13b_runs_that_survive"
written = functools.partial(own_or_solution, notebook=NOTEBOOK)

OLD = {"step": 1, "weights": torch.ones(3)}
NEW = {"step": 2, "weights": torch.full((3,), 2.0)}
LOST_HINT = "save all of `state`, or training can't go on exactly."
DIRECT_HINT = "write to a file with a different name, and give it the right one once it's whole."
MOMENT_HINT = "write a file with a different name. Then `os.replace` lets it take the old one's place in a single step."
SILENT_HINT = "let the error through, or training goes on for days without a checkpoint, and nobody knows."


class _FullDisk:
    """An object that can't be saved: pickling it raises the error of a full disk."""

    def __reduce__(self):
        raise OSError(28, "No space left on device")


def play_save(save: Callable, comm) -> Iterator[tuple]:
    """Save a checkpoint over an older one: in peace, on a full disk, and watched."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "checkpoint.pt"
        save(OLD, path)
        moments = _moments(save, path)
        after = _loaded(path)
        raised = False
        torch.save(OLD, path)
        try:
            save({**NEW, "optimizer": _FullDisk()}, path)
        except OSError:
            raised = True
        full = _loaded(path)
    yield "what was saved can be loaded", after, f"afterwards, there is {after}:", LOST_HINT
    seen = f"the disk was full half-way, and a rank that started then would find {full}:"
    yield "a full disk leaves the old one alone", full, seen, DIRECT_HINT
    broken = next((seen for seen in moments if seen not in ("the old one", "the new one")), "")
    seen = f"for a moment, a rank that started would find {broken}:"
    yield "there's a whole checkpoint at any time", broken, seen, MOMENT_HINT
    yield "a full disk is reported", raised, "it raised nothing:", SILENT_HINT


def _loaded(path: Path) -> str:
    """What a rank would load if it started now."""
    if not path.exists():
        return "no checkpoint"
    try:
        state = torch.load(path, weights_only=True)
    except Exception:
        return "half a checkpoint"
    for name, right in {"the old one": OLD, "the new one": NEW}.items():
        same = isinstance(state, dict) and state.keys() == right.keys() and state["step"] == right["step"]
        if same and torch.equal(state["weights"], right["weights"]):  # type: ignore[arg-type]
            return name
    return "something else"


def _moments(save: Callable, path: Path) -> list[str]:
    """Save NEW; return what a rank would find each time Python is about to open, rename or remove a file."""
    seen: list[str] = []
    watching = True

    def look(event: str, arguments: tuple) -> None:
        nonlocal watching
        if not watching or event not in ("open", "os.remove", "os.rename"):
            return
        watching = False  # _loaded opens a file, too, which isn't the learner's doing
        into = event == "open" and str(arguments[0]) == str(path) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        seen.append("half a checkpoint" if into else _loaded(path))
        watching = True

    sys.addaudithook(look)  # Python can't remove a hook, so this one stays and does nothing
    try:
        save(NEW, path)
    finally:
        watching = False
    return seen


save = played("save", NOTEBOOK, play_save, communicates=False, watched=False)

WELL = ["ends", "ends", "ends"]
STOPPED = "a stopped rank counts as lost, too"
DIES = "the same if one dies and the others wait for it"
GIVES_UP = f"after {RESTARTS} restarts it gives up, with an error"
SCENES = {  # what must hold, and what each rank does in each attempt
    "it returns when all ranks have ended well": [WELL],
    "if one raises, all are started again, as attempt 1": [["ends", "ends", "raises"], WELL],
    DIES: [["waits", "dies", "waits"], WELL],
    STOPPED: [["waits", "waits", "stops"], WELL],
    GIVES_UP: [["waits", "raises"]] * (1 + RESTARTS),
}
KILL_HINT = "ranks of an earlier attempt still run. Kill them, and wait until they're gone."
ERROR_HINT = "raise an error at the end, or a job that failed looks like one that's done."
ENDLESS_HINTS = {  # for a supervisor that doesn't end in a scene
    DIES: (
        "it waits for rank 0, but rank 0 waits for the rank that's gone. Wait for whichever ends first, with "
        "`os.waitpid(-1, …)`, and then end the others."
    ),
    STOPPED: "a stopped rank hasn't ended, so `os.waitpid` returns only if you also give it `os.WUNTRACED`.",
    GIVES_UP: "a mistake in the script would start it forever: stop after `restarts`.",
}


def play_supervise(supervise: Callable, comm) -> Iterator[tuple]:
    """Play each scene with fake ranks."""
    for text, scene in SCENES.items():
        seen = FakeRanks(scene).run(supervise)
        starts = ", ".join(map(str, sorted(seen.starts)))
        hint = f"it started these (attempt, rank): {starts}. {UNKNOWN_HINT}"
        if seen.left:
            hint = KILL_HINT
        elif seen.end == "never ended":
            hint = ENDLESS_HINTS.get(text, UNKNOWN_HINT)
        elif seen.end == "returned" and text == GIVES_UP:
            hint = ERROR_HINT
        yield text, [sorted(seen.starts), seen.end.split()[0], seen.left], f"it {seen.end}:", hint


supervise = played("supervise", NOTEBOOK, play_supervise, communicates=False, watched=False)

BATCHES = [(64, 4), (64, 3), (10, 4), (3, 4), (5, 1)]  # (samples of the global batch, ranks)


def play_shares(my_share: Callable, comm) -> Iterator[tuple]:
    """Show how often each sample is taken, and how much it counts in the step, in each case."""
    cases = [(n, size, *_shares(my_share, n, size)) for n, size in BATCHES]
    for n, size, taken, _ in cases:
        yield "each sample is taken once", taken, f"with {n} samples on {size} ranks"
    for n, size, _, counts in cases:
        observed = f"with {n} samples on {size} ranks, samples count {min(counts):.3g} to {max(counts):.3g} times."
        yield "each counts alike, and together they are the mean", counts, observed


def _shares(my_share: Callable, n: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    taken = np.zeros(n, int)
    counts = np.zeros(n)
    for rank in range(size):
        returned, weight = my_share(np.arange(n), rank, size)
        samples = [int(sample) for sample in returned]
        np.add.at(taken, samples, 1)
        np.add.at(counts, samples, float(weight) * n / max(1, len(samples)))
    return taken, counts


MINE = "batch[rank::size]"
EACH = "len(batch) // size"
my_share = played(
    "my_share",
    NOTEBOOK,
    play_shares,
    [
        Edit("every rank takes the whole batch. `batch[rank::size]` is one way to deal it out.", (MINE, "batch")),
        Edit(
            "`//` drops the remainder, so the global batch shrinks. `batch[rank::size]` leaves nothing out.",
            (MINE, f"batch[rank * ({EACH}) : (rank + 1) * ({EACH})]"),
        ),
        Edit(
            "with `1 / size`, a sample of a small share counts more. Weight by the share's samples.",
            ("len(mine) / len(batch)", "1 / size"),
        ),
    ],
    communicates=False,
    watched=False,
    raised={"unpack": "it should `return` both, `samples, weight`."},
)

COSTS = [(1.0, 1000.0), (1.0, 100.0), (60.0, 3 * 3600.0), (0.002, 1.2)]  # seconds (per checkpoint, between failures)
NEAR = 0.004  # tolerance as a fraction of the best share: half of what it costs to forget the 2 under the root


def play_intervals(interval_s: Callable, comm) -> Iterator[tuple]:
    for save_s, mtbf_s in COSTS:
        interval = float(interval_s(save_s, mtbf_s))
        best = checkpoints.useful_share(checkpoints.young(save_s, mtbf_s), save_s, mtbf_s)
        share = checkpoints.useful_share(interval, save_s, mtbf_s) if interval < 100 * mtbf_s else 0.0
        near = share > best - NEAR * best
        text = f"{save_s:g} s per save, a failure every {mtbf_s:g} s: the useful share is within 0.4 points of the best"
        observed = f"saving every {interval:.4g} s leaves {share:.1%} useful, and {best:.1%} are possible:"
        yield text, "near" if near else interval, observed


SQUARE = "2 * save_s * mtbf_s"
ROOT = f"math.sqrt({SQUARE})"
interval_s = played(
    "interval_s",
    NOTEBOOK,
    play_intervals,
    [
        Edit("is the 2 under the root?", (SQUARE, "save_s * mtbf_s")),
        Edit("two saves per failure still lose a quarter of the time. What does a save cost?", (ROOT, "mtbf_s / 2")),
        Edit("take the square root.", (ROOT, SQUARE)),
    ],
    returns="the seconds",
    communicates=False,
)


def script(name: str, out: Path, *functions: Callable) -> Path:
    """Copy a script from notebooks/scripts to `out`, and put the learner's functions in place of the script's own.

    If a function is still a stub, the script keeps its own function of that name, and a line says so. Returns `out`.
    """
    text = (SCRIPTS / name).read_text(encoding="utf-8")
    for function in functions:
        if own_or_library(function, None) is function:
            text = text.replace(
                _definition(text, function.__name__),
                _imports(function) + textwrap.dedent(inspect.getsource(function)).rstrip() + "\n",
            )
    with replacing(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
    shutil.copy(SCRIPTS / "mnist_data.py", out.parent)  # which scripts import
    return out


def _imports(function: Callable) -> str:
    """The import lines for the modules that the function uses."""
    used = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    modules = {name: module.__name__ for name, module in used.items() if inspect.ismodule(module)}
    return "".join(f"import {module} as {name}\n" for name, module in modules.items())


def _definition(text: str, name: str) -> str:
    """The source of a function at the top level of a script."""
    [node] = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name]
    return "".join(text.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno])
