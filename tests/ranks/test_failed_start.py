"""What a start of ranks says when it fails, and what of the user's can't make it fail."""

import os
import socket
import sys
import time

import pytest
from ipyparallel import Client
from ipyparallel.util import select_random_ports

from workshop_lib import ranks
from workshop_lib.machine import environment
from workshop_lib.ranks.call import engine
from workshop_lib.ranks.launch import cluster, folders, launchers, scratch, which_mpi
from workshop_lib.ranks.launch.scratch import Scratch

BROKEN = "raise ImportError('a file of the learner')\n"


@pytest.fixture(autouse=True)
def no_other_ranks(nothing_left):
    """None that another file's tests have kept."""
    ranks.stop()
    yield
    ranks.stop()


def test_ranks_start_beside_files_that_hide_modules_and_import_the_learners_own(tmp_path, monkeypatch, capsys):
    """For supervisors, the controller and ranks: Python's modules, and packages that they need or train with."""
    for name in ("random", "token", "logging", "zmq", "mpi4py", "numpy"):
        (tmp_path / f"{name}.py").write_text(BROKEN)
    (tmp_path / "own.py").write_text("answer = 42\n")
    hidden = tmp_path / "another"
    hidden.mkdir()
    for name in ("tempfile", "psutil"):
        (hidden / f"{name}.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(hidden), os.environ.get("PYTHONPATH", "")]))
    team = ranks.start(2)
    said = capsys.readouterr().err
    assert f"your file {tmp_path}/random.py hides Python's own `random`: rename it." in said
    assert f"PYTHONPATH names {hidden}, which hides the package `psutil`, Python's own `tempfile`: unset" in said
    team.run_cell("import numpy, os, own, random\nfound = own.answer, os.getcwd(), numpy.add(1, random.choice([2]))")
    recorded = team.run(environment.notes)[0]
    assert f"your file {tmp_path}/random.py hides Python's own `random`: left aside" in recorded
    assert team.pull("found") == [(42, str(tmp_path), 3)] * 2


def test_the_controllers_own_error_is_said(monkeypatch):
    program = "raise OSError(28, 'No space left on device')"
    monkeypatch.setattr(cluster, "CONTROLLER", [sys.executable, "-c", program])
    with pytest.raises(ranks.RankError) as error:
        ranks.start(1)
    ended = "The ranks did not start: the controller ended with exit code 1."
    assert str(error.value) == f"{ended}\nOSError: [Errno 28] No space left on device"


def test_a_controller_whose_port_another_program_has_taken_is_started_three_times(monkeypatch, tmp_path):
    program = f"""
import os
os.mkdir({str(tmp_path)!r} + "/" + str(len(os.listdir({str(tmp_path)!r}))))
raise OSError(98, "Address already in use (addr='tcp://127.0.0.1:40000')")
"""
    monkeypatch.setattr(cluster, "CONTROLLER", [sys.executable, "-P", "-c", program])
    with pytest.raises(ranks.RankError, match="did not start(.|\n)*Address already in use"):
        ranks.start(1)
    assert len(os.listdir(tmp_path)) == cluster.START_TRIES


def test_a_controller_that_lost_one_port_is_replaced_at_once(monkeypatch):
    """A process of the controller's ends without its port, and the others go on as if nothing had happened."""
    began = []

    def start_once(team, original=cluster.Ranks._start_once):
        began.append(team)
        with socket.socket() as busy, monkeypatch.context() as patch:
            busy.bind(("127.0.0.1", 0))
            busy.listen()
            ports = select_random_ports(20)
            ports[5] = busy.getsockname()[1]  # for heartbeats
            if len(began) == 1:
                patch.setattr(cluster, "CONTROLLER", [*cluster.CONTROLLER, f"--ports={','.join(map(str, ports))}"])
            original(team)

    monkeypatch.setattr(cluster.Ranks, "_start_once", start_once)
    monkeypatch.setattr(cluster, "ABOUT_LIMIT_S", 1000.0)  # only the port's loss ends the first start
    monkeypatch.setattr(cluster, "START_LIMIT_S", 1000.0)
    assert ranks.start(1).run(max, 1, 2, show=False) == [2]
    assert len(began) == 2


def test_ranks_that_cannot_be_spawned_leave_no_folder(monkeypatch, tmp_path):
    made = []
    monkeypatch.setattr(scratch, "Scratch", lambda *args, **given: made.append(Scratch(*args, **given)) or made[0])
    monkeypatch.setattr(folders, "BUILD", tmp_path)
    monkeypatch.setattr(cluster, "CONTROLLER", ["\0"])  # no process can be made of it
    with pytest.raises(ranks.RankError, match="a process could not be made: ValueError: .*null"):
        ranks.start(1)
    left = [folder for folder in made[0].folders if folder.exists()]
    assert (left, list(tmp_path.rglob("security"))) == ([], [])


def test_what_a_rank_raises_before_it_is_ready_is_said(monkeypatch):
    main = "import sys; sys.stderr.write('a warning\\n'); import not_there"
    monkeypatch.setattr(cluster, "ENGINE", [sys.executable, "-P", "-c", main])
    with pytest.raises(ranks.RankError, match="ModuleNotFoundError: No module named 'not_there'$"):
        ranks.start(1)


def test_an_interrupt_at_the_end_of_the_start_is_one(monkeypatch):
    """When the ranks are asked who they are, they are nearly ready: a rank sends the interrupt just then."""
    owner = os.getpid()

    def interrupt():
        import os
        import signal
        import time

        if "interrupted" not in vars(os):  # a start that takes long asks again
            os.interrupted = True
            os.kill(owner, signal.SIGINT)
        time.sleep(30)

    interrupt.__module__ = "__main__"  # ranks don't have this module
    monkeypatch.setattr(engine, "about", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ranks.start(1)


def framed(text):
    return f"{'-' * 74}\n{text}\n{'-' * 74}\n \0"


NO_SLOTS = """\
There are not enough slots available in the system to satisfy the 2
slots that were requested by the application:

  python

Either request fewer procs for your application, or make more slots
available for use."""
ENDED = "prterun detected that one or more processes exited with non-zero status."
LOGGED = "2026-11-28 09:46:48.103 [IPEngine] "
LINES = [f"line {number}" for number in range(20)]


@pytest.mark.parametrize(
    ("output", "wrong"),
    [
        ("\n".join(LINES), "\n".join(LINES[-12:])),
        (
            framed("Warning: Could not find X") + framed(NO_SLOTS) + framed(ENDED),
            "There are not enough slots available in the system to satisfy the 2 slots that were requested by the "
            "application: python",
        ),
        (f"{LOGGED}WARNING | no file\n*** An error in MPI_Init\n{LOGGED}Changing folder\n", "*** An error in MPI_Init"),
        (f"{LOGGED}WARNING | no file\n{LOGGED}CRITICAL | too late", f"{LOGGED}CRITICAL | too late"),
    ],
)
def test_what_is_wrong_is_found_in_a_program_s_output(output, wrong):
    assert which_mpi.what_failed(output) == wrong


def test_the_first_sentence_of_open_mpi_s_message_is_said_at_once_with_the_variable_at_fault(monkeypatch):
    """Open MPI itself would wait for a minute here."""
    monkeypatch.setenv("OMPI_MCA_btl", "nothing")
    begun = time.monotonic()
    with pytest.raises(ranks.RankError) as error:
        ranks.start(2)
    assert time.monotonic() - begun < 30
    first, message, *rest = str(error.value).splitlines()
    assert first.startswith("The ranks did not start: rank ")
    if "openmpi" in launchers.flavor(tuple(which_mpi.mpiexec())):
        # Open MPI itself sometimes ends before it has passed on its message; then only the ranks' own lines are there.
        lost = message.startswith("*** ")
        assert lost or message.startswith("A requested component was not found, or was unable to be opened.")
    assert "OMPI_MCA_btl=nothing" in "\n".join(rest)


def test_a_notice_that_the_client_missed_is_asked_for_again(monkeypatch):
    class Deaf(Client):
        ids = []

    connect = folders.connect
    deaf = []

    def connect_deaf_first(folder, limit_s, made=()):
        client = connect(folder, limit_s, made)
        if not deaf:
            client.__class__ = Deaf
            deaf.append(client)
        return client

    monkeypatch.setattr(folders, "connect", connect_deaf_first)
    team = ranks.start(1)
    assert team.client is not deaf[0]
    assert team.run(max, 1, 2) == [2]
