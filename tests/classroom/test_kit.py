"""The instructor's kit: every prompt has an answer, and the sheets name routes that exist."""

import re

import pytest

from workshop_lib.classroom import routes
from workshop_lib.maintain import generate

PROMPT = re.compile(r"\*(Try|Break|Beat) it(?::\*|\*) (.+?)(?=\*(?:Try|Break|Beat) it|\n\s*\n|$)", re.DOTALL)
ANSWER = re.compile(r"^- \*\*(Try|Break|Beat) it: (.+?)\*\* (\S.+)", re.MULTILINE)
ANSWERS = (routes.FOLDER / "answers.md").read_text(encoding="utf-8")
SHEETS = ("symptoms.md", "invitation.md", "feedback.md")


def plain(text: str) -> str:
    return " ".join(text.split()).rstrip(".?…")


def prompts(name: str) -> list[tuple[str, str]]:
    """(kind, text) of each prompt in a notebook."""
    texts = [cell.source for cell in generate.pristine(name)[0].cells if cell.cell_type == "markdown"]
    return [(kind, plain(text)) for each in texts for kind, text in PROMPT.findall(each)]


def answers(number: str) -> list[tuple[str, str]]:
    """(kind, beginning of the prompt) of each answer for the notebook with this number."""
    section = re.search(rf"^## {number} .*?(?=^## |\Z)", ANSWERS, re.MULTILINE | re.DOTALL)
    return [(kind, plain(begins)) for kind, begins, _ in ANSWER.findall(section[0])] if section else []


@pytest.mark.parametrize("name", [source.stem for source in generate.sources()])
def test_each_prompt_of_a_notebook_has_an_answer(name):
    number = name.partition("_")[0]
    asked, answered = prompts(name), answers(number)
    for kind, text in asked:
        matching = [begins for of_kind, begins in answered if of_kind == kind and text.startswith(begins)]
        assert matching, f"answers.md has none under '## {number} …' for: {kind} it: {text[:60]}"
    for kind, begins in answered:
        assert [text for of_kind, text in asked if of_kind == kind and text.startswith(begins)], (
            f"{name} no longer asks: {kind} it: {begins}"
        )
    assert len(asked) == len(answered)


@pytest.mark.parametrize("sheet", SHEETS)
def test_a_sheet_names_routes_that_exist(sheet):
    text = (routes.FOLDER / sheet).read_text(encoding="utf-8")
    for name in re.findall(r"route[s]? `([\w-]+)`", text):
        routes.route(name)
