"""What a check says about a function that raised, waited or never ended on the ranks: its own lines, and a hint."""

import contextlib
import re
from collections.abc import Mapping

from workshop_lib import ranks
from workshop_lib.ranks.call import engine
from workshop_lib.ranks.faults.rank_errors import DEADLOCK, MISSING_NAME, is_communicating

ENDLESS_HINT = "the function doesn't end: is there a `while` whose condition stays true?"
STUCK_HINT = "some rank waits for a message or a collective that never comes; the lines below say where."
RAISED = {  # hints for errors of MPI, by words in their text that both Open MPI and MPICH use
    "truncate": "a message was larger than the array that receives it: give that array the size of what arrives.",
    "mismatch in send and receive": "the two arrays have different types: `np.empty_like(mine)` has that of `mine`.",
    "invalid buffer pointer": "MPI can't read from and write to the same array: `comm.Allreduce(MPI.IN_PLACE, g)` adds "
    "up in place, and `comm.Allreduce(g, total)` needs a `total` of its own.",
}
TRAVELS = (
    "Your function has its arguments, and what cells without %%ranks define or import: define it in such a cell, and "
    "give it what it needs as arguments."
)
_OURS = r"(?:workshop_lib/(?:exercises|ranks)|notebooks/lessons)/[\w/]+\.py, line \d+, in "
_CALL = re.compile(rf"^    {_OURS}.*\n        .*\n", re.MULTILINE)  # one call of a traceback
_PLACE = re.compile(rf"(?:still )?at {_OURS}.*$", re.MULTILINE)  # where a rank was, when it was not in the function
_INSIDE_PLAY = re.compile(r"\b\w+\.<locals>\.")  # how Python begins the name of a function that a play defines


def learners_lines(text: str) -> str:
    """The text of ranks' errors without lines of the workshop's own files."""
    text = _INSIDE_PLAY.sub("", _CALL.sub("", text))
    return _PLACE.sub("had finished your function", text).replace("It was had", "It had")


def hint_for(
    error: ranks.RankError, timeout_s: float, communicates: bool, stuck: str, raised: Mapping[str, str]
) -> str:
    """What to do about a function that raised on some rank or did not end; empty if the error says enough.

    stuck and raised: the hints of the exercise itself.
    """
    text = str(error)
    if text.startswith(DEADLOCK):
        return stuck or STUCK_HINT
    if text.startswith(f"not finished after {timeout_s:g} s"):
        places = ranks.current().positions.values()
        if communicates and places and all(map(_computes, places)):
            return ENDLESS_HINT
        return stuck or (STUCK_HINT if communicates else ENDLESS_HINT)
    missing = MISSING_NAME.search(text)
    only_there = on_ranks_only(missing[1]) if missing else ""
    if only_there:
        return f"{only_there} {TRAVELS}"
    return next((advice for words, advice in (RAISED | dict(raised)).items() if words.lower() in text.lower()), "")


def _computes(place: str) -> bool:
    """Whether a rank was in a line of the learner's, and in no call that waits for other ranks."""
    waits = is_communicating([{"file": "", "line": 0, "name": "", "code": place}]) or ".wait(" in place
    return place.startswith("at ") and "(inside" not in place and not waits


def on_ranks_only(name: str) -> str:
    """A hint if only the ranks have a variable of this name; empty otherwise."""
    with contextlib.suppress(ranks.RankError):
        if name in (ranks.current().ask(engine.variables, limit_s=2.0) or ()):
            return f"a %%ranks cell made `{name}`, so only %%ranks cells have it."
    return ""
