"""How 13b_runs_that_survive checks its exercises: safe checkpoints, how often to save, and a fixed global batch.

The supervisor that starts lost ranks again is checked in judge_supervise.py. `script` puts the learner's functions into
the scripts that the notebook trains with.
"""

import ast
import functools
import inspect
import math
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from workshop_lib.judge import Exercise, Property, own_or_library, own_or_solution, shown
from workshop_lib.judge.play import Edit, edited, played
from workshop_lib.lessons.runs_that_survive import checkpoints
from workshop_lib.lessons.runs_that_survive.judge_supervise import supervise
from workshop_lib.paths import SCRIPTS, replacing

__all__ = ["interval_s", "my_share", "save", "script", "supervise", "written"]

NOTEBOOK = "13b_runs_that_survive"
written = functools.partial(own_or_solution, notebook=NOTEBOOK)
OLD = {"step": 1, "weights": torch.ones(3)}
NEW = {"step": 2, "weights": torch.full((3,), 2.0)}
WATCHED = ("open", "os.remove", "os.rename", "os.truncate", "shutil.copyfile")
BATCHES = [(64, 4), (64, 3), (10, 4), (3, 4), (5, 1)]  # (samples of the global batch, ranks)
COSTS = [(1.0, 1000.0), (1.0, 100.0), (60.0, 3 * 3600.0), (0.002, 1.2)]  # seconds (per checkpoint, between failures)
NEAR = 0.004  # tolerance as a fraction of the best share: half of what it costs to forget the 2 under the root


@dataclass
class Saved:
    """What happened when OLD and then NEW was saved at one path, and when the disk was full half-way."""

    loaded: str  # the checkpoint that is there afterwards
    seen: list[str]  # what a rank would have loaded at each moment of saving NEW
    written: bool  # whether the file at the path was opened for writing
    full: str  # the checkpoint that is there after the disk was full
    raised: bool  # whether the function raised the error of the full disk
    left: list[str] = field(compare=False)  # names of the files in the folder at the end


class _FullDisk:
    """An object that can't be saved: pickling it raises the error of a full disk."""

    def __reduce__(self):
        raise OSError(28, "No space left on device")


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


@functools.cache
def _listeners() -> list[Callable[[str, tuple], None]]:
    """The functions that get every audit event of this process. Python can't remove a hook, so one serves them all."""
    listeners: list[Callable[[str, tuple], None]] = []

    def hook(event: str, arguments: tuple) -> None:
        for listener in tuple(listeners):
            listener(event, arguments)

    sys.addaudithook(hook)
    return listeners


def _watched(save: Callable, path: Path) -> tuple[list[str], bool]:
    """Save NEW, and watch the file at the path meanwhile.

    Returns what a rank would load each time Python is about to open, rename, remove or copy a file, and whether the
    file at the path was opened for writing.
    """
    seen: list[str] = []
    written = False
    watching = True

    def look(event: str, arguments: tuple) -> None:
        nonlocal written, watching
        if not watching or event not in WATCHED:
            return
        watching = False  # _loaded opens a file, too, which isn't the learner's doing
        to_path = event in ("open", "shutil.copyfile") and str(arguments[event != "open"]) == str(path)
        written |= to_path and (event != "open" or "r" not in (arguments[1] or "r") or "+" in arguments[1])
        seen.append(_loaded(path))
        watching = True

    _listeners().append(look)
    try:
        save(NEW, path)
    finally:
        _listeners().remove(look)
    return seen, written


def observe_save(comm, function: Callable) -> Saved:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "checkpoint.pt"
        function(OLD, path)
        seen, written = _watched(function, path)
        loaded = _loaded(path)
        raised = False
        torch.save(OLD, path)
        try:
            function({**NEW, "optimizer": _FullDisk()}, path)
        except OSError:
            raised = True
        left = sorted(each.name for each in Path(name).iterdir())
        return Saved(loaded, seen, written, _loaded(path), raised, left)


WEIGHTS_HINT = "save all of `state`: without the optimizer and the step, training can't go on exactly."
DIRECT_HINT = "write to a file with a different name, and give it the right one once it's whole."
GONE_HINT = "don't remove the old one first: `os.replace` takes its place in a single step."
COPIED_HINT = "a copy is written byte by byte, too. Rename the file instead, with `os.replace`."
SILENT_HINT = "let the error through, or training goes on for days without a checkpoint, and nobody knows."


