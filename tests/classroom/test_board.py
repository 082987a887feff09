"""The board of a room: what learners share, under forty writers at once, and with files that mean harm among them."""

import contextlib
import http.client
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

import pytest
from command_line import workshop

from workshop_lib import learner, paths
from workshop_lib.classroom import board, board_page, sharing
from workshop_lib.learner import Check, Prediction, Training
from workshop_lib.lessons.pipelines import judge as pipelines
from workshop_lib.lessons.pipelines import orders as pipeline_orders
from workshop_lib.lessons.thousand_ranks import judge as thousand_ranks

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
        learner.keep(Prediction("How many times longer?", "times", guess, measured))
    learner.keep(Check("ring_allreduce", False, "SECRET of a learner"))
    learner.keep(Check("ring_allreduce", True))
    for score in (1.1, 1.4, 1.3):
        learner.keep(Check("best_mesh", False, "", score))
    for speed in (9000.0, 15000.0):
        learner.keep(Training("ddp", 2, 1, 128, False, 0.97, speed))
    learner.keep(Prediction("\x1b[31m not plain text", "", 1.0, 1.0))
    with paths.LEARNER.open("a") as file:
        file.write('[]\n{"what": "check", "notebook": [], "exercise": {}}\n')


def result(name="otter", **changes):
    made = "2026-01-01T00:00:00+00:00"
    empty = {"predictions": [], "solved": [], "speeds": [], "scores": []}
    return {"schema": 1, "name": name, "made": made, "cores": 2} | empty | changes


@pytest.mark.usefixtures("kept")
def test_what_is_shared_is_the_results_and_nothing_else():
    shared = sharing.summary("otter", learner.kept())
    sharing.check(shared)
    about = {"notebook": "01_mpi_basics"}
    asked = {"question": "How many times longer?", "unit": "times"}
    assert shared["predictions"] == [about | asked | {"guess": 3.0, "measured": 12.5}], "the first guess counts"
    assert shared["solved"] == [about | {"exercise": "ring_allreduce"}]
    assert shared["speeds"] == [{"backend": "ddp", "world_size": 2, "samples_per_s": 15000.0}]
    assert shared["scores"] == [{"exercise": "best_mesh", "score": 1.4}]
    assert "SECRET" not in json.dumps(shared) and str(paths.LEARNER.parent) not in json.dumps(shared)


@pytest.mark.usefixtures("kept")
def test_a_learner_begins_and_ends_to_share_and_cells_keep_it_fresh(room):
    assert "add --yes" in workshop("share", room, "--name", "otter").output and not os.listdir(room)
    ended = workshop("share", room, "--name", "otter", "--yes")
    assert ended.exit_code == 0 and "solved: 1" in ended.output and "No code" in ended.output, ended.output
    file = room / "otter.json"
    assert file.stat().st_mode & 0o777 == 0o644
    cells = {}
    after = sharing.AfterCells(SimpleNamespace(events=SimpleNamespace(register=cells.__setitem__)))
    learner.keep(Check("exchange", True))
    cells["post_run_cell"](None)
    after.thread.join(60)
    (shown,) = board.read(room).results
    assert [each["exercise"] for each in shown["solved"]] == ["ring_allreduce", "exchange"]
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
def test_a_name_is_found_for_who_gives_none(room):
    assert workshop("share", room, "--yes").exit_code == 0
    (name,) = (each["name"] for each in board.read(room).results)
    assert re.fullmatch(r"[a-z]+-\d\d", name)


GUESS = {"notebook": "01_mpi_basics", "question": "?", "unit": "", "guess": 1.0, "measured": None}
HOSTILE = {
    "cut.json": (json.dumps(result("cut"))[:-9], "isn't JSON"),
    "latin.json": (b"\xff\xfe\x00", "UTF-8"),
    "deep.json": ("[" * 50_000, "more parts"),
    "nested.json": ("[" * 799, "isn't JSON"),
    "huge.json": ("9" * 1_000_000, "larger than"),
    "many.json": (json.dumps(result("many") | {str(n): n for n in range(3000)}), "other fields"),
    "digits.json": ("9" * 6000, "far too long"),
    "nan.json": (json.dumps(result("nan", cores=float("nan"))), "NaN"),
    "overflow.json": (json.dumps(result("overflow")).replace('"cores": 2', '"cores": 1e999'), "'cores'"),
    "negative.json": (json.dumps(result("negative", cores=-1)), "'cores'"),
    "truth.json": (json.dumps(result("truth", cores=True)), "'cores'"),
    "list.json": ("[]", "isn't an object"),
    "types.json": (json.dumps(result("types", solved={"a": 1})), "'solved'"),
    "entry.json": (json.dumps(result("entry", predictions=[None])), "'predictions'"),
    "guess.json": (json.dumps(result("guess", predictions=[GUESS | {"guess": "1"}])), "'guess'"),
    "long.json": (json.dumps(result("long", predictions=[GUESS] * 151)), "list of at most"),
    "script.json": (json.dumps(result("script", predictions=[GUESS | {"notebook": "<script>"}])), "'notebook'"),
    "colors.json": (json.dumps(result("colors", predictions=[GUESS | {"question": "\x1b[31m"}])), "'question'"),
    "rtl.json": (json.dumps(result("rtl", predictions=[GUESS | {"unit": "\u202egnp"}])), "'unit'"),
    "path.json": (json.dumps(result("../../../etc/passwd")), "'name'"),
    "otter-again.json": (json.dumps(result("otter")), "somebody else's"),
    "future.json": (json.dumps(result("future", schema=2)), "'schema'"),
    "<script>alert(1)<script>.json": ("{}", "other fields"),
    "\u202egnp.json\n\x1b[31m": ("{}", "other fields"),
    "x" * 250: ("[" * 9, "isn't JSON"),
}


