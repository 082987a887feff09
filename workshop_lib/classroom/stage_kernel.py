"""An IPython extension for the stage's kernel (stage/kernels/python3), which prepares sections of slides by itself.

The slides' own module is imported with the first cell, not here: IPython loads extensions before the start-up file,
which would then put its stand-in for `%%ranks` in place of the real one.
"""


def load_ipython_extension(shell) -> None:
    """Have present.py prepare each section before its cells run."""
    prepares = None

    def before(cell) -> None:
        nonlocal prepares
        if prepares is None:
            from workshop_lib.classroom.present import Prepares

            prepares = Prepares()
        prepares.before(cell)

    shell.events.register("pre_run_cell", before)
