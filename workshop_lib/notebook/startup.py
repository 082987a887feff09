"""Code that every new kernel of .venv runs: the set-up copies this file to where IPython looks for start-up files.

It makes `%%ranks` known in a notebook that was just opened, or whose kernel was restarted. The magic's own module
is imported on first use, and says which cell starts the ranks.
"""

import sys as _sys

from IPython.core.magic import register_cell_magic as _register

import workshop_lib as _workshop_lib  # makes Python look last in folders that hide modules: shadowing.py

# However the kernel was started, the notebook's own folder comes last, so that no file in it hides a package.
_sys.path[:] = [entry for entry in _sys.path if entry] + [""]


@_register("ranks")
def _ranks_in_a_new_kernel(line, cell):
    from IPython import get_ipython

    import workshop_lib.notebook  # noqa: F401 - replaces this magic by the real one

    return get_ipython().run_cell_magic("ranks", line, cell)


del _register, _sys, _workshop_lib, _ranks_in_a_new_kernel
