"""The exact command of each launcher, and which one is taken."""

import shlex
import socket
import sys

import pytest
from shell_programs import program

from workshop_lib.ranks.launch import launchers, which_mpi
from workshop_lib.ranks.launch.allocation import Allocation

HOSTS = ("n1", "n2", "n3")
COMMANDS = {
    ("openmpi", "core"): "mpiexec -n 6 --host n1:4,n2:4",
    ("pals", "none"): "mpiexec -n 6 --ppn 4 --depth 2 --cpu-bind none",
    ("pals", "core"): "mpiexec -n 6 --ppn 4 --depth 2 --cpu-bind depth",
    ("srun", "none"): "srun --overlap --export=ALL --kill-on-bad-exit=1 -n 6 --nodes=2 --ntasks-per-node=4 "
    "--nodelist=n1,n2 --cpus-per-task=2 --cpu-bind=none",
    ("srun", "core"): "srun --overlap --export=ALL --kill-on-bad-exit=1 -n 6 --nodes=2 --ntasks-per-node=4 "
    "--nodelist=n1,n2 --cpus-per-task=2 --cpu-bind=cores",
    ("unknown", "none"): "mpiexec -n 6",
}
VERSIONS = {"mpiexec (Open MPI) 5.0.8": "openmpi", "mpiexec (PALS) 1.3.4": "pals", "somebody's 1.0": "unknown"}


@pytest.mark.parametrize(("kind", "bind"), COMMANDS)
def test_the_exact_command(kind, bind):
    words = ["srun" if kind == "srun" else "mpiexec"]
    command = launchers.command(kind, words, n=6, per_node=4, threads=2, bind=bind, hosts=HOSTS)
    assert shlex.join(command) == COMMANDS[kind, bind]


@pytest.mark.parametrize("output", VERSIONS)
def test_whose_mpiexec_it_is(tmp_path, output):
    path = program(tmp_path / "mpiexec", f"cat <<'END'\n{output}\nEND")
    assert launchers.flavor((str(path),)) == VERSIONS[output]


def test_an_mpiexec_that_says_nothing_is_known_by_its_folder(tmp_path):
    assert launchers.flavor((str(program(tmp_path / "pals" / "bin" / "mpiexec", "exit 1")),)) == "pals"


