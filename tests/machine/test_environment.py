"""What is done about variables and files of other programs, without starting ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from needs import needs

from workshop_lib.cli import doctor
from workshop_lib.errors import WorkshopError
from workshop_lib.machine import environment, pinning
from workshop_lib.machine.world import loopback
from workshop_lib.paths import ROOT
from workshop_lib.ranks.launch import processes, scratch, scripts

BASE = {"HOME": "/nonexistent", "KERAS_BACKEND": "tensorflow"}
ON_ONE_HOST = [
    ("GLOO_SOCKET_IFNAME", "ib0", None),
    ("GLOO_DEVICE_TRANSPORT", "IBVERBS", None),
    ("MASTER_ADDR", "198.51.100.7", None),
]
HARMLESS = [
    ("OMP_PROC_BIND", "False"),
    ("KMP_AFFINITY", "disabled"),
    ("TORCH_DISTRIBUTED_DEBUG", "INFO"),
    ("TF_USE_LEGACY_KERAS", "0"),
    ("GLOO_DEVICE_TRANSPORT", "TCP"),
]


@pytest.mark.parametrize(("name", "value", "instead"), ON_ONE_HOST)
def test_what_may_be_right_on_several_hosts_is_left_alone_there(name, value, instead):
    given = BASE | {name: value}
    assert name not in environment.for_ranks(given, one_host=True)
    assert environment.for_ranks(given, one_host=False) == given


@pytest.mark.parametrize(("name", "value"), HARMLESS)
def test_a_harmless_value_stays(name, value):
    assert environment.for_ranks(BASE | {name: value}, one_host=True) == BASE | {name: value}


def test_a_launcher_keeps_the_address_that_it_gave_its_ranks():
    given = BASE | {"MASTER_ADDR": "alpha"}
    assert environment.for_ranks(given, one_host=True, launched=True) == given


def test_an_interface_that_exists_is_used():
    for name in (loopback(), f"ib0,{loopback()}"):
        given = BASE | {"GLOO_SOCKET_IFNAME": name}
        assert environment.for_ranks(given, one_host=True) == given


def test_settings_of_keras_that_change_nothing_are_not_mentioned(tmp_path):
    file = tmp_path / ".keras" / "keras.json"
    file.parent.mkdir()
    given = BASE | {"HOME": str(tmp_path)}
    for text in ("", "[]", json.dumps(environment.KERAS_DEFAULTS), '{"floatx": "float32"}'):
        file.write_text(text)
        assert not environment.keras_notes(given)


def test_a_home_for_whoever_has_none(monkeypatch):
    listed = environment.home()
    assert os.path.isdir(listed)
    cleaned = environment.for_ranks({}, one_host=True)
    assert (cleaned["HOME"], *environment.notes(cleaned)) == (listed, f"HOME was not set: the ranks use {listed}")
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert os.access(environment.home(), os.W_OK)


@needs("root")
def test_folders_that_may_not_be_searched_leave_the_path_of_ranks(tmp_path):
    """Python calls a program forbidden, not missing, if it may be in such a folder."""
    program = """
import os, subprocess
from workshop_lib.machine import environment
os.setuid(4242)
for path in (os.environ["PATH"], environment.for_ranks(os.environ, True)["PATH"]):
    os.environ["PATH"] = path
    try:
        subprocess.run(["a-program-that-is-nowhere"])
    except OSError as error:
        print(type(error).__name__, path)
