"""What the workshop's widgets have in common: whether they work here, and controls with an answer under them."""

import base64
import html
import os

import ipywidgets
from IPython.display import HTML, DisplayHandle

from workshop_lib.machine.kernel import in_notebook
from workshop_lib.notebook.figures import RecordFigure


def size(em: float) -> str:
    """A CSS width of `em` times the notebook's font size, so that it grows with the text."""
    return f"calc({em} * var(--jp-content-font-size1, 14px))"


def has_widgets() -> bool:
    """Whether this process is a notebook's kernel, with widgets not switched off."""
    return in_notebook() and os.environ.get("WORKSHOP_WIDGETS") != "0"


def answers_while_busy(widget: ipywidgets.Widget) -> ipywidgets.Widget:
    """Let `widget` receive its front end's messages while a cell runs; return the widget.

    A running cell keeps the kernel's main loop busy. JupyterLab sends a widget's messages to a subshell beside
    that loop, but ipykernel would forward them to the loop that created the widget, where they would wait for
    the cell to end. After this call, the widget's callbacks run in the subshell's thread, so keep them short.
    Outside a kernel, this does nothing.
    """
    if widget.comm is not None:
        widget.comm._reply_subshell_for = lambda data, subshell_id: subshell_id
    return widget


class Column(ipywidgets.VBox):
    """Widgets one below another, and the words that stand for them where a page shows no widgets."""

    def __init__(self, children: list[ipywidgets.Widget], words: str):
        super().__init__(children)
        self.words = words

    def _repr_mimebundle_(self, **kwargs) -> dict[str, str]:
        return super()._repr_mimebundle_(**kwargs) | {"text/plain": self.words}


def leave(place: DisplayHandle, content: str) -> None:
    """Show `content`, which is HTML, in a place that was displayed below a widget.

    A widget needs its kernel, so a notebook that is opened again the next day shows nothing of it, but it shows this.
    While the widget lives, custom.css hides what it repeats. The widget itself stays: it may have the keyboard's focus,
    and if that were lost, Shift+Enter would do nothing.
    """
    style = "font-size: var(--jp-content-font-size1)"
    place.update(HTML(content and f'<div class="workshop-left" style="{style}">{content}</div>'))


class Answers(ipywidgets.VBox):
    """Columns of controls that ask a question, and below them a figure whose title is the answer.

    Where widgets do not work, only the figure is shown. Subclasses implement `answer`.
    """

    def __init__(self, columns: list[list[ipywidgets.Widget]], css_class: str):
        self.shown_sentence = ipywidgets.HTML()
        self.image = ipywidgets.Image(layout=ipywidgets.Layout(max_width="100%"))
        self.image.add_class("workshop-figure")
        self.sentence = ""
        for part in sum(columns, []):
            for control in getattr(part, "children", [part]):  # a box has no value, but its children do
                control.observe(self._update, "value")
                answers_while_busy(control)
        controls = ipywidgets.HBox([ipywidgets.VBox(column) for column in columns])
        controls.layout.flex_flow = "row wrap"
        super().__init__([controls, self.shown_sentence, self.image])
        self.add_class(css_class)
        self._update()

    def answer(self) -> tuple[str, RecordFigure]:
        """A sentence, and the figure with it as title. Raises InputError for settings that make no sense."""
        raise NotImplementedError

    def _update(self, change=None) -> None:
        if change and change.owner.disabled:  # `answer` changed this control, not the learner
            return
        try:
            self.sentence, figure = self.answer()
            image = figure.png()
        except ValueError as error:
            self.sentence = f"Nothing to show: {str(error).removesuffix('.')}."
            image = b""
        self.shown_sentence.value = "" if image else f'<b style="font-size: 120%">{html.escape(self.sentence)}</b>'
        self.image.value = image
        self.image.layout.display = None if image else "none"

    def _repr_mimebundle_(self, **kwargs) -> dict[str, str]:
        shown = super()._repr_mimebundle_(**kwargs) if has_widgets() else {}
        shown["text/plain"] = self.sentence
        if self.image.value:  # readers of the saved notebook have no kernel, so they see this image
            shown["image/png"] = base64.b64encode(self.image.value).decode()
        return shown