def plant(folder):
    """Everything in HOSTILE, and what isn't a plain file; returns the reasons to expect, by name."""
    for name, (content, _) in HOSTILE.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    reasons = {name: words for name, (_, words) in HOSTILE.items()}
    os.mkfifo(folder / "pipe.json")
    (folder / "passwd.json").symlink_to("/etc/passwd")
    (folder / "nowhere.json").symlink_to("nowhere")
    (folder / "folder.json").mkdir()
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(folder / "socket.json"))
    reasons |= {"pipe.json": "a pipe", "folder.json": "a folder", "socket.json": "a socket"}
    reasons |= {"passwd.json": "a link", "nowhere.json": "a link"}
    if os.geteuid():
        (folder / "closed.json").touch(mode=0)
        (folder / "closed.json").write_text("{}") if os.access(folder / "closed.json", os.W_OK) else None
        reasons["closed.json"] = "no permission"
    return reasons


def test_every_file_that_is_no_result_is_named_with_its_reason_and_nothing_in_it_is_shown(room):
    reasons = plant(room)
    (room / "otter.json").write_text(json.dumps(result(predictions=[GUESS])))
    (room / "new.json").touch()  # claimed, and not written yet
    (room / "empty.json").touch()
    os.utime(room / "empty.json", (1, 1))
    reasons["empty.json"] = "isn't JSON"
    seen = board.read(room)
    assert [each["name"] for each in seen.results] == ["otter"]
    assert {each.file: each.reason for each in seen.problems}.keys() == reasons.keys()
    for each in seen.problems:
        assert reasons[each.file] in each.reason, each
        assert "alert" not in each.reason and "root:" not in each.reason
    text = board_page.page(seen)
    assert "<script" not in text and "root:" not in text and "\u202e" not in text and "\x1b" not in text
    assert "&lt;script&gt;alert(1)" in text and f"{len(reasons)}</b>" in text


