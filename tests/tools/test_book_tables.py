"""The tables of the book's pages say what the notebooks' calculators say, and stand on their pages."""

import re

import pytest

from workshop_lib.forecast import report
from workshop_lib.forecast.forecast import Settings, forecast
from workshop_lib.machine import catalogue
from workshop_lib.notebook.figures import RecordFigure
from workshop_lib.paths import ROOT

from lessons.zero_and_fsdp.calculator import calculator
from tools import book_tables


def cells(name: str) -> dict[tuple[str, ...], list[str]]:
    """The cells of a table below the headings, by the words before the first number of GPUs or devices."""
    headings, _, *rows = [line.strip("| ").split(" | ") for line in book_tables.TABLES[name]().splitlines()]
    first = next(at for at, heading in enumerate(headings) if re.match(r"\d", heading))
    assert all(len(row) == len(headings) for row in rows)
    return {tuple(row[:first]): row[first:] for row in rows}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(RecordFigure, "png", lambda figure: b"drawn")


def test_each_table_stands_on_one_page():
    text = "".join(path.read_text() for path in (ROOT / "book").glob("*.md"))
    places = re.findall(r"^\{([\w ]+)\}$", text, re.MULTILINE)
    assert sorted(places) == sorted([*book_tables.TABLES, "table of the tracks"])


def test_memory_is_what_the_calculator_says():
    shown = calculator()
    shown.recipe.value = "bf16, Adam"
    table = cells("memory by model")
    for model, gpu in (("Llama 7B", "A100, 80 GB"), ("Llama 13B", "A100, 40 GB"), ("Llama 70B", "H200, 141 GB")):
        shown.model.value, shown.gpu.value = model, gpu
        for ranks, cell in zip(book_tables.GPUS, table[model, gpu], strict=True):
            shown.ranks.value = ranks
            stage, _, taken = cell.partition(": ")
            assert shown.sentence.startswith("It fits") == (cell != "–"), (model, gpu, ranks)
            assert cell == "–" or (stage in shown.sentence and taken.removesuffix(" GiB") in shown.sentence)


def test_forecasts_are_what_the_command_says():
    table = cells("forecast by machine")
    for model, machine in (("vgg-16", "horovod-p100"), ("resnet-50", "h100")):
        known = catalogue.machine(machine)
        *shares, _, _, taken = table[model, known.title]
        points = forecast(catalogue.model(model), known, Settings("ddp", 32))
        answer = report.answer(points)
        assert shares == [report.efficiency(point) for point in points if point.devices in book_tables.DEVICES]
        assert f"at an efficiency of {shares[-1].partition(' ')[0]}" in answer
        words = "communication never takes over" if taken == "never" else f"takes over at {int(taken):,}"
        assert words in answer


def test_a_ring_ends_with_every_sum_on_every_rank():
    *_, last = book_tables.ring_steps(5).splitlines()
    chunks = re.findall(r"\*\*([\d+]+)\*\*", last)
    assert len(chunks) == 25
    assert all(sorted(chunk.split("+")) == list("01234") for chunk in chunks)


def test_the_shortest_time_is_in_bold():
    assert book_tables.durations([2e-3, 1e-3, 3.0]) == ["2 ms", "**1 ms**", "3 s"]
