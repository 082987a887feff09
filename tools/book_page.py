"""A notebook as a page of the book: solutions under their stubs, predictions as controls, notes on what to do."""

import base64
import html
import io
import re
from typing import Any

import nbformat
from nbformat import NotebookNode
from PIL import Image

from workshop_lib.notebook.prediction import NUMBERS, formatted

SOLUTION = re.compile(r"<details><summary>Solution</summary>\s*(```python\n.*?```\s*)+</details>", re.DOTALL)
WIDE_PX = 800  # from this width on, a figure is scrolled on a phone, because its text would be too small
DO_IT = """\
:::{{admonition}} Do it yourself
:class: tip
This page is for reading. To run its cells, change them and have your answers checked, open it in JupyterLab:

    make lab NOTEBOOK=notebooks/{name}.ipynb

What you see under the cells came out when we ran it. Your numbers will differ. Each exercise shows the cell as you get
it; click on *Solution* for ours.{look_up}
:::"""
NOT_RUN = """\
:::{warning}
The cells of this page haven't run since its code changed, so it has no outputs.
:::"""
PAGES = {  # pages with tables: what one finds there, the notebooks about it, and the call in their cells, if any
    "ring": ("a ring allreduce, step by step", ("01_mpi_basics",), None),
    "buckets": ("choose a bucket size", ("05_ddp",), None),
    "memory": ("does a model fit your GPUs?", ("06_zero_and_fsdp",), re.compile(r"calculator\(")),
    "forecast": ("what would more devices bring?", ("08c_forecasting",), re.compile(r"draw_forecast\(")),
}


def page(name: str, asked: NotebookNode, solved: NotebookNode, ran: NotebookNode | None) -> NotebookNode:
    """The page of a notebook: the learner's cells, and under each stub its solution, folded, with its outputs."""
    notebook = nbformat.v4.new_notebook(metadata=solved.metadata)
    outputs = iter([cell.outputs for cell in ran.cells if cell.cell_type == "code"] if ran else [])
    predictions = Predictions(ran)
    for given, cell in zip(asked.cells, solved.cells, strict=True):
        if cell.cell_type == "markdown":
            cell = given  # links in a solution notebook start from another folder
            cell.source = SOLUTION.sub("", cell.source)  # the next cell shows the solution with its outputs
        else:
            cell.outputs = next(outputs, [])
            cell.metadata["mystnb"] = {"image": image_options(cell.outputs)}
            for output in cell.outputs:
                predictions.replace(output)
            if given.source != cell.source:
                notebook.cells.append(given)
                cell.metadata["tags"] = ["hide-input"]
                cell.metadata["mystnb"] |= dict.fromkeys(("code_prompt_show", "code_prompt_hide"), "Solution")
                cell.id += "-solved"
        notebook.cells.append(cell)
        for target, (what, _, call) in PAGES.items():
            if cell.cell_type == "code" and call and call.search(cell.source):
                text = f"What it says for other choices: [{what}](../{target}.md)"
                notebook.cells.append(nbformat.v4.new_markdown_cell(text, id=f"{cell.id}-{target}"))
    first = notebook.cells[0]
    first.source = first.source.replace("# ", f"# {name.partition('_')[0]} · ", 1)
    first.source, section, rest = first.source.partition("\n## ")
    links = [f"[{what}](../{target}.md)" for target, (what, about, _) in PAGES.items() if name in about]
    look_up = f" See also: {links[0]}" if links else ""
    notes = [DO_IT.format(name=name, look_up=look_up)]
    if ran is None:
        notes.append(NOT_RUN)
    notebook.cells.insert(1, nbformat.v4.new_markdown_cell("\n\n".join(notes), id="do-it-yourself"))
    if section:
        notebook.cells.insert(2, nbformat.v4.new_markdown_cell(section.lstrip() + rest, id="first-section"))
    return notebook


def image_options(outputs: list[NotebookNode]) -> dict[str, str]:
    """How to show a cell's images: their text for people who can't see them, and classes for book.css."""
    images = [output.data["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    opened = [Image.open(io.BytesIO(base64.b64decode(image))) for image in images]
    descriptions = [image.info["Description"] for image in opened if "Description" in image.info]
    classes = []
    if descriptions:  # ours: a figure on white paper
        classes.append("workshop-figure")
    if any(image.width >= WIDE_PX for image in opened):
        classes.append("workshop-wide")
    return {"alt": " ".join(descriptions) or "What the cell above draws", "classes": " ".join(classes)}


class Predictions:
    """The predictions of an executed notebook as HTML: text that says everything, and that guess.js makes a control."""

    def __init__(self, ran: NotebookNode | None):
        cells = [cell for cell in ran.cells if cell.cell_type == "code"] if ran else []
        found = [_numbers(output) for cell in cells for output in cell.outputs]
        answered = dict.fromkeys(numbers["question"] for numbers in found if numbers and "text" in numbers)
        self.places = {asked: f"measured-{number}" for number, asked in enumerate(answered, 1)}
        self.answered: set[str] = set()

    def replace(self, output: NotebookNode) -> None:
        """Show a question as a slider, and its first answer as a value to reveal. Other outputs stay as they are,
        except that a prediction loses its numbers: Sphinx warns of a type that it doesn't know."""
        numbers = output.get("data", {}).pop(NUMBERS, None)
        if numbers is None or numbers["question"] not in self.places:
            return
        asked = numbers["question"]
        place = self.places[asked]
        if "text" not in numbers:
            output.data = {"text/html": question(numbers, place)}
        elif asked not in self.answered:
            output.data = {"text/html": measured(numbers, place)}
            self.answered.add(asked)


def _numbers(output: NotebookNode) -> dict[str, Any] | None:
    return output.get("data", {}).get(NUMBERS)


def question(numbers: dict[str, Any], place: str) -> str:
    """A question as HTML. `place` is the id of the element with the measured value."""
    low, high, unit = numbers["low"], numbers["high"], numbers["unit"]
    ends = f"{formatted(low)} to {formatted(high)} {unit}".strip()
    text = f"<p><b>Your prediction:</b> {html.escape(numbers['question'])} <span>({html.escape(ends)})</span></p>"
    attributes = f'data-low="{low}" data-high="{high}" data-unit="{html.escape(unit)}" data-answer="{place}"'
    return f'<div class="workshop-guess" {attributes}>{text}</div>'


def measured(numbers: dict[str, Any], place: str) -> str:
    """A measured value as HTML that a click reveals, as a bar with the axis of the question."""
    value = numbers["measured"]
    axis_from = min(0, numbers["low"])
    axis_to = max(numbers["high"], value or 0)
    bar = "" if value is None else f'<i style="width: {100 * (value - axis_from) / (axis_to - axis_from):.4g}%"></i>'
    text = html.escape(numbers["text"] + spread(numbers["spread"]))
    row = f"<tr><th>measured</th><td>{bar}</td><td>{text}</td></tr>"
    return (
        f'<details class="workshop-measured" id="{place}" data-from="{axis_from}" data-to="{axis_to}">'
        f"<summary>Reveal what we measured</summary><p>{html.escape(numbers['question'])}</p>"
        f"<table>{row}</table></details>"
    )


def spread(ends: list[float] | None) -> str:
    """The lowest and the highest of several measurements as text; "" if there was one."""
    return f" ({formatted(ends[0])} to {formatted(ends[1])})" if ends and ends[0] < ends[1] else ""
