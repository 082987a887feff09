"""The board of a room: what learners share, with files that mean harm among theirs."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import psutil
import pytest
from command_line import workshop

from workshop_lib import paths
from workshop_lib.classroom import board, board_page
from workshop_lib.exercises import learners_log
from workshop_lib.exercises.learners_log import Check, Prediction
from workshop_lib.notebook import sharing


@pytest.fixture
def room(tmp_path):
    folder = tmp_path / "room"
    folder.mkdir(mode=0o777)
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A learner in 01_mpi_basics, who has done something of everything."""
    monkeypatch.setattr(paths, "LEARNER", tmp_path / "own" / "progress.jsonl")
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "own" / "01_mpi_basics-of-Alice.ipynb"))
    learners_log.keep(Check("exchange", True))
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "own" / "01_mpi_basics.ipynb"))
    for guess, measured in ((3.0, None), (3.0, 12.5), (12.0, None), (12.0, 13.0)):
        learners_log.keep(Prediction("How many times longer?", "times", guess, measured))
    learners_log.keep(Check("reduce_scatter", False, "SECRET of a learner"))
    learners_log.keep(Check("reduce_scatter", True))


@pytest.mark.usefixtures("kept")
def test_what_is_shared_is_the_results_and_nothing_else():
    about = {"notebook": "01_mpi_basics"}
    first = {"question": "How many times longer?", "unit": "times", "guess": 3.0, "measured": 12.5}
    assert sharing.summary(learners_log.kept()) == {
        "predictions": [about | first],
        "solved": [about | {"exercise": "reduce_scatter"}],
    }


@pytest.mark.usefixtures("kept")
def test_a_learner_begins_and_ends_to_share_and_cells_keep_it_fresh(room):
    assert "add --name otter --yes" in workshop("share", room, "--name", "otter").output and not os.listdir(room)
    ended = workshop("share", room, "--name", "otter", "--yes")
    assert ended.exit_code == 0 and "solved: 1" in ended.output and "No code" in ended.output, ended.output
    file = room / "otter.json"
    assert file.stat().st_mode & 0o777 == 0o644
    cells = {}
    after = sharing.AfterCells(SimpleNamespace(events=SimpleNamespace(register=cells.__setitem__)))
    learners_log.keep(Check("exchange", True))
    cells["post_run_cell"](None)
    after.thread.join(60)
    (shown,) = board.read(room).learners
    assert {exercise for _, exercise in shown.solved} == {"reduce_scatter", "exchange"}
    before = file.stat().st_ino
    cells["post_run_cell"](None)
    after.thread.join(60)
    assert file.stat().st_ino == before, "nothing was added"
    assert workshop("share", room, "--yes").exit_code == 0 and os.listdir(room) == ["otter.json"], "the same name"
    assert workshop("share", room, "--name", "heron", "--yes").exit_code == 0 and os.listdir(room) == ["heron.json"]
    assert "removed" in workshop("share", "--stop").output and not os.listdir(room)
    assert "nothing" in workshop("share", "--stop").output
    learners_log.keep(Check("ring", True))
    cells["post_run_cell"](None)
    assert not os.listdir(room), "who stopped stays out"
    assert workshop("share", room, "--yes").exit_code == 0
    (shown,) = board.read(room).learners
    assert re.fullmatch(r"[a-z]+-\d\d", shown.name), "a name is found for who gives none"


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "which folder"),
        (("{room}/none",), "mkdir -m 1777"),
        (("{room}", "--name", "../../otter"), "small letters"),
        (("{room}", "--name", "taken"), "somebody is called taken"),
        (("{room}", "--name", "link"), "somebody is called link"),
    ],
)
def test_what_cannot_be_shared_is_a_sentence_and_nothing_is_touched(room, arguments, words):
    (room / "taken.json").write_text("mine")
    (room / "link.json").symlink_to(room / "elsewhere")
    ended = workshop("share", *(each.format(room=room) for each in arguments), "--yes")
    assert ended.exit_code == 1 and words in ended.output.replace("\n", " ")
    assert (room / "taken.json").read_text() == "mine" and sorted(os.listdir(room)) == ["link.json", "taken.json"]
    assert sharing.chosen() is None


GUESS = {"notebook": "01_mpi_basics", "question": "What share?", "unit": "%", "guess": 40.0, "measured": 30.0}
SOLVED = {"notebook": "01_mpi_basics", "exercise": "exchange"}


def put(room, name, predictions, solved=()):
    (room / f"{name}.json").write_text(json.dumps({"predictions": predictions, "solved": list(solved)}))


def test_measured_values_are_hidden_until_they_are_revealed(room):
    for n, guess in enumerate((40.0, 50.0, 60.0)):
        put(room, f"otter-{n}", [GUESS | {"guess": guess}])
    text = board_page.page(board.read(room))
    shown, hidden = re.search(r'<div class="shown">(.*)</div><div class="hidden">(.*)</div></div>', text).groups()
    assert "<span>40</span><span>60 %</span>" in hidden and "<span>30</span><span>60 %</span>" in shown
    assert re.findall(r'x="([\d.]+)%" y="\d+"><circle', hidden) == ["2.00", "50.00", "98.00"]
    assert "<path" not in hidden and shown.count("<path") == 3
    [target] = re.findall(r'<div id="(measured-\w+)">', text)
    assert f'<a href="#{target}">Reveal what 3 measured</a>' in hidden
    assert ".shown { display: none; } :target > .shown { display: block; }" in text


