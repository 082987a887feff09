"""What the workshop's widgets have in common."""

import ipywidgets


def answers_while_busy(widget: ipywidgets.Widget) -> ipywidgets.Widget:
    """Let `widget` hear its front end while a cell runs; returns it.

    A cell keeps the kernel's main loop busy. JupyterLab sends a widget's messages to a subshell beside
    that loop, but ipykernel would send them on to the loop in which the widget was made, where they would
    wait for the cell to end. The widget's callbacks then run in the subshell's thread: keep them short.
    Outside a kernel there is nobody to hear, and nothing is done.
    """
    if widget.comm is not None:
        widget.comm._reply_subshell_for = lambda data, subshell_id: subshell_id
    return widget
