"""The doctor finds what is there and what is broken, fast."""

import json
import math
import subprocess
import sys
import time

import pytest
from shell_programs import program

from workshop_lib.cli import doctor
from workshop_lib.findings import Finding
from workshop_lib.machine import cgroups, cores, installation
from workshop_lib.paths import ROOT
from workshop_lib.ranks.launch import which_mpi


def test_everything_is_well_here_and_found_in_five_seconds():
    started = time.monotonic()
    command = [sys.executable, "-m", "workshop_lib", "doctor", "--json"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    took_s = time.monotonic() - started
    findings = {finding["check"]: finding for finding in json.loads(ran.stdout)}
    assert ran.returncode == 0, ran.stdout
    assert not [finding for finding in findings.values() if finding["level"] == "wrong"]
    assert "one world of size 2" in findings["two ranks"]["seen"]
    assert "60,000 + 10,000" in findings["MNIST"]["seen"]
    looked_at = {"Python", "mpiexec", "MPI settings", "cores", "memory", "disk", "GPUs", "torch"}
    looked_at |= {"other programs"}
    assert looked_at <= set(findings)
    assert took_s < 5, f"doctor took {took_s:.1f} s"


def test_what_needs_attention_stands_above_its_remedy_and_only_what_is_wrong_fails(monkeypatch, capsys):
    findings = [Finding("ok", "cores", "2 of 2"), Finding("look", "memory", "1 GB", remedy="close something")]
    monkeypatch.setattr(doctor, "examine", lambda: findings)
    assert doctor.main() == 0, "what is worth a look is no failure"
    said = " ".join(capsys.readouterr().out.split())
    assert said == "look memory: 1 GB → close something ok cores: 2 of 2 0 wrong, 1 to look at, 1 ok"
    findings.append(Finding("wrong", "mpiexec", "none", remedy="install one"))
    assert doctor.main() == 1


def test_mpiexec_of_another_mpi_fails_with_a_remedy(tmp_path, monkeypatch):
    """It starts the processes as strangers."""
    mpiexec = program(tmp_path / "mpiexec", '[ "$1" = --version ] && exit 0', "shift 2", '"$@"; "$@"')
    monkeypatch.setenv("WORKSHOP_MPIEXEC", str(mpiexec))
    finding = doctor.check_mpi()[-1]
    assert (finding.check, finding.level) == ("two ranks", "wrong")
    assert "two worlds of size 1" in finding.seen and "MPI=system" in finding.remedy


def test_ranks_that_hang_are_ended_with_their_mpiexec(tmp_path, monkeypatch, nothing_left):
    monkeypatch.setattr(doctor, "COMMAND_LIMIT_S", 0.5)
    finding = doctor.check_two_ranks([str(program(tmp_path / "mpiexec", "setsid sleep 61 &", "sleep 61"))])
    assert finding.level == "wrong" and "timed out" in finding.seen


def test_no_mpiexec_fails_with_a_remedy(monkeypatch):
    monkeypatch.setenv("WORKSHOP_MPIEXEC", "/nonexistent/mpiexec")
    assert doctor.check_mpi()[-1].level == "wrong" and doctor.check_mpi()[-1].remedy
    monkeypatch.setattr(which_mpi, "mpiexec", lambda: (_ for _ in ()).throw(which_mpi.MPINotFound("install one")))
    assert doctor.check_mpi() == [Finding("wrong", "mpiexec", "none", remedy="install one")]


@pytest.fixture
def cgroup(tmp_path, monkeypatch):
    """Makes the folder of this process's cgroup /job/step, of version 1 or 2, in place of the machine's."""

    def make(version, controller="memory"):
        folder = tmp_path / "cgroup" / (controller if version == 1 else "") / "job" / "step"
        folder.mkdir(parents=True)
        line = f"3:other,{controller}:/job/step\n" if version == 1 else "0::/job/step\n"
        (tmp_path / "own").write_text(f"5:freezer:/elsewhere\n{line}")
        return folder

    monkeypatch.setattr(cgroups, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cgroups, "OWN_CGROUPS", tmp_path / "own")
    return make


@pytest.mark.parametrize("limited", ["step", "job", "all"])
@pytest.mark.parametrize("version", [2, 1])
def test_memory_of_a_cgroup_or_of_one_above_it(cgroup, version, limited):
    """Files as the two versions write them: 8 GB allowed, 6 GB used, of which 1 GB is cache."""
    step = cgroup(version)
    folder = {"step": step, "job": step.parent, "all": step.parent.parent}[limited]
    limit, used, cache = {
        2: ("memory.max", "memory.current", "inactive_file"),
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    }[version]
    (folder / limit).write_text("8000000000\n")
    (folder / used).write_text("6000000000\n")
    (folder / "memory.stat").write_text(f"anon 5000000000\n{cache} 1000000000\n")
    assert cgroups.available_bytes() == 3e9


@pytest.mark.parametrize(("version", "file"), [(2, "memory.events"), (1, "memory.oom_control")])
def test_processes_killed_because_memory_ran_out_are_counted_in_their_own_cgroup(cgroup, version, file):
    """Or in the nearest one that can be read: a container may see only the top of the host's path."""
    step = cgroup(version)
    assert cgroups.killed_for_memory() == 0
    (step.parent.parent / file).write_text("oom 9\noom_kill 7\n")
    assert cgroups.killed_for_memory() == 7
    (step / file).write_text("oom 2\noom_kill 1\n")
    assert cgroups.killed_for_memory() == 1
    limit = {2: "memory.max", 1: "memory.limit_in_bytes"}[version]
    (step / limit).write_text("700000000\n")
    assert cgroups.memory_bytes() == 7e8


def test_processes_and_threads_of_a_cgroup(cgroup):
    step = cgroup(2, "pids")
    (step / "pids.max").write_text("max\n")
    (step.parent / "pids.max").write_text("60\n")
    (step.parent / "pids.current").write_text("12\n")
    finding = doctor.check_limits()
    assert finding.level == "wrong" and "60 are allowed here and 12 in use" in finding.seen
    assert "--pids-limit" in finding.remedy


def test_memory_without_a_limit(cgroup):
    assert cgroups.available_bytes() == math.inf
    folder = cgroup(2)
    assert cgroups.available_bytes() == math.inf
    (folder / "memory.max").write_text("max\n")
    (folder / "memory.current").write_text("6000000000\n")
    assert cgroups.available_bytes() == math.inf


CPU_FILES = {2: [("cpu.max", "max 100000")], 1: [("cpu.cfs_quota_us", "-1"), ("cpu.cfs_period_us", "100000")]}
CPU_LIMITS = {2: [("cpu.max", "250000 100000")], 1: [("cpu.cfs_quota_us", "50000"), ("cpu.cfs_period_us", "100000")]}


@pytest.mark.parametrize(("version", "cores_left"), [(2, 3), (1, 1)])
def test_cores_of_a_cgroup_or_of_one_above_it(cgroup, monkeypatch, version, cores_left):
    monkeypatch.setattr(cores, "affinity", lambda: set(range(8)))
    step = cgroup(version, "cpu")
    for name, text in CPU_FILES[version]:
        (step / name).write_text(f"{text}\n")
    assert cores.usable_cores() == 8
    for name, text in CPU_LIMITS[version]:
        (step.parent / name).write_text(f"{text}\n")
    assert cores.usable_cores() == cores_left


def test_a_missing_extra_says_what_became_of_it(monkeypatch):
    """And the rest of the workshop doesn't fail for it."""
    monkeypatch.setattr(doctor, "_version", lambda package: None)
    reason = "Horovod could not be installed: no compiler. Notebooks 03 and 04 need it; `make extras` tries again."
    monkeypatch.setattr(installation, "why_missing", lambda extra: reason if extra == "horovod" else "")
    found = {finding.check: finding for finding in doctor.check_packages()}
    assert (found["horovod"].level, found["horovod"].remedy) == ("look", reason)
    assert (found["deepspeed"].level, found["deepspeed"].remedy) == ("look", "Notebook 06b needs it: run `make setup`")
    assert found["torch"].level == "wrong"


def test_another_python_is_told_which_ones_work(monkeypatch):
    monkeypatch.setattr(doctor.sys, "version_info", (3, 14, 0))
    finding = doctor.check_python()
    assert finding.level == "wrong" and "3.11, 3.12 or 3.13" in finding.remedy