BAD = "<script>alert(1)</script>\x1b[31m\u202e"
WRONG = (BAD, "x" * 1000, "nan", float("inf"), 1e300, 10**400, True, None, [], {})
HOSTILE = {
    "latin.json": (b"\xff\xfe\x00", "isn't JSON"),
    "deep.json": (b"[" * 50_000, "isn't JSON"),
    "huge.json": (b"9" * 1_000_000, "larger than"),
    "list.json": (b"[]", "no such file"),
    "otter.txt": (b"{}", "no such file"),
    f"{BAD}.json".replace("/", ""): (b"[]", "no such file"),
}


def test_every_file_that_is_no_learners_is_named_with_its_reason_and_nothing_in_it_is_shown(room):
    for name, (content, _) in HOSTILE.items():
        (room / name).write_bytes(content)
    os.mkfifo(room / "pipe.json")
    (room / "passwd.json").symlink_to("/etc/passwd")
    (room / "folder.json").mkdir()
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(room / "socket.json"))
    reasons = {name: words for name, (_, words) in HOSTILE.items()}
    reasons |= dict.fromkeys(("pipe.json", "passwd.json", "folder.json", "socket.json"), "only plain files")
    put(room, "otter", [GUESS])
    seen = board.read(room)
    assert [each.name for each in seen.learners] == ["otter"]
    for problem, (_, words) in zip(seen.problems, sorted(reasons.items()), strict=True):
        assert words in problem.reason, problem
    text = board_page.page(seen)
    assert "&lt;script&gt;alert(1)" in text and f"<b>{len(reasons)}</b>" in text
    assert not [each for each in ("<script", "root:", "\u202e", "\x1b") if each in text]
    assert "there is no such file or folder" in board_page.page(board.read(room / "gone"))


@pytest.mark.parametrize("bad", WRONG, ids=lambda bad: ascii(bad)[:9])
def test_every_value_of_a_file_is_converted_clipped_and_escaped(room, bad):
    """Each field in turn holds something else than it should, and so does each list."""
    wrong = [[entry, bad, *(entry | {key: bad} for key in entry)] for entry in (GUESS, SOLVED)]
    put(room, "otter", *wrong)
    (room / "heron.json").write_text(json.dumps({"predictions": bad, "solved": bad, "name": bad}))
    seen = board.read(room)
    text = board_page.page(seen)
    assert [each.name for each in seen.learners] == ["heron", "otter"], "called what the file is called"
    assert not seen.problems and "exchange" in text and "<b>1</b>checks solved" in text
    assert not [each for each in ("<script", "\u202e", "\x1b", "nan</title>", "inf</title>", "x" * 400) if each in text]


@pytest.mark.usefixtures("kept")
def test_whoever_reads_while_learners_write_finds_no_torn_file(room):
    def write(name):
        for _ in range(200):
            sharing.publish(sharing.Sharing(str(room), name))

    writers = [threading.Thread(target=write, args=(name,)) for name in ("otter", "heron")]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert board.read(room).problems == []
    assert sorted(os.listdir(room)) == ["heron.json", "otter.json"] and len(board.read(room).learners) == 2


@pytest.fixture
def running(room, tmp_path):
    """`workshop board` on this room, with a browser that writes down what it opens, and one line of output per item."""
    room.chmod(0o777)
    opener = tmp_path / "browser"
    opener.write_text(f"#!/bin/sh\necho $1 > {tmp_path}/opened.tmp && mv {tmp_path}/opened.tmp {tmp_path}/opened\n")
    opener.chmod(0o755)
    command = [sys.executable, "-c", BOARD, tmp_path, room]
    env = {**os.environ, "PYTHONPATH": str(paths.ROOT), "BROWSER": str(opener)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(list(map(str, command)), env=env, text=True, **pipes) as process:
        yield process
        process.kill()


BOARD = """
import pathlib, sys
from workshop_lib import cli
from workshop_lib.classroom import board

board.PAGE, board.REWRITE_S = pathlib.Path(sys.argv[1], "page.html"), 1
sys.argv = ["workshop", "board", sys.argv[2]]
cli.main()
"""


def wait_for(condition):
    end_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.05)


@pytest.mark.timeout(120)
def test_the_board_opens_one_page_and_rewrites_it_until_ctrl_c(running, room, tmp_path):
    page = tmp_path / "page.html"
    assert "chmod +t" in running.stdout.readline(), "anybody could remove anybody's file"
    assert str(page) in running.stdout.readline()
    wait_for((tmp_path / "opened").exists)
    assert (tmp_path / "opened").read_text().strip() == page.as_uri()
    assert '<meta http-equiv="refresh" content="1">' in page.read_text()
    put(room, "otter", [], [SOLVED])
    wait_for(lambda: "exchange" in page.read_text())
    assert not psutil.Process(running.pid).net_connections(), "nothing listens"
    running.send_signal(signal.SIGINT)
    output, errors = running.communicate(timeout=60)
    assert running.returncode == 0 and not errors and "closed" in output
    text = page.read_text()
    assert "refresh" not in text and "exchange" in text and "To take part" in text
    assert "Content-Security-Policy" in text and "default-src 'none';" in text and "unsafe" not in text
    ended = workshop("board", page)
    assert ended.exit_code == 1 and "is a file" in ended.output.replace("\n", " ")
