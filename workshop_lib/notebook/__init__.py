"""The parts of the library that run in the learner's notebook: the `%%ranks` magic, live progress and figures.

Importing this package in a notebook's kernel registers the magic and, where widgets work, the live view. Set
WORKSHOP_WIDGETS=0 to see progress as plain text.
"""

from workshop_lib import learner


def _setup() -> None:
    shell = learner.shell()
    if not shell:
        return
    # Only a notebook needs these modules. A command that draws a figure does without them.
    import mpi4py

    from workshop_lib.notebook import busy_kernel, live, magics, sharing, unfinished, widgets
    from workshop_lib.ranks import Ranks
    from workshop_lib.ranks.launch import agents

    # This kernel is not a rank. Some systems end a process that starts MPI outside their launcher.
    mpi4py.rc.initialize = False
    shell.register_magics(magics.RanksMagics)
    shell.set_custom_exc(magics.EXPLAINED, magics.explain_error)
    unfinished.Unfinished(shell)
    sharing.AfterCells(shell)
    if kernel := getattr(shell, "kernel", None):
        magics.RankAnswers(kernel)
        busy_kernel.answer_new_pages(kernel)
        agents.begin()
        Ranks.view = live.LiveView if widgets.has_widgets() else live.NotebookView


_setup()
