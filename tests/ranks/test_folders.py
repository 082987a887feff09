"""The folders of sets of ranks: whose they are, and which are left of notebooks that are gone."""

import errno
import json
import os
import tempfile
import time
import webbrowser
from unittest import mock

import pytest

from workshop_lib import paths
from workshop_lib.paths import ROOT
from workshop_lib.ranks import RankError, owned
from workshop_lib.ranks.launch import folders, processes


@pytest.fixture
def build(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "BUILD", tmp_path)
    return tmp_path


def held(set_id, mark=None, age_s=0):
    folder = folders.create(set_id)
    (folder / "security").mkdir()
    (folder / folders.HELD).touch()
    os.utime(folder / folders.HELD, (time.time() - age_s,) * 2)
    if mark is not None:
        (folder / "owner").write_text(mark)
    return folder


def test_the_newest_is_one_whose_holder_lives(build, dead_mark):
    held("old", age_s=50)
    young = held("young", age_s=20)
    dead = held("dead", dead_mark)
    assert folders.find() == young
    assert folders.find(str(young)) == young
    with pytest.raises(RankError, match="No running ranks were found in .*dead.*workshop engines"):
        folders.find(dead)


@pytest.mark.parametrize("locks", [True, False])
def test_the_lock_says_whether_an_owner_in_another_pid_namespace_lives(tmp_path, monkeypatch, dead_mark, locks):
    """Its process id means nothing here. Where there are no locks, it counts as alive."""
    if not locks:
        monkeypatch.setattr(owned.fcntl, "flock", mock.Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    with monkeypatch.context() as there:
        there.setattr(processes, "pid_namespace", lambda: "another")
        there.setattr(processes, "start_of", lambda pid: "9")
        owned.claim(tmp_path, "abc")
    assert not owned.is_dead(tmp_path)
    owned._LOCKED.pop(tmp_path).close()  # as the kernel does when the owner ends
    assert owned.is_dead(tmp_path) == locks
    (tmp_path / "owner").write_text(dead_mark.replace("@", "@another-host-than-"))
    assert not owned.is_dead(tmp_path)


def test_a_controller_that_does_not_answer_is_one_sentence(build):
    folder = held("silent")
    names = ("control", "task", "mux", "iopub", "notification", "registration", "broadcast")
    told = dict.fromkeys(names, 1) | {"interface": "tcp://127.0.0.1", "key": "k", "ssh": "", "location": None}
    told |= {"pack": "json", "unpack": "json", "signature_scheme": "hmac-sha256", "task_scheme": "lru"}
    for side in ("engine", "client"):
        (folder / "security" / f"ipcontroller-{side}.json").write_text(json.dumps(told))
    with pytest.raises(RankError, match="does not answer"):
        folders.connect(folder, 0)


def test_the_rank_that_took_the_others_along_comes_first(tmp_path):
    """Whatever was written first: the peers of a killed rank exit, and the launcher ends what is left."""
    ended = [(0, 14, False), (1, -9, False), (2, -9, True), (3, 0, True)]
    (tmp_path / "exit").mkdir()
    for after_s, (rank, returncode, asked) in enumerate(ended):
        record = {"rank": rank, "host": "here", "pid": 1, "returncode": returncode, "asked": asked, "time": after_s}
        (tmp_path / "exit" / f"{rank}.json").write_text(json.dumps(record))
    assert [record["rank"] for record in folders.exit_records(tmp_path)] == [1, 0, 2, 3]


def test_where_others_could_read_the_key_the_folder_is_a_temporary_one(build, tmp_path_factory, monkeypatch):
    """As on a Windows disk, which has no modes."""
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(folders.tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(folders, "keeps_secrets", lambda folder: temporary in folder.parents)
    folder = folders.create("abc")
    assert folder == temporary / "workshop-abc" and folder.stat().st_mode & 0o777 == 0o700
    assert folders.mark(folder) == processes.mark("abc")
    assert not list((build / "ranks").iterdir()), "nothing is left of the attempt"
    with pytest.raises(RankError, match=r"ranks cannot be used, because .* key, and ranks on other nodes must see it"):
        folders.create("abc", elsewhere=True)


def test_full_disks_are_named(build, monkeypatch):
    def full(dir):
        raise OSError(errno.ENOSPC, "No space left on device", dir)

    monkeypatch.setattr(folders.tempfile, "TemporaryFile", full)
    with pytest.raises(RankError) as error:
        folders.create("abc")
    assert f"{build}/ranks cannot be used, because the disk is full; and no temporary folder" in str(error.value)
    assert not list((build / "ranks").iterdir())


def test_a_file_that_others_can_read_keeps_no_secret(tmp_path, monkeypatch):
    assert paths.keeps_secrets(tmp_path / "new")
    assert not paths.keeps_secrets("/proc/nowhere")
    make = tempfile.NamedTemporaryFile

    def open_to_all(dir):
        file = make(dir=dir)
        os.chmod(file.name, 0o777)
        return file

    monkeypatch.setattr(paths.tempfile, "NamedTemporaryFile", open_to_all)
    assert not paths.keeps_secrets(tmp_path / "new")


def test_jupyter_gets_a_runtime_folder_elsewhere_where_its_own_keeps_no_secret(monkeypatch):
    config = ROOT / "workshop_lib/notebook/jupyter/jupyter_server_config.py"
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", "/proc/nowhere")
    at_exit = []
    monkeypatch.setattr("atexit.register", lambda function, *args, **named: at_exit.append((function, args, named)))
    exec(config.read_text(), {"__file__": str(config), "get_config": mock.MagicMock})
    folder = os.environ["JUPYTER_RUNTIME_DIR"]
    assert paths.keeps_secrets(folder)
    [(remove, args, named)] = at_exit
    with monkeypatch.context() as fork:
        fork.setattr("os.getpid", lambda: -1)
        remove(*args, **named)
    assert os.path.exists(folder), "a fork leaves it to its owner"
    remove(*args, **named)
    assert not os.path.exists(folder)


@pytest.mark.parametrize(("browser", "opens"), [("/usr/bin/w3m", False), ("www-browser", False), ("firefox", True)])
def test_jupyter_opens_no_browser_that_takes_the_terminal(monkeypatch, browser, opens):
    config = ROOT / "workshop_lib/notebook/jupyter/jupyter_server_config.py"
    monkeypatch.setattr("webbrowser.get", lambda: webbrowser.GenericBrowser(browser))
    settings = mock.MagicMock()
    settings.ServerApp.open_browser = True
    exec(config.read_text(), {"__file__": str(config), "get_config": lambda: settings})
    assert settings.ServerApp.open_browser == opens
