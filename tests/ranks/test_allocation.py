"""The nodes of a job, from what each scheduler leaves for it, and what the notebooks' profiles make of them."""

import socket
import threading
import time

import pytest
from shell_programs import program

from workshop_lib import ranks
from workshop_lib.cli import doctor
from workshop_lib.notebook import profile
from workshop_lib.ranks import RankError, allocation, cluster
from workshop_lib.ranks.allocation import Allocation

SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "nid[001-002]", "SLURM_CPUS_ON_NODE": "64"}


def test_the_short_form_of_node_names():
    names = ["nid001", "nid002", "nid003", "nid007", "x1", "b-2.site.org"]
    assert allocation.expand("nid[001-003,007],x1,b-2.site.org") == names


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
        ({"SLURM_TASKS_PER_NODE": "64(x2)"}, 1, 2),  # cores: nobody asked for tasks
        ({"SLURM_NTASKS_PER_NODE": "4"}, 4, 8),
        ({"SLURM_NTASKS": "8", "SLURM_TASKS_PER_NODE": "4(x2)"}, 4, 8),
        ({"SLURM_NTASKS": "5", "SLURM_TASKS_PER_NODE": "3,2"}, 3, 5),
        ({"SLURM_NTASKS": "5", "SLURM_TASKS_PER_NODE": "1"}, 3, 6),  # that of a step inside
        ({"SLURM_NTASKS_PER_NODE": "1", "SLURM_GPUS_ON_NODE": "4"}, 4, 8),
        ({"SLURM_GPUS_PER_NODE": "a100:4", "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "1(x2)"}, 4, 8),
        ({"SLURM_JOB_GPUS": "0,1"}, 2, 4),
        ({"SLURM_GPUS_ON_NODE": "4", "WORKSHOP_RANKS_PER_NODE": "2"}, 2, 4),
    ],
)
def test_ranks_that_fill_nodes_of_slurm(settings, per_node, ranks):
    environ = SLURM | settings
    found = allocation.find(environ)
    assert found.hosts == ("nid001", "nid002") and found.cores_per_node == 64
    assert (found.ranks_per_node(environ), found.ranks(environ)) == (per_node, ranks)


def test_pbs_has_a_line_for_each_process_and_slurm_cores_for_each_task(tmp_path):
    nodes = node_file(tmp_path, "x1.site.org\nx1.site.org\nx2.site.org\nx2.site.org\n")
    environ = {"PBS_JOBID": "12.server", "PBS_NODEFILE": nodes, "NCPUS": "64"}
    found = allocation.find(environ)
    assert (found.scheduler, found.job_id, found.hosts) == ("pbs", "12.server", ("x1.site.org", "x2.site.org"))
    assert (found.ranks(environ), found.cores_per_node) == (4, 64)
    assert allocation.find(SLURM | {"SLURM_CPUS_PER_TASK": "8"}).cores_per_task == 8