def test_a_file_is_not_read_by_whom_may_not_or_when_something_takes_its_place(room, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied", str(room / "a.json"))

    (room / "a.json").write_text("{}")
    (room / "b.json").symlink_to("/etc/passwd")
    monkeypatch.setattr(board.os, "open", refuse)
    assert board.read(room).problems[0].reason == "it can't be read: you have no permission"
    monkeypatch.undo()
    plain = os.lstat(room / "a.json")
    monkeypatch.setattr(board.os, "lstat", lambda path: plain)
    assert "can't be read" in board.read(room).problems[1].reason, "a link that was a file a moment ago"


def test_more_files_than_anyone_shares_and_a_folder_that_is_gone_are_said(room, monkeypatch):
    monkeypatch.setattr(board, "MOST_FILES", 3)
    for n in range(5):
        (room / f"otter-{n}.json").write_text(json.dumps(result(f"otter-{n}")))
    seen = board.read(room)
    assert len(seen.results) == 3 and "more than 3 files" in board_page.page(seen)
    assert "no such file or folder" in board_page.page(board.read(room / "none"))


WRITER = """
import multiprocessing, os, pathlib, sys
from workshop_lib import learner, paths
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


@contextlib.contextmanager
def served(folder):
    with board.Server(folder, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()


def ask(server, path="/", method="GET"):
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=60)
    connection.request(method, path)
    answer = connection.getresponse()
    return answer, answer.read().decode()


def test_forty_writers_at_once_and_files_that_mean_harm_among_theirs(room, tmp_path, monkeypatch):
    reasons = plant(room)
    monkeypatch.setattr(board, "READ_EVERY_S", 0.0)
    command = [sys.executable, "-c", WRITER, room, tmp_path, WRITERS, ROUNDS]
    env = {**os.environ, "PYTHONPATH": str(paths.ROOT)}
    writers = subprocess.Popen(list(map(str, command)), env=env)
    reads, most = 0, 0
    with served(room) as server:
        while writers.poll() is None or not reads:
            seen = board.read(room)
            assert {each.file for each in seen.problems} == reasons.keys(), "no torn or empty result among them"
            answer, text = ask(server)
            assert answer.status == 200 and text.endswith("</html>")
            reads, most = reads + 1, max(most, len(seen.results))
        assert writers.returncode == 0
        seen, text = board.read(room), ask(server)[1]
    assert len(seen.results) == WRITERS == seen.active and reads > 2 and most > 1
    assert all(len(each["solved"]) == len(each["predictions"]) == ROUNDS for each in seen.results)
    assert f"<b>{WRITERS}</b>people" in text and f"<b>{WRITERS * ROUNDS:,}</b>checks solved" in text
    assert not [name for name in os.listdir(room) if name.endswith(".tmp")]


def test_the_server_answers_one_page_which_may_load_and_run_nothing(room):
    (room / "otter.json").write_text(json.dumps(result(solved=[{"notebook": "05_ddp", "exercise": "my_ddp"}])))
    with served(room) as server:
        answer, text = ask(server)
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none';") and "unsafe" not in policy and "script" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff" and "my_ddp" in text
        assert "my_ddp" in ask(server, "/?notebook=05_ddp")[1]
        assert "<b>x" not in ask(server, "/?notebook=%3Cb%3Ex")[1]
        for path in ("/otter.json", "/../../etc/passwd", "/%2e%2e/room", "//etc/passwd", "*"):
            answer, text = ask(server, path)
            assert answer.status == 404 and "root:" not in text
        for method in ("POST", "PUT", "DELETE"):
            assert ask(server, method=method)[0].status == 501
        assert server.server_address[0] == "127.0.0.1"


def test_who_says_nothing_and_a_folder_that_hangs_hold_nobody_up(room, monkeypatch):
    (room / "otter.json").write_text(json.dumps(result()))
    with served(room) as server:
        assert "<b>1</b>people" in ask(server)[1]
        gate = threading.Event()
        monkeypatch.setattr(board, "PATIENCE_S", 0.1)
        monkeypatch.setattr(board, "READ_EVERY_S", 0.0)
        monkeypatch.setattr(board, "read", lambda folder: gate.wait(20) and None)
        address = server.server_address
        with socket.create_connection(address), socket.create_connection(address) as waits:
            waits.sendall(b"GET / HTTP/1.0\r\n\r\n")
            soon = time.monotonic() + 10
            while not server.lock.locked() and time.monotonic() < soon:
                time.sleep(0.01)
            assert "<b>1</b>people" in ask(server)[1], "what was known before"
        gate.set()


def start_board(folder, *more):
    command = [sys.executable, "-m", "workshop_lib", "board", folder, *more]
    env = {**os.environ, "PYTHONPATH": str(paths.ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(list(map(str, command)), env=env, text=True, **pipes)


def test_the_command_serves_until_ctrl_c_and_refuses_a_port_that_is_taken(room):
    room.chmod(0o777)
    running = start_board(room)
    assert "chmod +t" in running.stdout.readline(), "anybody could remove anybody's file"
    port = re.search(r"127\.0\.0\.1:(\d+)", running.stdout.readline())[1]
    assert "ssh -L" in running.stdout.readline()
    other = workshop("board", room, "--port", port)
    assert other.exit_code == 1 and f"port {port} can't be used" in other.output.replace("\n", " ")
    running.send_signal(signal.SIGINT)
    output, errors = running.communicate(timeout=60)
    assert running.returncode == 0 and not errors and "closed" in output


def test_the_page_can_be_written_to_a_file(room, tmp_path):
    assert workshop("board", room, "--out", tmp_path / "page.html").exit_code == 0
    assert "To take part" in (tmp_path / "page.html").read_text()
    ended = workshop("board", tmp_path / "page.html")
    assert ended.exit_code == 1 and "is a file" in ended.output.replace("\n", " ")


def test_one_absurd_number_does_not_flatten_the_rest():
    values = [(float(n), f"otter-{n}") for n in range(20)]
    rows = [board_page.Strip("guessed", "guess", [*values, (1e12, "liar")], "")]
    drawn = board_page.strips(rows, "s")
    assert drawn.count('class="beyond"') == 1 and drawn.count("<circle") == 20
    places = [float(x) for x in re.findall(r'x="([\d.]+)%" y="\d+"><circle', drawn)]
    assert max(places) - min(places) > 15


def test_what_there_is_to_beat_has_a_score_that_only_counts_what_fits():
    def mesh(function):
        return thousand_ranks.best_mesh.verdict([thousand_ranks.observe_meshes(None, function)])

    right, default = (
        mesh(lambda cluster, _: thousand_ranks.right_mesh(cluster)),
        mesh(lambda c, _: thousand_ranks.default(c)),
    )
    assert right.passed and right.score > thousand_ranks.GAIN and default.score == pytest.approx(1)
    assert mesh(lambda cluster, choices: choices[0]).score is None, "it doesn't fit"
    assert mesh(lambda cluster, choices: 7).score is None
    seen = pipelines.observe_chunked(None, pipeline_orders.interleaved)
    verdict = pipelines.interleaved.verdict([seen])
    assert verdict.passed and verdict.score == pipelines.pieces_kept(seen) > 0
