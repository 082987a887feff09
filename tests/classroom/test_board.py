"""The board of a room: what learners share, under forty writers at once, and with files that mean harm among them."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
from command_line import workshop

from workshop_lib import paths
from workshop_lib.classroom import board, board_page, sharing
from workshop_lib.course import learner
from workshop_lib.course.learner import Check, Prediction, Training

WRITERS, ROUNDS = 40, 12


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
    paths.LEARNER.parent.mkdir()
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "own" / "01_mpi_basics.ipynb"))
    for guess, measured in ((3.0, None), (3.0, 12.5), (12.0, None), (12.0, 13.0)):
        learner.keep(Prediction("How many times longer?", "times", guess, measured, 1, 100))
    learner.keep(Check("ring_allreduce", False, "SECRET of a learner"))
    learner.keep(Check("ring_allreduce", True))
    for speed in (9000.0, 15000.0):
        learner.keep(Training("ddp", 2, 1, 128, False, 0.97, speed))
    learner.keep(Prediction("not a number", "", float("nan"), 1.0))
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "own" / "01_mpi_basics-of-Alice.ipynb"))
    learner.keep(Check("exchange", True))
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "own" / "01_mpi_basics.ipynb"))
    with paths.LEARNER.open("a") as file:
        file.write('[]\n{"what": "check", "notebook": [], "exercise": {}}\n')


def result(name="otter", **changes):
    made = "2026-01-01T00:00:00+00:00"
    empty = {"predictions": [], "solved": [], "speeds": []}
    return {"schema": 1, "name": name, "made": made, "cores": 2} | empty | changes


@pytest.mark.usefixtures("kept")
def test_what_is_shared_is_the_results_and_nothing_else():
    shared = sharing.summary("otter", learner.kept())
    about = {"notebook": "01_mpi_basics"}
    asked = {"question": "How many times longer?", "unit": "times"}
    first = {"guess": 3.0, "measured": 12.5, "low": 1.0, "high": 100.0}
    assert shared["predictions"] == [about | asked | first], "the first guess counts"
    assert shared["solved"] == [about | {"exercise": "ring_allreduce"}]
    assert shared["speeds"] == [{"backend": "ddp", "world_size": 2, "samples_per_s": 15000.0}]
    private = ("SECRET", "Alice", str(paths.LEARNER.parent))
    assert not [each for each in private if each in json.dumps(shared)]


@pytest.mark.usefixtures("kept")
def test_a_learner_begins_and_ends_to_share_and_cells_keep_it_fresh(room):
    assert "add --name otter --yes" in workshop("share", room, "--name", "otter").output and not os.listdir(room)
    ended = workshop("share", room, "--name", "otter", "--yes")
    assert ended.exit_code == 0 and "solved: 1" in ended.output and "No code" in ended.output, ended.output
    file = room / "otter.json"
    assert file.stat().st_mode & 0o777 == 0o644
    cells = {}
    after = sharing.AfterCells(SimpleNamespace(events=SimpleNamespace(register=cells.__setitem__)))
    learner.keep(Check("exchange", True))
    cells["post_run_cell"](None)
    after.thread.join(60)
    (shown,) = board.read(room).learners
    assert {exercise for _, exercise in shown.solved} == {"ring_allreduce", "exchange"}
    before = file.stat().st_ino
    cells["post_run_cell"](None)
    after.thread.join(60)
    assert file.stat().st_ino == before, "nothing was added"
    assert workshop("share", room, "--yes").exit_code == 0 and os.listdir(room) == ["otter.json"], "the same name"
    assert workshop("share", "--name", "heron", "--yes").exit_code == 0 and os.listdir(room) == ["heron.json"]
    assert "removed" in workshop("share", "--stop").output and not os.listdir(room)
    assert "nothing" in workshop("share", "--stop").output
    cells["post_run_cell"](None)
    assert not os.listdir(room), "who stopped stays out"


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "which folder"),
        (("{room}/none",), "mkdir -m 1777"),
        (("{room}", "--name", "../../otter"), "small letters"),
        (("{room}", "--name", "otter\n"), "small letters"),
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


@pytest.mark.usefixtures("kept")
def test_a_name_is_found_for_who_gives_none(room, monkeypatch):
    monkeypatch.setattr("workshop_lib.classroom.room.ANIMALS", "otter heron")
    assert workshop("share", room, "--yes").exit_code == 0
    (shown,) = board.read(room).learners
    assert re.fullmatch(r"(otter|heron)-\d\d", shown.name)


def test_the_axis_is_the_questions_range_and_measured_values_are_hidden_until_they_are_revealed(room):
    asked = {"notebook": "02_synchronous_sgd", "question": "What share?", "unit": "%", "low": 0, "high": 100}
    for n, guess in enumerate((40.0, 60.0)):
        prediction = asked | {"guess": guess, "measured": 30.0 + n}
        (room / f"otter-{n}.json").write_text(json.dumps(result(predictions=[prediction])))
    liar = asked | {"guess": 50.0, "measured": None, "low": 1e12, "high": -3}
    (room / "liar.json").write_text(json.dumps(result(predictions=[liar])))
    text = board_page.page(board.read(room))
    shown, hidden = re.search(r'<div class="shown">(.*)</div><div class="hidden">(.*)</div></div>', text).groups()
    for part in (shown, hidden):
        assert "<span>0</span><span>100 %</span>" in part
        assert sorted(re.findall(r'x="([\d.]+)%" y="\d+"><circle', part)) == ["40.40", "50.00", "59.60"]
    assert "diamond" not in hidden and "<path" not in hidden and "Closest" not in hidden and "Closest" in shown
    [target] = re.findall(r'<div id="(measured-\w+)">', text)
    assert f'<a href="#{target}">Reveal what 2 measured</a>' in hidden
    assert ".shown { display: none; } :target > .shown { display: block; }" in text


GUESS = {"notebook": "01_mpi_basics", "question": "?", "unit": "", "guess": 1.0, "measured": None}
BAD = "<script>alert(1)</script>\x1b[31m\u202e"
WRONG = (BAD, "x" * 1000, "nan", float("nan"), float("inf"), 1e300, 10**400, True, None, [], {})
HOSTILE = {
    "cut.json": (json.dumps(result("cut"))[:-9], "isn't JSON"),
    "latin.json": (b"\xff\xfe\x00", "isn't JSON"),
    "deep.json": ("[" * 50_000, "isn't JSON"),
    "huge.json": ("9" * 1_000_000, "larger than"),
    "digits.json": ("9" * 6000, "isn't JSON"),
    "list.json": ("[]", "no such file"),
    "otter.txt": (json.dumps(result()), "no such file"),
    f"{BAD}.json".replace("/", ""): ("[]", "no such file"),
    "x" * 250: ("[" * 9, "isn't JSON"),
}


def plant(folder):
    """Everything in HOSTILE, and what isn't a plain file; returns the reasons to expect, in the order of the names."""
    for name, (content, _) in HOSTILE.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    reasons = {name: words for name, (_, words) in HOSTILE.items()}
    os.mkfifo(folder / "pipe.json")
    (folder / "passwd.json").symlink_to("/etc/passwd")
    (folder / "folder.json").mkdir()
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(folder / "socket.json"))
    reasons |= dict.fromkeys(("pipe.json", "passwd.json", "folder.json", "socket.json"), "only plain files")
    return [reasons[name] for name in sorted(reasons)]