def test_the_gpus_of_a_whole_node_are_those_seen_here(tmp_path):
    nodes = node_file(tmp_path, f"{socket.gethostname()}\nother\n")
    environ = {"PBS_JOBID": "1", "PBS_NODEFILE": nodes, "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert allocation.find(environ).ranks(environ) == 8
    environ["PBS_NODEFILE"] = node_file(tmp_path, "elsewhere\nother\n")
    assert allocation.find(environ).ranks(environ) == 2, "of other hosts nothing is known"


def card(folder, number, tiles, vendor="0x8086", kind="0x038000"):
    """What Linux's driver i915 shows of a GPU."""
    device = folder / f"card{number}" / "device"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")
    for tile in range(tiles):
        (folder / f"card{number}" / "gt" / f"gt{tile}").mkdir(parents=True)


def test_each_tile_of_intels_gpus_gets_a_rank(tmp_path, monkeypatch):
    monkeypatch.setattr(allocation, "DRM", tmp_path / "drm")
    card(tmp_path / "drm", 0, 1, vendor="0x1a03", kind="0x030000")  # the service processor's
    for number in range(1, 7):
        card(tmp_path / "drm", number, 2)
    nodes = node_file(tmp_path, f"{socket.gethostname()}\nother\n")  # Aurora's file has one line per node
    environ = {"PBS_JOBID": "1", "PBS_NODEFILE": nodes}
    assert allocation.find(environ).ranks(environ) == 24
    environ["ZE_FLAT_DEVICE_HIERARCHY"] = "COMPOSITE"
    assert allocation.find(environ).ranks(environ) == 12
    environ["ZE_AFFINITY_MASK"] = "0,1,2"
    assert allocation.find(environ).ranks(environ) == 6


def test_graphics_inside_a_processor_is_no_gpu_to_train_on(tmp_path, monkeypatch):
    monkeypatch.setattr(allocation, "DRM", tmp_path)
    card(tmp_path, 0, 2, kind="0x030000")
    assert allocation.intel_gpus({}) == 0


def test_cobalt_has_a_node_file_or_numbers_of_nodes(tmp_path):
    job = {"COBALT_JOBID": "5"}
    hosts = node_file(tmp_path, "thetagpu01\nthetagpu02\n")
    assert allocation.find(job | {"COBALT_NODEFILE": hosts}).hosts == ("thetagpu01", "thetagpu02")
    cray = job | {"COBALT_PARTNAME": "8-9,120", "COBALT_JOBSIZE": "3"}
    assert allocation.find(cray).hosts == ("nid00008", "nid00009", "nid00120")
    assert allocation.find(cray | {"COBALT_JOBSIZE": "2"}).hosts == ("nid00008", "nid00009")


def test_a_host_file_comes_first(tmp_path):
    text = "# two machines\nalpha slots=2\n\nbeta:3 # the larger\nalpha\n"
    environ = SLURM | {"WORKSHOP_HOSTFILE": node_file(tmp_path, text)}
    found = allocation.find(environ)
    assert (found.scheduler, found.job_id, found.hosts) == ("host file", None, ("alpha", "beta"))
    assert found.ranks(environ) == 6


JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "nid[1-2]"}


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-x]"}, "node list"),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[]"}, "node list"),
        ({"SLURM_JOB_ID": "7"}, "SLURM_JOB_NODELIST is not"),
        ({"PBS_JOBID": "1"}, "PBS_NODEFILE is not"),
        (
            JOB | {"SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "two"},
            "^SLURM_TASKS_PER_NODE is 'two', but Slurm writes",
        ),
        (JOB | {"SLURM_NTASKS": "many"}, "^SLURM_NTASKS is 'many'; it must be a whole number"),
        (JOB | {"WORKSHOP_RANKS_PER_NODE": "0"}, "WORKSHOP_RANKS_PER_NODE is '0'"),
        (JOB | {"WORKSHOP_RANKS_PER_NODE": "two"}, "WORKSHOP_RANKS_PER_NODE is 'two'"),
    ],
)
def test_what_cannot_be_read_is_named(environ, message):
    with pytest.raises(RankError, match=message):
        allocation.find(environ).ranks(environ)


@pytest.mark.parametrize(
    ("job", "variable"),
    [({}, "WORKSHOP_HOSTFILE"), ({"PBS_JOBID": "1"}, "PBS_NODEFILE"), ({"COBALT_JOBID": "1"}, "COBALT_NODEFILE")],
)
def test_a_node_file_that_is_missing_or_empty_is_named(tmp_path, job, variable):
    reason = r"cannot be read \(No such file or directory\)"
    for file, complaint in (("/nonexistent", reason), (node_file(tmp_path, "\n# nobody\n"), "is empty")):
        with pytest.raises(RankError, match=f"^{variable} names the node file {file}, which {complaint}"):
            allocation.find(job | {variable: file})


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """This machine with these programs of schedulers alone, and with no name but its own."""

    def nobody(host, port):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("WORKSHOP_MPIEXEC", "WORKSHOP_HOSTFILE", "SLURM_WORKING_CLUSTER", "SLURM_JOBID", "SLURM_NODELIST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(allocation.shutil, "which", lambda name: (tmp_path / name).exists())
    return tmp_path


DEAD = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "nid001"}


