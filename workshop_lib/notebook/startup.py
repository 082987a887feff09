"""Code that every new kernel of .venv runs: the set-up copies this file to where IPython looks for start-up files.

It makes `%%ranks` known in a notebook that was just opened, or whose kernel was restarted, and explains a NameError
there, or a misspelled `%%ranks`. The magic's own module is imported on first use, and says which cell starts the ranks.
"""

import sys as _sys

from IPython import get_ipython as _get_ipython
from IPython.core.error import UsageError as _UsageError
from IPython.core.magic import register_cell_magic as _register

import workshop_lib as _workshop_lib  # makes Python look last in folders that hide modules: shadowing.py

# However the kernel was started, the notebook's own folder comes last, so that no file in it hides a package.
_sys.path[:] = [entry for entry in _sys.path if entry] + [""]


@_register("ranks")
def _ranks_in_a_new_kernel(line, cell):
    from IPython import get_ipython

    import workshop_lib.notebook  # noqa: F401 - replaces this magic by the real one

    return get_ipython().run_cell_magic("ranks", line, cell)


def _explain(shell, kind, error, traceback, tb_offset=None):
    if not issubclass(kind, NameError):
        from workshop_lib.notebook import magics

        return magics.explain_error(shell, kind, error, traceback, tb_offset)
    error.add_note("This kernel is new: Run > Run All Above Selected Cell runs the cells before this one.")
    shell.showtraceback((kind, error, traceback), tb_offset=tb_offset)


_get_ipython().set_custom_exc((NameError, _UsageError), _explain)  # workshop_lib.notebook replaces it
del _get_ipython, _register, _sys, _UsageError, _workshop_lib, _ranks_in_a_new_kernel, _explain
