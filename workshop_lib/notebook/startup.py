"""What every new kernel of .venv runs: the set-up puts a copy where IPython looks for start-up files.

A notebook that was just opened, or whose kernel was restarted, knows `%%ranks` only from here: the magic's own
module comes with the first use, and says which cell starts the ranks.
"""

import sys as _sys

from IPython.core.magic import register_cell_magic as _register

import workshop_lib as _workshop_lib  # which looks last in folders that hide what notebooks import: shadowing.py

# The notebook's own folder, in whichever way the kernel was started: last, so that nothing there hides a package.
_sys.path[:] = [entry for entry in _sys.path if entry] + [""]


@_register("ranks")
def _ranks_in_a_new_kernel(line, cell):
    from IPython import get_ipython

    import workshop_lib.notebook  # noqa: F401 - puts the real magic in this one's place

    return get_ipython().run_cell_magic("ranks", line, cell)


del _register, _sys, _workshop_lib, _ranks_in_a_new_kernel
