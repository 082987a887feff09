"""`%%ranks`: a cell that runs on the ranks."""

import argparse
import shlex

from IPython.core.magic import Magics, cell_magic, magics_class

from workshop_lib.ranks import RankError, current


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise RankError(f"%%ranks: {message}. Usage: %%ranks [--on RANK,RANK] [--timeout SECONDS] [--catch]")


def _ranks(text: str) -> list[int]:
    return sorted({int(number) for number in text.split(",")})


_ranks.__name__ = "rank, or several with commas between them"  # argparse calls it so in its message

PARSER = _Parser(add_help=False)
PARSER.add_argument("--on", type=_ranks)
PARSER.add_argument("--timeout", type=float, default=60.0)
PARSER.add_argument("--catch", action="store_true")


@magics_class
class RanksMagics(Magics):
    @cell_magic("ranks")
    def run_on_ranks(self, line: str, cell: str) -> None:
        """Run this cell on every rank, in the ranks' own namespace.

            %%ranks [--on RANK,RANK] [--timeout SECONDS] [--catch]

        The cell is one program run by all ranks (SPMD): `MPI.COMM_WORLD.rank` tells them apart.
        Variables stay on the ranks; `current().pull("name")` brings one to the notebook.
        What ranks display stands side by side; the value of a last expression is shown.
        --on: the ranks that run the cell, such as 1 or 0,2. A collective needs every rank.
        --timeout: seconds after which a cell that hangs is diagnosed and ended (60).
        --catch: print a failure instead of ending "Run all"; for cells that fail on purpose.
        """
        options = PARSER.parse_args(shlex.split(line))
        # The number beside the cell: execution_count is that of the next one already.
        name = f"In[{self.shell.displayhook.prompt_count}]"
        try:
            # The line of the magic counts, so that messages name the line the learner sees.
            current().run_cell("\n" + cell, name, options.timeout, options.on)
        except RankError as error:
            if not options.catch:
                raise
            print(error)
