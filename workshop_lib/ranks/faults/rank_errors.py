"""Errors of ranks, in words that let a learner act on them."""

import linecache
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType

from workshop_lib.errors import WorkshopError
from workshop_lib.machine import kernel
from workshop_lib.ranks.call.messages import ErrorReport, ExitRecord, Frame, StopNote
from workshop_lib.words import ranges

_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)')
# Files that run the learner's code, and files that it calls. The line to look at is never in one of them.
OF_CALLS = ("ranks/call/engine.py", "ranks/call/cells.py", "ranks/call/printed.py")
IN_BETWEEN = (*OF_CALLS, "training/torch_mpi.py", "machine/emulation/", "exercises/")
LESSONS = "notebooks/lessons/"
# How to recognize code that waits for other ranks: mpi4py's calls by their name in the line, frameworks by their files.
_MPI_CALL = re.compile(
    r"\.((?i:all(reduce|gatherv?|toall[vw]?)|barrier|bcast|gatherv?|scatterv?|reduce(_scatter(_block)?)?|(ex)?scan"
    r"|[bsr]?send|recv|sendrecv(_replace)?|m?probe|waitall)|(Wait|Test)(all|any|some)?|Split\w*|Dup|Create\w*|Fence|Free)\("
)
COMMUNICATION = ("torch/distributed/", "/horovod/", "deepspeed/comm/")
EMULATED = "workshop_lib/machine/emulation/comm.py"  # carries the calls of emulated ranks
FRAMEWORKS = ("torch", "tensorflow", "keras", "deepspeed", "horovod")
DEADLOCK = "deadlock"  # how the error of a call begins whose ranks wait for each other
PLACES_SHOWN = 6  # a message about a hundred ranks has to fit a screen
FRAMES_SHOWN = 5
PARTS_LISTED = 12
HOLD_AGAIN = "Start ranks there again (`workshop engines start`), then attach."
_ASKED = "Stack (most recent call first)"  # of the one thread that was asked; after a crash, each thread has a heading
MISSING_NAME = re.compile(r"NameError: name '(\w+)' is not defined")
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)'")
_THREAD = re.compile(r"(?:Current thread|Thread) 0x(?P<ident>[0-9a-f]+)")


class RankError(WorkshopError, RuntimeError):
    """Something went wrong on the ranks; the text says what, where, and what to do next.

    what: the text without what to do next, for a caller that does it; empty if nothing can be left out.
    reports: the errors that ranks raised, if they ended a call. The text's last line is then about the ranks' state.
    """

    what: str = ""

    reports: tuple[ErrorReport, ...] | None = None


def remember_source(source: str, name: str) -> None:
    """Remember a cell's source, so that later messages can quote its lines."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)


def parse_stack(text: str, main_thread: int) -> list[Frame]:
    """The frames of the main thread, innermost first, from the last stack that faulthandler wrote."""
    frames: list[Frame] = []
    ours = False
    for row in text.splitlines():
        if row.startswith(_ASKED):
            ours = True
            frames = []
        elif thread := _THREAD.match(row):
            ours = int(thread["ident"], 16) == main_thread
            frames = [] if ours else frames
        elif ours and (frame := _FRAME.match(row)):
            frames.append({"file": frame["file"], "line": int(frame["line"]), "name": frame["name"]})
    return frames


def _is_library(file: str) -> bool:
    if "/lib/python3" in file or file.endswith((".pyx", ".pxi")) or file.startswith("<"):
        return True
    return LESSONS in file or any(f"workshop_lib/{part}" in file for part in IN_BETWEEN)


def _place(frame: Frame) -> str:
    return f"{short_name(frame['file'])}, line {frame['line']}, in {frame['name']}"


def short_name(file: str) -> str:
    """A file's name as the learner knows it: the cell, or the path from its package on."""
    shell = kernel.shell()
    if shell and (cell := shell.compile.format_code_name(file)):
        return " ".join(cell).removeprefix("Cell ")
    if "site-packages/" in file:
        return file.split("site-packages/")[-1]
    _, folder, rest = file.rpartition(LESSONS if LESSONS in file else "workshop_lib/")
    return folder + rest


def _code(frame: Frame) -> str:
    return (frame.get("code") or linecache.getline(frame["file"], frame["line"])).strip()


def listed(ranks: Sequence[int]) -> str:
    """These ranks as a list in which three or more in a row are a range, such as "0–126, 128"."""
    parts = ranges(ranks)
    if len(parts) > PARTS_LISTED:
        parts = [*parts[: PARTS_LISTED - 1], f"… ({len(ranks)} in all)"]
    return ", ".join(parts)


def named(ranks: Sequence[int]) -> str:
    """These ranks in words, such as "rank 1" or "ranks 0–126, 128"."""
    return f"rank {listed(ranks)}" if len(ranks) == 1 else f"ranks {listed(ranks)}"


