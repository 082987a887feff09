"""The nodes of a job, from what each scheduler leaves for it, and what the notebooks' profiles make of them."""

import socket

import pytest

from workshop_lib import ranks
from workshop_lib.notebook import profile
from workshop_lib.ranks import RankError
from workshop_lib.ranks.launch import allocation, cluster
from workshop_lib.ranks.launch.allocation import Allocation

SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "nid[001-002]"}


def node_file(folder, text, name="nodes"):
    path = folder / name
    path.write_text(text)
    return str(path)


def test_a_machine_of_ones_own_has_none():
    assert allocation.find({"HOME": "/root", "SLURM_CONF": "/etc/slurm.conf"}) is None


@pytest.mark.parametrize(
    ("settings", "per_node", "ranks"),
    [
        ({}, 1, 2),
        ({"SLURM_NTASKS_PER_NODE": "4"}, 4, 8),
        ({"SLURM_NTASKS": "5"}, 3, 5),
        ({"SLURM_NTASKS": "1"}, 1, 2),  # the number of a step inside the job
        ({"SLURM_NTASKS_PER_NODE": "1", "SLURM_GPUS_ON_NODE": "4"}, 4, 8),
        ({"SLURM_GPUS_PER_NODE": "a100:4", "SLURM_NTASKS": "2"}, 4, 8),
        ({"SLURM_GPUS_ON_NODE": "4", "WORKSHOP_RANKS_PER_NODE": "2"}, 2, 4),
    ],
)
def test_ranks_that_fill_nodes_of_slurm(settings, per_node, ranks):
    environ = SLURM | settings
    found = allocation.find(environ)
    assert found.hosts == ("nid001", "nid002")
    assert (found.ranks_per_node(environ), found.ranks(environ)) == (per_node, ranks)


def test_pbs_has_a_line_for_each_process_and_slurm_cores_for_each_task(tmp_path):
    nodes = node_file(tmp_path, "x1.site.org\nx1.site.org\nx2.site.org\nx2.site.org\n")
    environ = {"PBS_JOBID": "12.server", "PBS_NODEFILE": nodes}
    found = allocation.find(environ)
    assert (found.scheduler, found.job_id, found.hosts) == ("pbs", "12.server", ("x1.site.org", "x2.site.org"))
    assert found.ranks(environ) == 4
    assert allocation.find(SLURM | {"SLURM_CPUS_PER_TASK": "8"}).cores_per_task == 8


def test_the_gpus_of_a_whole_node_are_those_seen_here(tmp_path):
    nodes = node_file(tmp_path, f"{socket.gethostname()}\nother\n")
    environ = {"PBS_JOBID": "1", "PBS_NODEFILE": nodes, "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert allocation.find(environ).ranks(environ) == 8
    environ["PBS_NODEFILE"] = node_file(tmp_path, "elsewhere\nother\n")
    assert allocation.find(environ).ranks(environ) == 2, "of other hosts nothing is known"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-x]"}, "node list"),
        ({"SLURM_JOB_ID": "7"}, "SLURM_JOB_NODELIST is not"),
        ({"PBS_JOBID": "1"}, "PBS_NODEFILE is not"),
        (SLURM | {"SLURM_NTASKS": "many"}, "^SLURM_NTASKS is 'many'; it must be a whole number"),
        (SLURM | {"WORKSHOP_RANKS_PER_NODE": "0"}, "WORKSHOP_RANKS_PER_NODE is '0'"),
    ],
)
def test_what_cannot_be_read_is_named(environ, message):
    with pytest.raises(RankError, match=message):
        allocation.find(environ).ranks(environ)


def test_a_node_file_that_is_missing_or_empty_is_named(tmp_path):
    reason = r"cannot be read \(No such file or directory\)"
    for file, complaint in (("/nonexistent", reason), (node_file(tmp_path, "\n"), "is empty")):
        with pytest.raises(RankError, match=f"^PBS_NODEFILE names the node file {file}, which {complaint}"):
            allocation.find({"PBS_JOBID": "1", "PBS_NODEFILE": file})


@pytest.mark.full
def test_the_variables_of_a_job_that_is_over_are_named(monkeypatch):
    """Its hosts are only known to be out of reach once ranks don't start there."""
    monkeypatch.setattr(cluster.CURRENT, "team", None)  # healthy ranks of an earlier test would be kept
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "nid001")
    sentence = (
        r"The environment describes job 7 on nid001 \(SLURM_JOB_ID, SLURM_JOB_NODELIST\). "
        "If that's left over, unset SLURM_JOB_ID SLURM_JOB_NODELIST and start again"
    )
    with pytest.raises(RankError, match=sentence):
        ranks.start(2)
    assert allocation.hint(Allocation("slurm", "7", (socket.gethostname(),))) == allocation.hint(None) == ""


def test_notebooks_fill_the_allocation_with_the_cluster_profile(tmp_path, monkeypatch):
    monkeypatch.setenv("PBS_JOBID", "1")
    monkeypatch.setenv("PBS_NODEFILE", node_file(tmp_path, "a\n" * 3 + "b\n" * 3))
    monkeypatch.setenv(profile.VARIABLE, "cluster")
    assert (profile.current().ranks, profile.current().sweep_ranks) == (6, [1, 2, 4, 6])
    monkeypatch.setenv(profile.VARIABLE, "quick")
    assert profile.current().ranks == 2


@pytest.mark.parametrize(
    ("lines", "name", "here"),
    [
        ("a\n" * 3 + "b\n" * 2, "cluster", 3),
        ("a", "quick", 2),  # ranks.start(2) puts both on this node, too
        ("a\nb", "quick", 1),
    ],
)
def test_what_starts_on_this_host_only_gets_this_hosts_ranks(tmp_path, monkeypatch, lines, name, here):
    monkeypatch.setenv("PBS_JOBID", "1")
    monkeypatch.setenv("PBS_NODEFILE", node_file(tmp_path, lines))
    monkeypatch.delenv(allocation.RANKS_PER_NODE, raising=False)
    monkeypatch.setenv(profile.VARIABLE, name)
    assert profile.current().ranks_here == here


def test_the_profile_is_laptop_if_none_is_chosen_and_an_unknown_one_is_named(monkeypatch):
    monkeypatch.delenv(profile.VARIABLE, raising=False)
    assert profile.current().name == "laptop"
    monkeypatch.setenv(profile.VARIABLE, "huge")
    with pytest.raises(ValueError, match="WORKSHOP_PROFILE='huge' .* quick, laptop, cluster"):
        profile.current()