def save_properties(observations: list[Saved]) -> Iterator[Property]:
    seen = observations[0]
    hint = WEIGHTS_HINT if seen.loaded == "something else" else f"afterwards, there is {seen.loaded}."
    yield Property("what was saved can be loaded", seen.loaded == "the new one", hint)
    hint = f"the disk was full half-way, and a rank that started then would find {seen.full}: {DIRECT_HINT}"
    yield Property("a full disk leaves the old one alone", seen.full == "the old one", hint)
    hint = f"for a moment there was no checkpoint at all: {GONE_HINT}"
    yield Property("there's a checkpoint at any time", "no checkpoint" not in seen.seen, hint)
    torn = seen.written or "half a checkpoint" in seen.seen
    hint = f"bytes went into the file that others may be reading: {COPIED_HINT}"
    yield Property("and never half of one", not torn, hint)
    yield Property("a full disk is reported", seen.raised, SILENT_HINT)


save = Exercise("save", observe_save, save_properties, communicates=False)


def observe_shares(comm, function: Callable) -> list[list]:
    """What the function returns on every rank, for each of BATCHES."""
    return [[_pair(function(np.arange(100, 100 + n), rank, size)) for rank in range(size)] for n, size in BATCHES]


def _pair(returned):
    try:
        samples, weight = returned
        return [int(sample) for sample in samples], float(weight)
    except (TypeError, ValueError):
        return shown(returned)


def share_properties(observations: list) -> Iterator[Property]:
    cases = [(n, size, shares) for (n, size), shares in zip(BATCHES, observations[0], strict=True)]
    others = (share for *_, shares in cases for share in shares if isinstance(share, str))
    hint = "return this rank's samples and their weight, `samples, weight`."
    yield Property.unless("it returns samples and a weight", (f"it returned {other}: {hint}" for other in others))
    for text, problem_of in (("each sample is taken once", _cover), ("the weighted sum is the mean", _weighted)):
        problems = [(n, size, problem_of(n, shares)) for n, size, shares in cases]
        first = next((f"{n} samples on {size} rank(s): {problem}:" for n, size, problem in problems if problem), "")
        yield Property(text, not first, evidence=first, observed=first)


def _cover(n: int, shares: list) -> str:
    taken = [sample for samples, _ in shares for sample in samples]
    if sorted(taken) == list(range(100, 100 + n)):
        return ""
    missing = n - len(set(taken))
    twice = len(taken) - len(set(taken))
    return f"{twice} are taken more than once" if twice else f"{missing} are left out"


def _weighted(n: int, shares: list) -> str:
    """A sentence if some sample of the batch doesn't count 1/n; otherwise empty."""
    counts = {weight / len(samples) for samples, weight in shares if samples}
    if all(math.isclose(count, 1 / n, rel_tol=1e-6) for count in counts):
        return ""
    low = min(counts) * n
    high = max(counts) * n
    if math.isclose(low, high):
        return f"each sample counts {low:.3g} times as much as it should"
    return f"some samples count {low:.2f} times, others {high:.2f} times as much as they should"


MINE = "batch[rank::size]"
WEIGHT = "len(mine) / len(batch)"
EACH = "len(batch) // size"
my_share = Exercise(
    "my_share",
    observe_shares,
    share_properties,
    edited(
        "my_share",
        NOTEBOOK,
        [
            Edit("every rank takes the whole batch. `batch[rank::size]` is one way to deal it out.", (MINE, "batch")),
            Edit(
                "`//` drops the remainder, so the global batch shrinks. `batch[rank::size]` leaves nothing out.",
                (MINE, f"batch[rank * ({EACH}) : (rank + 1) * ({EACH})]"),
            ),
            Edit(
                "with `1 / size`, a sample of a small share counts more. Weight by the share's samples.",
                (WEIGHT, "1 / size"),
            ),
            Edit("divide by the samples of the whole batch: then the weights add up to 1.", (WEIGHT, "len(mine)")),
        ],
    ),
    communicates=False,
)


def play_intervals(interval_s: Callable, comm) -> Iterator[tuple]:
    for save_s, mtbf_s in COSTS:
        interval = float(interval_s(save_s, mtbf_s))
        best = checkpoints.useful_share(checkpoints.daly(save_s, mtbf_s), save_s, mtbf_s)
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
        Edit("that's a share, not seconds: multiply them.", (SQUARE, "2 * save_s / mtbf_s")),
        Edit("two saves per failure still lose a quarter of the time. What does a save cost?", (ROOT, "mtbf_s / 2")),
        Edit("the 2 belongs under the root.", (ROOT, "2 * math.sqrt(save_s * mtbf_s)")),
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
