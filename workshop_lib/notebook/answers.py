"""Controls with an answer: what the calculators of the workshop have in common."""

import base64
import html

import ipywidgets

from workshop_lib.notebook import has_widgets
from workshop_lib.notebook.figures import RecordFigure
from workshop_lib.notebook.widgets import answers_while_busy


class Answers(ipywidgets.VBox):
    """Controls in columns, and under them a figure that has the answer to what they ask as its title.

    Where widgets do not work, it is shown as the figure alone. Subclasses say what the answer is.
    """

    def __init__(self, columns: list[list[ipywidgets.Widget]], css_class: str):
        self.says = ipywidgets.HTML()
        self.image = ipywidgets.Image(layout=ipywidgets.Layout(max_width="100%"))
        self.sentence = ""
        for control in _with_a_value(sum(columns, [])):
            control.observe(self._update, "value")
            answers_while_busy(control)
        controls = ipywidgets.HBox([ipywidgets.VBox(column) for column in columns])
        controls.layout.flex_flow = "row wrap"
        super().__init__([controls, self.says, self.image])
        self.add_class(css_class)
        self._update()

    def answer(self) -> tuple[str, RecordFigure]:
        """A sentence and the figure that it is the title of. Raises ValueError for what makes no sense."""
        raise NotImplementedError

    def _update(self, _=None) -> None:
        try:
            self.sentence, figure = self.answer()
            image = figure._repr_png_()
        except ValueError as error:
            self.sentence, image = f"Nothing to show: {error}.", b""
        self.says.value = "" if image else f'<b style="font-size: 120%">{html.escape(self.sentence)}</b>'
        self.image.value, self.image.layout.display = image, None if image else "none"

    def _repr_mimebundle_(self, **kwargs) -> dict[str, str]:
        shown = super()._repr_mimebundle_(**kwargs) if has_widgets() else {}
        shown["text/plain"] = self.sentence
        if self.image.value:  # for who reads the saved notebook without a kernel
            shown["image/png"] = base64.b64encode(self.image.value).decode()
        return shown


def _with_a_value(controls: list[ipywidgets.Widget]) -> list[ipywidgets.Widget]:
    """These controls, and in place of a box what is in it."""
    parts = [getattr(control, "children", [control]) for control in controls]
    return [control for part in parts for control in part]