def test_every_file_that_is_no_learners_is_named_with_its_reason_and_nothing_in_it_is_shown(room):
    reasons = plant(room)
    (room / "otter.json").write_text(json.dumps(result(predictions=[GUESS])))
    (room / "new.json").touch()  # claimed, and not written yet
    seen = board.read(room)
    assert [each.name for each in seen.learners] == ["otter"]
    assert len(seen.problems) == len(reasons)
    for problem, words in zip(seen.problems, reasons, strict=True):
        assert words in problem.reason, problem
    text = board_page.page(seen)
    assert "&lt;script&gt;alert(1)" in text and f"<b>{len(reasons)}</b>" in text
    assert not [each for each in ("<script", "root:", "\u202e", "\x1b") if each in text]


@pytest.mark.parametrize("bad", WRONG, ids=lambda bad: ascii(bad)[:9])
def test_every_value_of_a_file_is_converted_clipped_and_escaped(room, bad):
    """Each field in turn holds something else than it should, and so does each list."""
    entries = {
        "predictions": GUESS | {"measured": 2.0},
        "solved": {"notebook": "01_mpi_basics", "exercise": "exchange"},
        "speeds": {"backend": "ddp", "world_size": 2, "samples_per_s": 9000.0},
    }
    for name, entry in entries.items():
        wrong = [entry, bad, *(entry | {key: bad} for key in entry)]
        changes = {key: [each] for key, each in entries.items()} | {name: wrong}
        (room / f"{name}.json").write_text(json.dumps(result(name=bad, cores=bad, made=bad, **changes)))
        (room / f"{name}-none.json").write_text(json.dumps(result(**{name: bad})))
    seen = board.read(room)
    text = board_page.page(seen)
    names = {*entries, *(f"{name}-none" for name in entries)}
    assert {each.name for each in seen.learners} == names and not seen.problems, "called what the file is called"
    assert "exchange" in text and "9,000" in text and "1.4" in text
    assert not [each for each in ("<script", "\u202e", "\x1b", "nan</title>", "inf</title>", "x" * 400) if each in text]


