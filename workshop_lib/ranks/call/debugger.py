"""`breakpoint()` on ranks: Python's own debugger on each rank, with one prompt for all ranks in the notebook.

A rank that reaches a breakpoint prints pdb's text like any other text, publishes that it is waiting, and waits for a
file with the next command in the ranks' folder. The notebook asks the learner for the command (prompt.py). This adds
no way to hang: a rank that is lost meanwhile is reported after the answer, the stop button works, and a rank that gets
no answer continues by itself.
"""

import json
import pdb
import reprlib
import sys
import time
import types
from pathlib import Path
from typing import IO, cast

from ipyparallel.engine.datapub import publish_data

from .messages import PdbCommand

ANSWER_LIMIT_S = 600.0  # how long a rank waits for the next command
LOOK_EVERY_S = 0.05


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


def command_file(folder: Path, rank: int) -> Path:
    return folder / f"pdb.{rank}.json"
