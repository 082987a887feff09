"""What the notebooks' texts say about measured numbers, and whether the run that the gallery shows agrees.

The table is notebooks/source/claims.toml. While the gallery is made, the notebook's kernel evaluates the `value` of
each claim after the claim's cell. `holds` says which values agree with the text.
"""

import ast
import base64
import html
import io
import json
import re
import tomllib
from dataclasses import asdict, dataclass

from nbformat import NotebookNode
from PIL import Image

from workshop_lib import paths
from workshop_lib.classroom import generate

TABLE = paths.ROOT / "notebooks" / "source" / "claims.toml"

# What the kernel evaluates. `number(words)` is the first number after these words in what the cell showed.
FIGURES = r"\D*?(-?\d[\d,]*\.?\d*(e[-+]?\d+)?)"
NUMBER = f"lambda words: float(re.search(re.escape(words) + {FIGURES!r}, shown)[1].replace(',', ''))"
AS_JSON = "json.dumps((lambda shown, number: {value})(shown, {number}), default=float)"
EXPRESSION = "(lambda shown, re, json: {as_json})({shown!r}, __import__('re'), __import__('json'))"


@dataclass(frozen=True)
class Claim:
    """A fragment `says` of a notebook's text, and what it says about the number that a cell measured.

    after: a piece of the code of this cell; no other cell of the notebook has it.
    value: a Python expression. It sees the kernel's names, the module `re`, `shown`, which is what the cell showed in
    words, and `number("words")`, the first number in `shown` after these words.
    holds: an expression which is true if `value` agrees with the text.
    """

    says: str
    after: str
    value: str
    holds: str = "value is True"


def of_notebook(name: str) -> list[Claim]:
    """The table's claims about a notebook."""
    return [Claim(**claim) for claim in tomllib.loads(TABLE.read_text(encoding="utf-8")).get(name, [])]


def expressions(name: str, cell: NotebookNode) -> dict[str, str]:
    """Expressions for the kernel, one for each claim about this cell, that give the value as JSON."""
    shown = "\n".join(map(in_words, cell.outputs))
    return {
        str(number): EXPRESSION.format(as_json=AS_JSON.format(value=claim.value, number=NUMBER), shown=shown)
        for number, claim in enumerate(of_notebook(name))
        if claim.after in cell.source
    }


def in_words(output: NotebookNode) -> str:
    """What an output says: its text, a table without its tags, or the description of a figure."""
    if "text" in output:
        return output.text
    data = output.get("data", {})
    if "image/png" in data:
        return Image.open(io.BytesIO(base64.b64decode(data["image/png"]))).info.get("Description", "")
    text = data.get("text/html") or data.get("text/plain", "")
    return " ".join(html.unescape(re.sub(r"<style.*?</style>|<[^>]*>", " ", text, flags=re.DOTALL)).split())


def outcomes(name: str, ran: NotebookNode) -> list[dict]:
    """For each claim about an executed notebook, the claim with its value, or with the error that its value raised."""
    replies = {}
    for cell in ran.cells:
        replies.update(cell.metadata.get("user_expressions", {}))
    kept = []
    for number, claim in enumerate(of_notebook(name)):
        reply = replies.get(str(number), {"status": "none", "ename": "no reply", "evalue": claim.after})
        if reply["status"] == "ok":
            outcome = {"value_was": json.loads(ast.literal_eval(reply["data"]["text/plain"]))}
        else:
            outcome = {"error": f"{reply['ename']}: {reply['evalue']}"}
        kept.append(asdict(claim) | outcome)
    return kept


def misplaced(name: str) -> list[str]:
    """Claims whose sentence isn't on the notebook's page, or whose cell can't be told, a sentence each."""
    asked, solved = generate.pristine(name)
    text = " ".join(" ".join(cell.source.split()) for cell in asked.cells if cell.cell_type == "markdown")
    code = [cell.source for cell in solved.cells if cell.cell_type == "code"]
    found = []
    for claim in of_notebook(name):
        if claim.says not in text:
            found.append(f"{TABLE.name} has a claim “{claim.says}” for {name}, but its page doesn't say this.")
        if (cells := sum(claim.after in source for source in code)) != 1:
            found.append(f"{TABLE.name}: {name}, “{claim.says}”: {cells} cells have {claim.after!r}, instead of one.")
    return found


def contradicted(name: str, page: NotebookNode) -> list[str]:
    """Sentences that the run on a page of the gallery contradicts, or doesn't check.

    `holds` is evaluated here, so that a claim with other bounds can be checked without running the notebook again.
    """
    known = {(kept["after"], kept["value"]): kept for kept in page.metadata.get("claims", [])}
    found = []
    for claim in of_notebook(name):
        kept = known.get((claim.after, claim.value), {"error": "the run in the gallery didn't evaluate it"})
        if "error" in kept:
            found.append(f"{name} says “{claim.says}”, but {claim.value} has no value: {kept['error']}.")
        elif not eval(claim.holds, {"value": kept["value_was"]}):  # the table is part of the repository
            found.append(f"{name} says “{claim.says}”, but {claim.value} is {kept['value_was']}, not {claim.holds}.")
    return found
