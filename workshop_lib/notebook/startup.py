"""What every new kernel of .venv runs: the set-up puts a copy where IPython looks for start-up files.

A notebook that was just opened, or whose kernel was restarted, knows `%%ranks` only from here: the magic's own
module comes with the first use, and says which cell starts the ranks.
"""

from IPython.core.magic import register_cell_magic as _register


@_register("ranks")
def _ranks_in_a_new_kernel(line, cell):
    from IPython import get_ipython

    import workshop_lib.notebook  # noqa: F401 - puts the real magic in this one's place

    return get_ipython().run_cell_magic("ranks", line, cell)


del _register, _ranks_in_a_new_kernel
