"""`breakpoint()` on ranks: Python's own debugger on each rank, with one prompt for all ranks in the notebook.

A rank that reaches a breakpoint prints pdb's text like any other text, publishes that it is waiting, and waits for a
file with the next command in the ranks' folder. The notebook asks the learner for the command below the cell. This adds
no way to hang: a rank that is lost meanwhile is reported after the answer, the stop button works, and a rank that gets
no answer continues by itself.
"""

import json
import pdb
import re
import reprlib
import sys
import time
import types
from pathlib import Path
from typing import IO, cast

from ipyparallel.engine.datapub import publish_data
from IPython.core.error import StdinNotImplementedError

from workshop_lib.paths import replacing
from workshop_lib.ranks.faults.rank_errors import named

from .messages import CallUnderWay, PdbCommand

ANSWER_LIMIT_S = 600.0  # how long a rank waits for the next command
LOOK_EVERY_S = 0.05
SETTLE_S = 0.4  # time for other ranks to reach their breakpoint too
FOR_SOME = re.compile(r"@(\d+(?:,\d+)*)\s+(.*)")
NOBODY_IS_THERE = "Nobody's there to answer at this breakpoint, so you get the variables, and the ranks go on."
HELP = "v: variables, n: next line, c: go on, q: quit, h: all commands; @1 v: on rank 1 alone"


class RankDebugger(pdb.Pdb):
    """pdb on a rank. It reads its commands from the notebook, and adds the command `v`, which shows the variables."""

    def __init__(self, folder: Path, rank: int):
        commands = cast(IO[str], self)  # pdb calls no other method than readline
        super().__init__(stdin=commands, stdout=sys.stdout, nosigint=True, readrc=False, skip=["workshop_lib.ranks.*"])
        self.command_file = command_file(folder, rank)
        self.prompt = ""
        self.questions = 0

    def pause(self, *_, **__) -> None:
        """Stop on the next line of the caller. This is what `breakpoint()` calls."""
        self.stdout = sys.stdout
        caller = sys._getframe(1)
        # pdb leaves __return__ behind in the last cell that it saw finish, and would show it as a variable.
        caller.f_locals.pop("__return__", None)
        self.set_trace(caller)

    def canonic(self, filename: str) -> str:
        """The canonical path of a file. The name of a cell is not a path, and stays as it is."""
        return filename if filename.startswith("In[") else super().canonic(filename)

    def readline(self) -> str:
        """The next command from the notebook; "quit" after an interrupt, "continue" after ANSWER_LIMIT_S."""
        self.questions += 1
        self.stdout.flush()
        publish_data({"at_breakpoint": self.questions})
        deadline = time.monotonic() + ANSWER_LIMIT_S
        try:
            while time.monotonic() < deadline:
                if self.command_file.exists():
                    command: PdbCommand = json.loads(self.command_file.read_text())
                    if command["question"] == self.questions:
                        return f"{command['command']}\n"
                time.sleep(LOOK_EVERY_S)
        except KeyboardInterrupt:  # pdb itself would only ask again
            return "quit\n"
        self.message(f"No command came for {ANSWER_LIMIT_S:g} s: this rank goes on.")
        return "continue\n"

    def do_v(self, _) -> None:
        """v: the variables of this function, or of the cell, each cut to one line."""
        for name, value in self.curframe_locals.items():
            if not name.startswith("_") and not isinstance(value, types.ModuleType | type) and not callable(value):
                self.message(f"{name} = {' '.join(reprlib.repr(value).split())}")


class Prompt:
    """Asks for the next command when ranks wait at a breakpoint."""

    def __init__(self, call: CallUnderWay):
        self.call = call
        self.answered: dict[int, int] = {}  # by rank: the number of the last question that was answered
        self.since: float | None = None  # since when ranks have been waiting

    def waiting(self) -> dict[int, int]:
        """The ranks that wait at a breakpoint, each with the number of its question."""
        asked = {rank: self.call.published_by(rank).get("at_breakpoint", 0) for rank in self.call.running}
        return {rank: number for rank, number in asked.items() if number > self.answered.get(rank, 0)}

    def is_due(self) -> bool:
        """Whether all running ranks wait at a breakpoint, or some do and the others have had time to reach theirs."""
        if not (waiting := self.waiting()):
            self.since = None
            return False
        self.since = self.since or time.monotonic()
        everyone = len(waiting) == len(self.call.running)
        return time.monotonic() - self.since > (SETTLE_S / 4 if everyone else SETTLE_S)

    def ask(self) -> None:
        """Ask the learner for one command, and pass it on to the ranks."""
        waiting = self.waiting()
        ranks, command = self._command(sorted(waiting))
        for rank in ranks:
            with replacing(command_file(self.call.team.folder, rank)) as temporary:
                temporary.write_text(json.dumps(PdbCommand(question=waiting[rank], command=command)))
            self.answered[rank] = waiting[rank]
        self.since = None

    def _command(self, waiting: list[int]) -> tuple[list[int], str]:
        """Ask the learner which ranks should run which command; return the ranks and the command."""
        names = named(waiting)
        hint = "" if self.answered else f" ({HELP})"
        while True:
            try:
                line = input(f"pdb on {names}{hint}: ").strip()
            except (StdinNotImplementedError, EOFError, OSError):
                print(NOBODY_IS_THERE)
                return waiting, "v ;; continue"
            for_some = FOR_SOME.fullmatch(line)
            ranks = [int(number) for number in for_some[1].split(",")] if for_some else waiting
            if not (elsewhere := [rank for rank in ranks if rank not in waiting]):
                return ranks, for_some[2] if for_some else line
            print(f"Rank {elsewhere[0]} isn't at a breakpoint. At one: {names}.")


def command_file(folder: Path, rank: int) -> Path:
    return folder / f"pdb.{rank}.json"