@pytest.fixture
def system_mpi(tmp_path, monkeypatch):
    """A cluster's programs on PATH, and none beside Python."""
    monkeypatch.delenv("WORKSHOP_MPIEXEC", raising=False)
    monkeypatch.delenv("SLURM_MPI_TYPE", raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "bin" / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program(tmp_path / "mpiexec")
    program(tmp_path / "srun", "echo MPI plugin types are... >&2", "printf '\\tnone\\n\\tpmi2\\n\\tpmix\\n' >&2")
    program(tmp_path / "scontrol", "echo 'MpiDefault              = none'")
    which_mpi.srun.cache_clear()
    yield tmp_path
    which_mpi.srun.cache_clear()


@pytest.mark.parametrize(("scheduler", "words"), [("slurm", ["srun", "--mpi=pmix"]), ("pbs", ["{0}/mpiexec"])])
def test_the_schedulers_own_launcher_starts_the_clusters_mpi(system_mpi, scheduler, words):
    assert which_mpi.mpiexec(scheduler) == [word.format(system_mpi) for word in words]


def test_what_the_site_chose_for_srun_is_kept_and_an_mpiexec_beside_python_comes_first(system_mpi, monkeypatch):
    monkeypatch.setenv("SLURM_MPI_TYPE", "pmi2")
    assert which_mpi.mpiexec("slurm") == ["srun"]
    monkeypatch.delenv("SLURM_MPI_TYPE")
    which_mpi.srun.cache_clear()
    program(system_mpi / "scontrol", "echo 'MpiDefault              = cray_shasta'")
    assert which_mpi.mpiexec("slurm") == ["srun"]
    beside = program(system_mpi / "venv/bin/mpiexec")
    assert which_mpi.mpiexec("slurm") == [str(beside)], "the mpiexec beside Python comes before srun"


HERE = socket.gethostname()


@pytest.mark.parametrize(
    ("allocation", "words", "one_host", "elsewhere"),
    [
        (None, "", True, False),
        (Allocation("slurm", "1", (HERE,)), "", True, True),  # attached to from a login node
        (Allocation("pbs", "1", (HERE, "other")), "", False, True),
        (None, "srun --mpi=pmi2 -N 2", False, True),  # a command of one's own, which is taken as it is
    ],
)
def test_who_must_reach_the_controller_and_whether_messages_need_a_network(
    monkeypatch, allocation, words, one_host, elsewhere
):
    for name in which_mpi.ON_ONE_HOST:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORKSHOP_MPIEXEC", words)
    plan = launchers.plan(4, 1, "none", allocation)
    assert (plan.one_host, plan.elsewhere) == (one_host, elsewhere)
    assert (which_mpi.ON_ONE_HOST.items() <= plan.settings.items()) is one_host
    if allocation is None:
        assert plan.command == [*which_mpi.mpiexec(), "-n", "4"]
    monkeypatch.setenv("OMPI_MCA_btl", "self,tcp")
    settings = launchers.plan(4, 1, "none", allocation).settings
    assert "OMPI_MCA_btl" not in settings, "the user's own choice stays"


@pytest.mark.parametrize(
    ("n", "tasks_per_node", "hosts"), [(3, 2, "n1:2,n2:2"), (7, 2, "n1:3,n2:3,n3:3"), (2, None, "n1:1,n2:1")]
)
def test_ranks_fill_one_node_after_the_other(system_mpi, monkeypatch, n, tasks_per_node, hosts):
    monkeypatch.delenv("WORKSHOP_RANKS_PER_NODE", raising=False)
    program(system_mpi / "venv/bin/mpiexec", "echo 'mpiexec (Open MPI) 5.0.8'")
    launchers.flavor.cache_clear()
    plan = launchers.plan(n, 1, "none", Allocation("pbs", "1", HOSTS, tasks_per_node=tasks_per_node))
    assert plan.command[plan.command.index("--host") + 1] == hosts
    assert plan.settings["PRTE_MCA_ras"] == "^pbs,slurm"


def test_open_mpi_takes_along_what_is_set_for_the_network(system_mpi, monkeypatch):
    """A network interface that only the first node's ranks know of is a hang."""
    program(system_mpi / "venv/bin/mpiexec", "echo 'mpiexec (Open MPI) 5.0.8'")
    launchers.flavor.cache_clear()
    own = ("NCCL_SOCKET_IFNAME", "FI_PROVIDER", "UCX_TLS", "WORKSHOP_MNIST")
    for name in own:
        monkeypatch.setenv(name, "x")
    monkeypatch.delenv("WORKSHOP_PROFILE", raising=False)
    words = launchers.plan(2, 1, "none", Allocation("pbs", "1", HOSTS)).command
    named = [name for option, name in zip(words, words[1:], strict=False) if option == "-x"]
    assert {*own} <= {*named} and "WORKSHOP_PROFILE" not in named


def test_ssh_gives_up_soon_on_a_host_that_does_not_answer(system_mpi, monkeypatch):
    monkeypatch.delenv("PRTE_MCA_plm_ssh_agent", raising=False)
    program(system_mpi / "venv/bin/mpiexec", "echo 'mpiexec (Open MPI) 5.0.8'")
    program(system_mpi / "ssh")
    launchers.flavor.cache_clear()
    job = Allocation("pbs", "1", HOSTS)
    assert launchers.plan(2, 1, "none", job).settings.items() >= launchers.SSH.items()
    monkeypatch.setenv("PRTE_MCA_plm_ssh_agent", "mine")
    assert not launchers.SSH.keys() & launchers.plan(2, 1, "none", job).settings.keys(), "the user's own choice stays"


def test_engines_are_told_the_address_that_leads_to_them():
    plan = launchers.plan(1, 1, "none", Allocation("pbs", "1", ("127.0.0.2",)))
    assert plan.engine_options[0] in [f"--IPEngine.location=127.0.0.{n}" for n in (1, 2)]
