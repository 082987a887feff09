"""The folders of sets of ranks: whose they are, and which are left of notebooks that are gone."""

import json
import os
import subprocess
import time

import pytest

from workshop_lib.ranks import RankError, folders, processes


@pytest.fixture
def build(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "BUILD", tmp_path)
    return tmp_path


@pytest.fixture
def dead_mark():
    """The mark of a process of this host that has ended."""
    owner = subprocess.Popen(["sleep", "60"])
    mark = processes.mark("abc").replace(f"/{os.getpid()}/", f"/{owner.pid}/")
    owner.kill()
    owner.wait(10)
    return mark


def elsewhere(mark):
    return mark.replace("@", "@another-host-than-")


def held(set_id, mark=None, age_s=0):
    folder = folders.create(set_id)
    security = folder / "security"
    security.mkdir()
    os.utime(security, (time.time() - age_s,) * 2)
    if mark is not None:
        (folder / "owner").write_text(mark)
    return folder


def test_what_dead_notebooks_left_is_removed_and_nothing_else(build, dead_mark):
    kept = [held("ours"), held("elsewhere", elsewhere(dead_mark))]
    (build / "ranks" / "unknown").mkdir()
    left = held("left", dead_mark)
    folders.remove_dead()
    assert not left.exists()
    assert all(folder.exists() for folder in kept)
    assert (build / "ranks" / "unknown").exists()


def test_the_newest_is_one_whose_holder_lives(build, dead_mark):
    held("old", age_s=50)
    young = held("young", age_s=20)
    dead = held("dead", dead_mark)
    assert folders.find() == young
    assert folders.find(str(young)) == young
    with pytest.raises(RankError, match="No running ranks were found in .*dead.*workshop engines"):
        folders.find(dead)


def test_without_any_it_says_how_to_start_some(build):
    with pytest.raises(RankError, match="No running ranks were found. Start some with `workshop engines"):
        folders.find()


def test_a_controller_that_does_not_answer_is_one_sentence(build):
    folder = held("silent")
    names = ("control", "task", "mux", "iopub", "notification", "registration", "broadcast")
    told = dict.fromkeys(names, 1) | {"interface": "tcp://127.0.0.1", "key": "k", "ssh": "", "location": None}
    told |= {"pack": "json", "unpack": "json", "signature_scheme": "hmac-sha256", "task_scheme": "lru"}
    for side in ("engine", "client"):
        (folder / "security" / f"ipcontroller-{side}.json").write_text(json.dumps(told))
    with pytest.raises(RankError, match="does not answer"):
        folders.connect(folder, time.monotonic())


def test_ranks_of_a_notebook_on_another_host_are_no_strays(dead_mark):
    marks = {"here": dead_mark, "there": elsewhere(dead_mark)}
    started = {
        name: subprocess.Popen(["sleep", "60"], env=os.environ | {processes.VARIABLE: mark})
        for name, mark in marks.items()
    }
    try:
        strays = {process.pid for process in processes.strays()}
        assert started["here"].pid in strays
        assert started["there"].pid not in strays
    finally:
        for process in started.values():
            process.kill()
            process.wait(10)


def test_the_rank_that_took_the_others_along_comes_first(tmp_path):
    """Whatever was written first: the peers of a killed rank exit, and the launcher ends what is left."""
    ended = [(0, 14, False), (1, -9, False), (2, -9, True), (3, 0, True)]
    for after_s, (rank, returncode, asked) in enumerate(ended):
        record = {"rank": rank, "host": "here", "pid": 1, "returncode": returncode, "asked": asked, "time": after_s}
        (tmp_path / f"exit.{rank}.json").write_text(json.dumps(record))
    assert [record["rank"] for record in folders.exit_records(tmp_path)] == [1, 0, 2, 3]