WRITER = """
import multiprocessing, os, pathlib, sys
from workshop_lib import paths
from workshop_lib.course import learner
from workshop_lib.classroom import sharing

def write(n):
    own = pathlib.Path(sys.argv[2], str(n))
    own.mkdir()
    paths.LEARNER = own / "progress.jsonl"
    os.environ["JPY_SESSION_NAME"] = str(own / "01_mpi_basics.ipynb")
    mine = sharing.Sharing(sys.argv[1], f"otter-{n}")
    for turn in range(int(sys.argv[4])):
        learner.keep(learner.Check(f"exercise_{turn}", True))
        learner.keep(learner.Prediction(f"Question {turn}?", "times", n, turn))
        sharing.publish(mine) if turn else sharing.start(mine)

fork = multiprocessing.get_context("fork")
writers = [fork.Process(target=write, args=(n,)) for n in range(int(sys.argv[3]))]
for each in writers: each.start()
for each in writers: each.join()
sys.exit(max(each.exitcode for each in writers))
"""


def test_forty_writers_at_once_and_files_that_mean_harm_among_theirs(room, tmp_path):
    reasons = plant(room)
    page = tmp_path / "page.html"
    command = [sys.executable, "-c", WRITER, room, tmp_path, WRITERS, ROUNDS]
    env = {**os.environ, "PYTHONPATH": str(paths.ROOT)}
    writers = subprocess.Popen(list(map(str, command)), env=env)
    reads, most = 0, 0
    while writers.poll() is None or not reads:
        seen = board.read(room)
        assert len(seen.problems) == len(reasons), "no torn or empty file among them"
        reads, most = reads + 1, max(most, len(seen.learners))
    assert writers.returncode == 0
    seen = board.read(room)
    board.write(room, page)
    assert len(seen.learners) == WRITERS == seen.active and reads > 2 and most > 1
    assert all(len(each.solved) == len(each.guesses) == ROUNDS for each in seen.learners)
    assert f"<b>{WRITERS}</b>people" in page.read_text()
    assert f"<b>{WRITERS * ROUNDS:,}</b>checks solved" in page.read_text()
    assert not [name for name in os.listdir(room) if name.endswith(".tmp")]


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
    (room / "otter.json").write_text(json.dumps(result(solved=[{"notebook": "05_ddp", "exercise": "my_ddp"}])))
    wait_for(lambda: "my_ddp" in page.read_text())
    assert not psutil.Process(running.pid).net_connections(), "nothing listens"
    running.send_signal(signal.SIGINT)
    output, errors = running.communicate(timeout=60)
    assert running.returncode == 0 and not errors and "closed" in output
    assert "refresh" not in page.read_text() and "my_ddp" in page.read_text()


def test_a_page_written_once_stays_as_it_is_and_may_load_and_run_nothing(room, tmp_path):
    assert workshop("board", room, "--out", tmp_path / "page.html").exit_code == 0
    text = (tmp_path / "page.html").read_text()
    assert "To take part" in text and "refresh" not in text
    assert "Content-Security-Policy" in text and "default-src 'none';" in text and "unsafe" not in text
    ended = workshop("board", tmp_path / "page.html")
    assert ended.exit_code == 1 and "is a file" in ended.output.replace("\n", " ")
