"""`%%ranks`: run a cell on every MPI rank."""

import argparse
import shlex

from IPython.core.magic import Magics, cell_magic, magics_class

from workshop_lib import ranks


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise ranks.RankError(f"%%ranks: {message}. Usage: %%ranks [--timeout SECONDS] [--catch]")


@magics_class
class RanksMagics(Magics):
    @cell_magic("ranks")
    def run_on_ranks(self, line: str, cell: str) -> None:
        """Run this cell on every rank, in the ranks' own namespace.

            %%ranks [--timeout SECONDS] [--catch]

        The cell is one program run by all ranks (SPMD): `MPI.COMM_WORLD.rank` tells them apart.
        Variables stay on the ranks; `ranks.current().pull("name")` brings one to the notebook.
        --timeout: seconds after which a cell that hangs is diagnosed and ended (60).
        --catch: print a failure instead of ending "Run all"; for cells that fail on purpose.
        """
        parser = _Parser(add_help=False)
        parser.add_argument("--timeout", type=float, default=60.0)
        parser.add_argument("--catch", action="store_true")
        options = parser.parse_args(shlex.split(line))
        # The number beside the cell: execution_count is that of the next one already.
        name = f"In[{self.shell.displayhook.prompt_count}]"
        try:
            # The line of the magic counts, so that messages name the line the learner sees.
            ranks.current().run_cell("\n" + cell, name, options.timeout)
        except ranks.RankError as error:
            if not options.catch:
                raise
            print(error)
