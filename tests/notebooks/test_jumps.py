"""A section of the slides runs from nothing: its first cell starts ranks and runs the earlier cells that it needs."""

import re

import nbformat
import pytest

from workshop_lib.classroom import present, routes
from workshop_lib.maintain import execute, generate

FORGET = "from workshop_lib import ranks\n\nranks.stop()\nget_ipython().reset(new_session=False)"


def jumps(name: str, sections: list[tuple[str, ...]]) -> nbformat.NotebookNode:
    """Each of these sections, given by its headings, after everything was forgotten."""
    code = routes.Code.of(name)
    sources = []
    for section in sections:
        first = present.first_cell(name, *section[1:]).source
        own = [source for source, under in zip(code.sources, code.under, strict=True) if under == section]
        sources += [FORGET, first, *own, first]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    return nbformat.v4.new_notebook(cells=cells, metadata=generate.METADATA)


def run(name: str, sections: list[tuple[str, ...]], tmp_path, monkeypatch) -> list:
    monkeypatch.setenv("WORKSHOP_PROFILE", "quick")
    path = tmp_path / f"{name}.ipynb"
    nbformat.write(jumps(name, sections), path)
    outcome = execute.run_notebook(path, path)
    assert not outcome.error, str(outcome)
    return nbformat.read(path, as_version=4).cells


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_jump_starts_fresh_ranks_and_once_there_nothing_is_left_to_do(tmp_path, monkeypatch):
    section = ("Start here", "Each rank has its own memory")
    _, first, *_, again = run("00_start_here", [section], tmp_path, monkeypatch)
    said = "".join(output.text for output in first.outputs)
    assert re.fullmatch(r"getting ready … ready \(\d+ s\)\n", said), said
    assert again.source == first.source
    assert not again.outputs, again.outputs
