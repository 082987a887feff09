"""A section of the slides runs from nothing: its first cell starts ranks and runs the earlier cells that it needs."""

import re

import nbformat
import pytest

from workshop_lib.classroom import execute, generate, present, routes

FORGET = "from workshop_lib import ranks\n\nranks.stop()\nget_ipython().reset(new_session=False)"


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_jump_starts_fresh_ranks_and_once_there_nothing_is_left_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKSHOP_PROFILE", "quick")
    name, section = "00_start_here", ("Start here", "Each rank has its own memory")
    code = routes.Code.of(name)
    first = present.first_cell(name, *section[1:]).source
    own = [source for source, under in zip(code.sources, code.under, strict=True) if under == section]
    cells = [nbformat.v4.new_code_cell(source) for source in (FORGET, first, *own, first)]
    path = tmp_path / f"{name}.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=generate.METADATA), path)
    outcome = execute.run_notebook(path, path)
    assert not outcome.error, str(outcome)
    _, prepared, *_, again = nbformat.read(path, as_version=4).cells
    said = "".join(output.text for output in prepared.outputs)
    assert re.fullmatch(r"getting ready … ready \(\d+ s\)\n", said), said
    assert not again.outputs, again.outputs
