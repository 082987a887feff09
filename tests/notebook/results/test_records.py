"""Records come back as written, bad lines are named, and a record is in the file whole or not at all."""

import json
import math
import resource
import subprocess
import sys

import pytest
from record_fixtures import run

from workshop_lib.notebook.results import records
from workshop_lib.paths import ROOT


def test_records_come_back_in_order_from_several_files(tmp_path):
    first, second = tmp_path / "made" / "a.jsonl", tmp_path / "b.jsonl"
    written = [run(ranks=1), run(ranks=2), run("ddp")]
    records.write(first, written[0])
    records.write(first, written[1])
    records.write(second, written[2])
    assert records.read(first) == written[:2]
    assert records.read([first, second]) == written
    assert sorted(path.name for path in first.parent.iterdir()) == ["a.jsonl"]


def test_byte_order_marks_are_skipped_also_where_files_were_joined(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(2 * f"\ufeff{json.dumps(run())}\n", encoding="utf-8")
    assert records.read(path) == [run(), run()]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"schema": 1, "kind":', "not a JSON object"),
        ('{"schema": 7}', "record schema 7, this version reads 1"),
        ('{"schema": 1, "kind": "sweep"}', "record kind 'sweep'; this version knows train"),
        ('{"schema": 1, "kind": "train", "where": {}}', "lacks the field 'what'"),
        (json.dumps(run() | {"what": run()["what"] | {"world_size": "2"}}), "'world_size' is '2', not int"),
        (json.dumps(run(epochs=[{"seconds": 1.0, "samples_per_s": None}])), "'samples_per_s' is None, not int | float"),
        (json.dumps(run() | {"what": run()["what"] | {"world_size": True}}), "'world_size' is True, not int"),
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


def test_a_missing_file_is_named_and_one_without_a_last_line_break_continued(tmp_path):
    path = tmp_path / "none.jsonl"
    with pytest.raises(records.RecordError, match="no record file .*none.jsonl"):
        records.read(path)
    path.write_text(json.dumps(run()))
    records.write(path, run("ddp"))
    assert [record["what"]["backend"] for record in records.read(path)] == ["mpi", "ddp"]


@pytest.mark.parametrize("value", [math.nan, math.inf, object()])
def test_what_json_cannot_hold_leaves_the_file_alone(tmp_path, value):
    path = tmp_path / "a.jsonl"
    records.write(path, run())
    before = path.read_bytes()
    with pytest.raises(records.RecordError, match="cannot write a record"):
        records.write(path, run(seconds_to_99=value))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]


def test_two_writers_keep_each_other_s_records(tmp_path):
    path = tmp_path / "a.jsonl"
    code = (
        "import sys; from workshop_lib.notebook.results import records\n"
        "for n in range(50): records.write(sys.argv[1], {'who': sys.argv[2], 'n': n, 'text': 'long ' * 2000})\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, path, who], cwd=ROOT) for who in "ab"]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [[line["n"] for line in lines if line["who"] == who] for who in "ab"] == [list(range(50))] * 2


def test_a_full_disk_is_named_and_leaves_no_half_line(tmp_path):
    path = tmp_path / "a.jsonl"
    records.write(path, run())
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, limits[1]))
    try:
        with pytest.raises(records.RecordError, match="a.jsonl: the record cannot be written, because it would be"):
            records.write(path, run())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    with pytest.raises(records.RecordError, match="/dev/full: .*because the disk is full"):
        records.write("/dev/full", run())


@pytest.mark.parametrize(
    ("place", "why"),
    [("", "it is a folder"), ("file/a.jsonl", "part of the path is a file"), ("/proc/a/b", "there is no such")],
)
@pytest.mark.parametrize("act", [lambda path: records.write(path, run()), records.require_place])
def test_a_place_that_cannot_be_written_is_named(tmp_path, act, place, why):
    (tmp_path / "file").write_text("")
    with pytest.raises(records.RecordError, match=f"{place}: .*because {why}"):
        act(tmp_path / place)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_record_that_was_cut_off_is_named_and_the_next_one_gets_a_line_of_its_own(tmp_path):
    path = tmp_path / "a.jsonl"
    records.write(path, run())
    path.write_bytes(path.read_bytes() + json.dumps(run()).encode()[:200])
    for _ in range(2):
        with pytest.raises(records.RecordError, match="a.jsonl:2: .*remove this line.*cut off"):
            records.read(path)
        records.write(path, run("ddp"))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], *lines[2:]]))
    assert len(records.read(path)) == 3


def test_runs_over_mpi_and_stages_of_zero_have_names_of_their_own():
    whats = [{"backend": "ddp"}, {"backend": "ddp", "comm": "gloo"}, {"backend": "fsdp", "comm": "mpi"}]
    whats += [{"backend": "deepspeed", "zero_stage": 2, "comm": "gloo"}, {"backend": "mpi", "comm": None}]
    names = [records.name_of(what) for what in whats]
    assert names == ["ddp", "ddp", "fsdp-mpi", "deepspeed-2", "mpi"]
    assert set(names) < set(records.all_names()) and len(records.all_names()) == len(set(records.all_names()))
