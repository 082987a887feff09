"""The instructor's kit: every prompt has an answer, and the sheets name routes that exist."""

import re
from collections import Counter

import pytest

from workshop_lib.classroom import generate, routes

PROMPT = re.compile(r"\*(Try|Break|Beat) it(?::\*|\*) ")
ANSWER = re.compile(r"^- \*\*(Try|Break|Beat) it: .+?\*\* \S", re.MULTILINE)
ANSWERS = (routes.FOLDER / "answers.md").read_text(encoding="utf-8")
SHEETS = ("symptoms.md", "invitation.md", "feedback.md")


@pytest.mark.parametrize("name", [source.stem for source in generate.sources()])
def test_each_prompt_of_a_notebook_has_an_answer(name):
    texts = [cell.source for cell in generate.pristine(name)[0].cells if cell.cell_type == "markdown"]
    asked = Counter(kind for text in texts for kind in PROMPT.findall(text))
    number = name.partition("_")[0]
    section = re.search(rf"^## {number} .*?(?=^## |\Z)", ANSWERS, re.MULTILINE | re.DOTALL)
    answered = Counter(ANSWER.findall(section[0]) if section else [])
    assert answered == asked, f"answers.md, '## {number} …', has other prompts than the notebook"


@pytest.mark.parametrize("sheet", SHEETS)
def test_a_sheet_names_routes_that_exist(sheet):
    text = (routes.FOLDER / sheet).read_text(encoding="utf-8")
    for name in re.findall(r"route[s]? `([\w-]+)`", text):
        routes.route(name)