"""
    path = f"{tmp_path}/bin:{tmp_path}:/usr/bin:/nowhere"  # pytest's folders are closed to other users
    given = os.environ | {"PATH": path}
    ran = subprocess.run([sys.executable, "-c", program], env=given, capture_output=True, text=True, timeout=60)
    expected = [f"PermissionError {path}", "FileNotFoundError /usr/bin:/nowhere"]
    assert ran.stdout.splitlines() == expected, ran.stderr


def test_what_the_user_has_set_for_mpi_is_named():
    assert environment.mpi_suspects({}, BASE) == ""
    ours = {"OMPI_MCA_btl": "self"}
    given = BASE | ours | {"OMPI_MCA_pml": "ucx", "PRTE_MCA_prte_if_include": "ib0"}
    text = environment.mpi_suspects(ours, given)
    assert "OMPI_MCA_pml=ucx, PRTE_MCA_prte_if_include=ib0." in text and "btl" not in text
    assert "unset OMPI_MCA_pml PRTE_MCA_prte_if_include;" in text


def test_the_doctor_names_the_variable_that_keeps_ranks_from_starting(monkeypatch):
    monkeypatch.setenv("OMPI_MCA_pml", "ucx")
    finding = doctor.check_mpi()[-1]
    assert (finding.check, finding.level) == ("two ranks", "wrong")
    assert "OMPI_MCA_pml=ucx" in finding.remedy and "make setup" not in finding.remedy


PINNED = """\
import os, sys
import torch
from workshop_lib.machine import environment
pinned = sorted(os.sched_getaffinity(0))
environment.clean()
print(pinned, sorted(os.sched_getaffinity(0)), len(environment.notes()), sep="|")
"""


@needs("cores")
@pytest.mark.parametrize("deliberate", [False, True], ids=["all cores", "one core, on purpose"])
def test_a_process_gets_back_the_cores_that_it_had(deliberate):
    everything = sorted(os.sched_getaffinity(0))
    cores = everything[-1:] if deliberate else everything
    chosen = ["taskset", "-c", str(cores[0])] if deliberate else []
    given = os.environ | {"OMP_PROC_BIND": "true"}
    command = [*chosen, sys.executable, "-c", PINNED]
    pinned, after, notes = subprocess.check_output(command, text=True, cwd=ROOT, env=given, timeout=60).split("|")
    assert len(json.loads(pinned)) == 1
    assert json.loads(after) == cores
    assert int(notes) == (1 if deliberate else 2)


def test_cores_are_left_alone_without_a_variable_that_pins(monkeypatch):
    monkeypatch.setattr(pinning, "_cores_before_openmp", lambda: pytest.fail("nothing may be changed"))
    for name in environment.PINNING:
        monkeypatch.delenv(name, raising=False)
    assert pinning.give_back_cores(environment.PINNING) == ""
    monkeypatch.setenv("OMP_PROC_BIND", "false")
    assert pinning.give_back_cores(environment.PINNING) == ""


def test_folders_of_the_dead_are_swept_and_no_others(tmp_path, monkeypatch, dead_mark):
    memory = tmp_path / "memory"
    sets = tmp_path / "ranks"
    memory.mkdir(), sets.mkdir()
    monkeypatch.setattr(scratch, "BUILD", tmp_path)
    monkeypatch.setattr(scratch, "temporary_folder", lambda: tmp_path)
    monkeypatch.setattr(scratch, "SHARED_MEMORY", memory)
    elsewhere = dead_mark.replace("@", "@another-host-than-")
    for name, mark in (("dead", dead_mark), ("elsewhere", elsewhere)):
        (sets / name).mkdir()
        (sets / name / "owner").write_text(mark)
    marks = {"workshop-dead": dead_mark, "workshop-living": processes.mark("abc"), "other": dead_mark}
    kept = [sets / "elsewhere"]
    for parent in (tmp_path, memory):
        for name, mark in marks.items():
            (parent / name).mkdir()
            (parent / name / "owner").write_text(mark)
        (parent / "workshop-unmarked").mkdir()
        (parent / "workshop-link").symlink_to(parent / "other")
        kept += [parent / each for each in ("workshop-living", "other", "workshop-unmarked", "workshop-link")]
    scratch.sweep()
    assert all(path.exists() for path in kept)
    for dead in (tmp_path / "workshop-dead", memory / "workshop-dead", sets / "dead"):
        assert not dead.exists()
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    (tmp_path / "workshop-living" / "owner").write_text(dead_mark)
    scratch.sweep()
    assert (tmp_path / "workshop-living").exists(), "another user's"


def test_what_a_command_leaves_in_its_temporary_folder_goes_away_with_it(capfd):
    scripts.run(sys.executable, "-c", "import tempfile; print(tempfile.mkstemp()[1])")
    left = Path(capfd.readouterr().out.splitlines()[-1])
    assert left.parent.name.startswith(scratch.PREFIX) and not left.parent.exists()


def test_gloo_on_several_hosts_names_the_interface_that_is_missing(monkeypatch):
    import torch

    from workshop_lib.machine.world import World
    from workshop_lib.training import rendezvous

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    with pytest.raises(WorkshopError, match=r"GLOO_SOCKET_IFNAME is 'ib0', but .* has no such network interface"):
        rendezvous.join_process_group(World(0, 2, 0, "torchrun", 1), torch.device("cpu"))