def test_the_variables_of_a_dead_job_are_named_before_anything_starts(machine, monkeypatch):
    monkeypatch.setattr(cluster.CURRENT, "team", None)  # healthy ranks of an earlier test would be kept
    for name, value in DEAD.items():
        monkeypatch.setenv(name, value)
    sentence = (
        "^The environment describes job 7 on nid001 .SLURM_JOB_ID, SLURM_JOB_NODELIST., but no host named nid001 can "
        "be found from here. If that's left over, unset SLURM_JOB_ID SLURM_JOB_NODELIST and start again"
    )
    with pytest.raises(RankError, match=sentence):
        ranks.start(2)
    (finding,) = doctor.check_allocation()
    assert finding.level == "wrong" and "unset SLURM_JOB_ID SLURM_JOB_NODELIST" in finding.remedy


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("slurm_load_jobs error: Invalid job id specified", "doesn't know it any more"),
        ("JobId=7 JobName=a\n   JobState=COMPLETED Reason=None", "says that it is COMPLETED"),
        ("JobId=7 JobState=RUNNING", None),
        ("JobId=8 ArrayJobId=7 JobState=COMPLETED\nJobId=7 ArrayJobId=7 JobState=RUNNING", None),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", None),
    ],
)
def test_slurm_says_whether_a_job_is_still_there(machine, answer, why):
    program(machine / "scontrol", f"printf '%b\\n' '{answer}'")
    if why is None:
        assert allocation.find_living(DEAD) == allocation.find(DEAD), "its names are known to srun alone"
    else:
        with pytest.raises(RankError, match=f"but `scontrol` {why}"):
            allocation.find_living(DEAD)


def test_pbs_is_asked_as_well(machine):
    job = {"PBS_JOBID": "12.server", "PBS_NODEFILE": node_file(machine, "nid001\n")}
    program(
        machine / "qstat", 'echo "qstat: $1 Job has finished, use -x to obtain historical job information" >&2; exit 35'
    )
    with pytest.raises(RankError, match="describes job 12.server on nid001 .PBS_JOBID, PBS_NODEFILE., but `qstat`"):
        allocation.find_living(job)


@pytest.mark.parametrize(
    "environment",
    [
        DEAD
        | {"SLURM_JOB_NODELIST": f"{socket.gethostname()},nid001"},  # such as in a container without Slurm's programs
        {"COBALT_JOBID": "5", "COBALT_PARTNAME": "8-9"},
        {},
    ],
)
def test_a_job_that_may_be_there_is_never_refused(machine, environment):
    assert allocation.find_living(environment) == allocation.find(environment)


def test_a_resolver_that_does_not_answer_refuses_nothing(machine, monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(allocation, "NAMES_LIMIT_S", 0.1)
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port: never.wait(60))
    started = time.monotonic()
    assert allocation.find_living(DEAD).hosts == ("nid001",)
    assert time.monotonic() - started < 5
    never.set()


def test_ranks_that_did_not_start_elsewhere_are_told_where_their_hosts_come_from():
    job = Allocation("slurm", "7", ("nid001",))
    assert allocation.hint(job, DEAD).startswith(
        "\nThe environment describes job 7 on nid001 (SLURM_JOB_ID, SLURM_JOB_NODELIST). If that"
    )
    assert allocation.hint(Allocation("slurm", "7", (socket.gethostname(),)), DEAD) == allocation.hint(None) == ""


def test_notebooks_fill_the_allocation_with_the_cluster_profile(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKSHOP_HOSTFILE", node_file(tmp_path, "a slots=3\nb slots=3"))
    monkeypatch.setenv(profile.VARIABLE, "cluster")
    assert (profile.current().ranks, profile.current().sweep_ranks) == (6, [1, 2, 4, 6])
    monkeypatch.setenv(profile.VARIABLE, "quick")
    assert profile.current().ranks == 2


@pytest.mark.parametrize(
    ("lines", "name", "here"),
    [
        ("a slots=4\nb slots=4", "cluster", 4),
        ("a slots=3\nb slots=2", "cluster", 3),
        ("a", "quick", 2),  # ranks.start(2) puts both on this node, too
        ("a\nb", "quick", 1),
    ],
)
def test_what_starts_on_this_host_only_gets_this_hosts_ranks(tmp_path, monkeypatch, lines, name, here):
    monkeypatch.setenv("WORKSHOP_HOSTFILE", node_file(tmp_path, lines))
    monkeypatch.delenv(allocation.RANKS_PER_NODE, raising=False)
    monkeypatch.setenv(profile.VARIABLE, name)
    assert profile.current().ranks_here == here


def test_on_a_machine_of_ones_own_all_ranks_are_here():
    assert all(sizes.ranks_here == sizes.ranks for sizes in profile.PROFILES.values())


def test_the_profile_is_laptop_if_none_is_chosen_and_an_unknown_one_is_named(monkeypatch):
    monkeypatch.delenv(profile.VARIABLE, raising=False)
    assert profile.current().name == "laptop"
    monkeypatch.setenv(profile.VARIABLE, "huge")
    with pytest.raises(ValueError, match="WORKSHOP_PROFILE='huge' .* quick, laptop, cluster"):
        profile.current()