def grouped(words: Mapping[int, str]) -> list[tuple[list[int], str]]:
    """The ranks of which the same words hold, with these words; the smallest groups, the odd ones out, come first."""
    ranks_by_words: dict[str, list[int]] = {}
    for rank in sorted(words):
        ranks_by_words.setdefault(words[rank], []).append(rank)
    groups = [(ranks, text) for text, ranks in ranks_by_words.items()]
    return sorted(groups, key=lambda group: len(group[0]))


def where(frames: list[Frame]) -> str:
    """One rank's position in words: the learner's line, and the library call that the rank is inside, if any."""
    if not frames:
        return "at an unknown line: it did not say where it is"
    own = next((frame for frame in frames if not _is_library(frame["file"])), None)
    is_idle = own is None or own["file"].endswith("ranks/launch/node_agent.py")  # the agent made this rank
    if is_idle and frames[0]["name"] == "select":
        awaits = any(frame["name"] == "run_until_complete" for frame in frames)
        return "at an `await`" if awaits else "done with its part"
    if own is None:
        return f"idle or in library code ({_place(frames[0])})"
    inside = "" if own is frames[0] else f"   (inside {short_name(frames[0]['file'])}, {frames[0]['name']})"
    return f"at {_place(own)}:  {_code(own)}{inside}"


def traceback_text(error: ErrorReport) -> str:
    """A rank's error as text: two lines for each of the learner's frames and the innermost one, and the message."""
    frames = [f for f in error["frames"] if not _is_library(f["file"])]
    innermost = next((f for f in reversed(error["frames"]) if not f["file"].endswith((".pyx", ".pxi"))), None)
    if innermost is not None and innermost not in frames:
        frames.append(innermost)
    rows = [f"    {_place(frame)}\n        {_code(frame)}" for frame in frames]
    if len(rows) > FRAMES_SHOWN:  # a function that calls itself has a thousand
        last = rows[-FRAMES_SHOWN + 1 :]
        rows = [rows[0], f"    … {len(rows) - FRAMES_SHOWN} more calls …", *last]
    return "\n".join([*rows, f"    {error['text']}", *_only_here(error["text"])])


def _only_here(text: str) -> list[str]:
    """A line about an error's cause if the ranks lack a name or module that the notebook has; else none."""
    here = getattr(kernel.shell(), "user_ns", {})
    module = _MISSING_MODULE.search(text)
    if module and module[1] in sys.modules:
        file = getattr(sys.modules[module[1]], "__file__", None)
        place = f"in {file}" if file else "without a file"
        return [f"    The notebook has `{module[1]}` {place}, where the ranks can't find it."]
    missing = MISSING_NAME.search(text)
    if not missing or missing[1] not in here:
        return []
    name = missing[1]
    value = here[name]
    lead = f"    `{name}` is a variable of the notebook, which ranks don't see."
    if isinstance(value, ModuleType):
        return [f"{lead} Import {value.__name__} in a %%ranks cell."]
    if type(value).__module__.startswith("workshop_lib.ranks"):
        return [f"{lead} Use it in a cell without %%ranks."]
    return [f"{lead} Send it with `team.push({name}={name})` in a cell without %%ranks."]


def is_communicating(frames: list[Frame]) -> bool:
    """Whether the innermost call waits for other ranks, judged by its name or file."""
    if not frames:
        return False
    file = frames[0]["file"]
    if "site-packages/" in file:
        return any(part in file for part in COMMUNICATION)
    if EMULATED in file:
        return True
    return bool(_MPI_CALL.search(_code(frames[0])))


def is_in_framework(frames: list[Frame]) -> bool:
    """Whether the innermost call is in a framework, which may communicate although the call's name does not say so."""
    return bool(frames) and any(f"site-packages/{name}/" in frames[0]["file"] for name in FRAMEWORKS)


def how_it_ended(record: ExitRecord) -> str:
    """How the rank of this exit record ended, in words."""
    return ending(record["returncode"], record.get("why", ""))


def ending(code: int, why: str = "") -> str:
    """How a process with this exit code ended, in words. why: the limit that ended it, as the end of a sentence."""
    if code >= 0:
        return f"ended with exit code {code}"
    why = f", because {why}" if why else ""
    if code == -signal.SIGTERM:
        why = ", as when a job is canceled or its time is up"
    return f"was killed by {signal_name(-code)}{why}"


def signal_name(number: int) -> str:
    """A signal's name, such as "SIGKILL"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def stopped_text(note: StopNote) -> str:
    """Which signal has stopped a rank, and how it can go on, in words."""
    signal_sent = signal_name(note["signal"])
    return f"stopped by {signal_sent}. `kill -CONT {note['pid']}` on {note['host']} lets it go on"


def positions_text(places: Mapping[int, str], still: str = "") -> str:
    """Where these ranks were, as lines: one line for all ranks that were at the same place."""
    groups = grouped(places)
    rows = []
    for ranks, place in groups[:PLACES_SHOWN]:
        rows.append(f"  {named(ranks)}: {still}{place}")
    if rest := [rank for ranks, _ in groups[PLACES_SHOWN:] for rank in ranks]:
        rows.append(f"  {named(rest)}: elsewhere (`team.positions` has the place of each rank)")
    return "\n".join(rows)
