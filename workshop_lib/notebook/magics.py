"""`%%ranks`: a cell that runs on the ranks."""

import argparse
import contextlib
import difflib
import re
import shlex

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class

from workshop_lib.exercises.did_not_end import on_ranks_only
from workshop_lib.ranks import RankError, current
from workshop_lib.ranks.call import cells

ANSWER_LIMIT_S = 1.0  # longest wait for a completion or an inspection
STUB = "NotImplementedError: your code here"  # the error of an exercise that is still open
EXPLAINED = (NameError, UsageError)
UNKNOWN_MAGIC = re.compile(r"magic (?:function )?`%+(\w+)` not found\.")  # in the text of IPython's UsageError
FIRST_LINE = re.compile(r"\A\s*%%ranks\b.*\n")


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise RankError(f"%%ranks: {message}. Usage: %%ranks [--on RANK,RANK] [--timeout SECONDS] [--catch]")


def _ranks(text: str) -> list[int]:
    try:
        return sorted({int(number) for number in text.split(",")})
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is neither a rank nor several, as 0,2 is") from None


PARSER = _Parser(add_help=False)
PARSER.add_argument("--on", type=_ranks)
PARSER.add_argument("--timeout", type=float, default=60.0)
PARSER.add_argument("--catch", action="store_true")


def current_team():
    try:
        return current()
    except RankError as error:
        again = "After a kernel restart, Run > Run All Above Selected Cell runs the cells before this one."
        raise RankError(f"{error} {again}") from None


class RankAnswers:
    """Answers Tab and Shift+Tab in `%%ranks` cells: rank 0 looks up its own variables, if it has nothing else to do."""

    def __init__(self, kernel):
        self.complete_here = kernel.do_complete
        self.inspect_here = kernel.do_inspect
        kernel.do_complete = self.complete
        kernel.do_inspect = self.inspect

    def complete(self, code: str, cursor: int | None):
        start, cursor = _split(code, cursor)
        if cursor < start:
            return self.complete_here(code, cursor)
        reply = _ask(cells.complete, code[start:], cursor - start)
        if reply is None:
            return {"matches": [], "cursor_start": cursor, "cursor_end": cursor, "metadata": {}, "status": "ok"}
        places = [(reply, "cursor_start", "cursor_end")]
        places += [(match, "start", "end") for match in reply["metadata"].get("_jupyter_types_experimental", ())]
        for place, first, last in places:
            place[first] += start
            place[last] += start
        return reply

    def inspect(self, code: str, cursor: int | None, detail_level: int = 0, omit_sections=()):
        start, cursor = _split(code, cursor)
        if cursor < start:
            return self.inspect_here(code, cursor, detail_level, omit_sections)
        reply = _ask(cells.inspect, code[start:], cursor - start, detail_level)
        return reply or {"found": False, "data": {}, "metadata": {}, "status": "ok"}


def _split(code: str, cursor: int | None) -> tuple[int, int]:
    """Two offsets: where the code for the ranks begins (past the end if there is none), and where the cursor is."""
    first_line = FIRST_LINE.match(code)
    cursor = len(code) if cursor is None else cursor
    return (first_line.end() if first_line else len(code) + 1), cursor


def _ask(function, *args):
    with contextlib.suppress(RankError):
        return current().ask(function, *args, limit_s=ANSWER_LIMIT_S)
    return None


def _stub(error: RankError) -> str:
    """The function or class that is still a stub, if every failed rank called it; empty otherwise."""
    reports = error.reports or ()
    if not reports or not all(report["text"].startswith(STUB) for report in reports):
        return ""
    return reports[0]["frames"][-1]["name"]


def explain_error(shell, kind: type, error: Exception, traceback, tb_offset: int | None = None) -> None:
    """Show a cell's error of one of the kinds in EXPLAINED.

    A line is added if only the ranks have a variable of the missing name, or if the missing magic is like `%%ranks`.
    """
    if isinstance(error, NameError):
        only_there = on_ranks_only(error.name) if error.name else ""
        if only_there:
            error.add_note(only_there)
    else:
        error.args = (f"{error} {_meant_ranks(str(error))}".rstrip(),)
    shell.showtraceback((kind, error, traceback), tb_offset=tb_offset)


def _meant_ranks(text: str) -> str:
    """What to do if IPython knows no magic of a name like `%%ranks` in this place; empty for other errors."""
    unknown = UNKNOWN_MAGIC.search(text)
    if not unknown or not difflib.get_close_matches(unknown[1].lower(), ["ranks"]):
        return ""
    if unknown[1] != "ranks":
        return "Did you mean `%%ranks`, as the first line of the cell?"
    return "`%%ranks` must be the first line of the cell: move what stands above it, even a comment, below it."


def unindented(lines: list[str]) -> list[str]:
    """A cell's lines with no blank before a first `%%ranks`, as IPython wants a cell magic."""
    return [lines[0].lstrip(), *lines[1:]] if lines and FIRST_LINE.match(lines[0]) else lines


@magics_class
class RanksMagics(Magics):
    @cell_magic("ranks")
    def run_on_ranks(self, line: str, cell: str) -> None:
        """Run this cell on every rank, in the ranks' own namespace.

            %%ranks [--on RANK,RANK] [--timeout SECONDS] [--catch]

        All ranks run the same cell (SPMD), and `MPI.COMM_WORLD.rank` tells them apart.
        Variables stay on the ranks; `current().pull("name")` copies one to the notebook.
        What the ranks display stands side by side, and so does the value of a last expression.
        `breakpoint()` stops the ranks in pdb; below the cell, one prompt serves all of them.
        --on: the ranks that run the cell, such as 1 or 0,2. A collective needs every rank.
        --timeout: seconds after which a cell that hangs is diagnosed and ended (60).
        --catch: print a failure instead of ending "Run all", for cells that fail on purpose.
        A cell that calls an exercise's stub says so, and doesn't end "Run all" either.
        """
        options = PARSER.parse_args(shlex.split(line))
        # prompt_count is the number beside this cell. execution_count already belongs to the next cell.
        name = f"In[{self.shell.displayhook.prompt_count}]"
        try:
            # The extra newline stands for the magic's line, so that messages give the line numbers the learner sees.
            current_team().run_cell("\n" + cell, name, options.timeout, options.on)
        except RankError as error:
            if name := _stub(error):
                print(f"{name} isn't written yet. Write it above, then run this cell again.")
            elif options.catch:
                print(error)
            else:
                raise
