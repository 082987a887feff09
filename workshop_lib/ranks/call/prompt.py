"""The notebook's side of `breakpoint()` on ranks: one prompt for all ranks that wait at one (debugger.py)."""

import json
import re
import time

from IPython.core.error import StdinNotImplementedError

from workshop_lib.paths import replacing
from workshop_lib.ranks.faults.rank_errors import named

from .call import Call
from .debugger import command_file
from .messages import PdbCommand

SETTLE_S = 0.4  # time for other ranks to reach their breakpoint too
FOR_SOME = re.compile(r"@(\d+(?:,\d+)*)\s+(.*)")
NOBODY_IS_THERE = "Nobody's there to answer at this breakpoint, so you get the variables, and the ranks go on."
HELP = "v: variables, n: next line, c: go on, q: quit, h: all commands; @1 v: on rank 1 alone"


class Prompt:
    """Asks for the next command when ranks wait at a breakpoint."""

    def __init__(self, call: Call):
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
