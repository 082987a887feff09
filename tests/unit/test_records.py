import json
import math

import pytest
from record_fixtures import run

from workshop_lib.scaling import records


def test_records_come_back_in_order_from_several_files(tmp_path):
    first, second = tmp_path / "made" / "a.jsonl", tmp_path / "b.jsonl"
    written = [run(ranks=1), run(ranks=2), run("ddp")]
    records.write(first, written[0])
    records.write(first, written[1])
    records.write(second, written[2])
    assert records.read(first) == written[:2]
    assert records.read([first, second]) == written
    assert sorted(path.name for path in first.parent.iterdir()) == ["a.jsonl"]


def test_a_file_without_a_last_line_break_is_continued(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(run()))
    records.write(path, run("ddp"))
    assert [record["what"]["backend"] for record in records.read(path)] == ["mpi", "ddp"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"schema": 1, "kind":', "not a JSON object"),
        ("[1, 2]", "found list"),
        ('{"schema": 7}', "record schema 7, this version reads 1"),
        ('{"kind": "train"}', "record schema None"),
        ('{"schema": 1, "kind": "sweep"}', "record kind 'sweep'; this version knows train"),
        ('{"schema": 1, "kind": "train", "where": {}}', "lacks the field 'what'"),
        (json.dumps(run() | {"what": run()["what"] | {"world_size": "2"}}), "'world_size' is '2', not int"),
        (json.dumps(run() | {"what": run()["what"] | {"world_size": True}}), "'world_size' is True, not int"),
        (json.dumps(run(epochs=[{"seconds": 1.0, "samples_per_s": None}])), "'samples_per_s' is None, not float"),
        (json.dumps(run(epochs=[3])), "3 stands where named fields belong"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, complaint):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps(run())}\n\n{line}\n")
    with pytest.raises(records.RecordError) as error:
        records.read(path)
    assert str(error.value).startswith(f"{path}:3")
    assert complaint in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(records.RecordError, match="no record file .*none.jsonl"):
        records.read(tmp_path / "none.jsonl")


@pytest.mark.parametrize("value", [math.nan, math.inf, object()])
def test_what_json_cannot_hold_leaves_the_file_alone(tmp_path, value):
    path = tmp_path / "a.jsonl"
    records.write(path, run())
    before = path.read_bytes()
    with pytest.raises(records.RecordError, match="cannot write a record"):
        records.write(path, run(seconds_to_99=value))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]


def test_whole_numbers_are_numbers_and_runs_that_have_not_ended_are_records(tmp_path):
    path = tmp_path / "a.jsonl"
    records.write(path, run(seconds_to_99=12, epochs=[], ranks_identical=None))
    assert records.read(path)[0]["seconds_to_99"] == 12
