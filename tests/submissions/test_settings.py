"""What the scripts give to the machine's launcher: its words and its environment, with nothing in the ranks' place."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys

import pytest
from shell_programs import program

from workshop_lib.paths import BUILD, ROOT
from workshop_lib.ranks import launchers

DUMP = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]), file=open({file!r}, 'a'))"
PER_NODE = {"polaris": 4, "aurora": 12, "sophia": 8, "perlmutter": 4, "slurm": 4}
LAUNCHERS = ("mpiexec", "mpirun", "srun")


class Launched:
    """A script's run. launches: words and environment of each start of ranks; output; mode: the output file's."""

    def __init__(self, machine, script, folder, nodes=2, fails_on="", python="", **settings):
        job = f"launched-{os.getpid()}"
        log = folder / "launches"
        output = folder / "output"
        for name in LAUNCHERS:
            dump = DUMP.format(file=str(log))
            fail = f'case " $* " in *" -n {fails_on} "*) exit 1 ;; esac' if fails_on else ""
            program(folder / "bin" / name, f'{sys.executable} -c "{dump}" "$@"\n{fail}')
        log.unlink(missing_ok=True)
        fake_python = program(folder / "venv" / "python", python)
        (folder / "nodes").write_text("".join(f"node{n}\n" for n in range(nodes)))
        environment = {
            "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
            "HOME": str(folder),
            "BASH_FUNC_module%%": "() { :; }",  # the modules are there, and set nothing
            "PBS_JOBID": job,
            "PBS_NODEFILE": str(folder / "nodes"),
            "PBS_O_WORKDIR": str(ROOT),
            "SLURM_JOB_ID": job,
            "SLURM_JOB_NUM_NODES": str(nodes),
            "SLURM_NTASKS_PER_NODE": str(PER_NODE[machine]),
            "WORKSHOP_PYTHON": str(fake_python),
            "WORKSHOP_JOB_BACKENDS": "ddp",
            "WORKSHOP_NCCL_PLUGIN": str(folder),
        }
        (folder / "libnccl-net.so").touch()
        self.out = BUILD / f"{machine}-{job}"
        with output.open("w") as file:
            command = ["bash", f"submissions/{machine}/{script}"]
            self.returncode = subprocess.run(
                command, cwd=ROOT, env=environment | settings, stdout=file, stderr=file, timeout=60
            ).returncode
        if self.out.is_dir():
            self.out.rmdir()
        self.output, self.mode = output.read_text(), output.stat().st_mode & 0o777
        self.launches = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    @property
    def words(self) -> list[str]:
        return [" ".join(words) for words, _ in self.launches]

    def variable(self, name: str) -> list[str | None]:
        """Its value at each start."""
        return [environment.get(name) for _, environment in self.launches]


NETWORK = {
    "NCCL_NET": "AWS Libfabric",
    "NCCL_PROTO": "Simple",
    "NCCL_NET_GDR_LEVEL": None,
    "NCCL_COLLNET_ENABLE": None,
    "FI_CXI_RDZV_PROTO": "alt_read",
    "FI_CXI_RDZV_GET_MIN": "0",
    "MPICH_GPU_SUPPORT_ENABLED": "0",
    "WORKSHOP_STAGE_DIR": "/local/scratch",
    "WORKSHOP_GLOO_TIMEOUT_S": "600",
}


@pytest.mark.parametrize("script", ["train.sh", "scale.sh"])
def test_on_polaris_nccl_finds_the_plug_in_for_its_network(tmp_path, script):
    ran = Launched("polaris", script, tmp_path, WORKSHOP_JOB_RANKS="8")
    assert ran.returncode == 0, ran.output
    assert {name: ran.variable(name)[0] for name in NETWORK} == NETWORK
    assert ran.variable("LD_LIBRARY_PATH")[0].startswith(f"{tmp_path}:")


@pytest.mark.parametrize("script", ["train.sh", "scale.sh"])
def test_on_polaris_each_setting_can_be_overridden(tmp_path, script):
    ran = Launched("polaris", script, tmp_path, WORKSHOP_JOB_RANKS="8", NCCL_PROTO="LL", FI_CXI_RDZV_GET_MIN="1")
    assert (ran.variable("NCCL_PROTO"), ran.variable("FI_CXI_RDZV_GET_MIN")) == (["LL"], ["1"])
    over_tcp = {"NCCL_NET": "Socket", "WORKSHOP_NCCL_PLUGIN": "/nowhere"}
    ran = Launched("polaris", script, tmp_path, WORKSHOP_JOB_RANKS="8", **over_tcp)
    assert ran.returncode == 0 and ran.variable("NCCL_NET") == ["Socket"]


@pytest.mark.parametrize("script", ["train.sh", "scale.sh"])
def test_on_polaris_a_missing_plug_in_ends_the_job_and_not_one_of_one_node(tmp_path, script):
    ran = Launched("polaris", script, tmp_path, WORKSHOP_NCCL_PLUGIN="/nowhere")
    assert (ran.returncode, ran.launches) == (1, [])
    assert "/nowhere has no libnccl-net.so" in ran.output
    if script == "train.sh":
        ran = Launched("polaris", script, tmp_path, nodes=1, WORKSHOP_NCCL_PLUGIN="/nowhere")
        assert (ran.returncode, ran.variable("NCCL_NET")) == (0, [None])


def test_on_perlmutter_nccl_asks_for_the_network_only_where_a_step_has_it(tmp_path):
    ran = Launched("perlmutter", "scale.sh", tmp_path, WORKSHOP_JOB_RANKS="8:4")
    assert ran.variable("NCCL_NET") == ["AWS Libfabric", None]
    ran = Launched("perlmutter", "train.sh", tmp_path, NCCL_NET="Socket")
    assert ran.variable("NCCL_NET") == ["Socket"]
    ran = Launched("perlmutter", "train.sh", tmp_path)
    assert ran.variable("NCCL_NET") == ["AWS Libfabric"]
    ran = Launched("perlmutter", "train.sh", tmp_path, nodes=1)
    assert ran.variable("NCCL_NET") == [None]


@pytest.mark.parametrize("machine", ["perlmutter", "slurm"])
def test_srun_fills_one_node_after_the_other(tmp_path, machine):
    """With fewer ranks than fill the job, srun spreads them over all of its nodes, unless it is given --nodes."""
    ran = Launched(machine, "scale.sh", tmp_path, nodes=8, WORKSHOP_JOB_RANKS="2 4 5 32")
    assert [re.findall(r"--nodes=(\d+)", words) for words in ran.words] == [["1"], ["1"], ["2"], ["8"]]
    assert all("--overlap" in words for words in ran.words), "a prompt may hold the job's cores"


def test_on_perlmutter_so_do_the_ranks_that_the_library_starts(tmp_path):
    show = "$WORKSHOP_MPIEXEC -n 4 true"
    ran = Launched("perlmutter", "sweep.sh", tmp_path, nodes=8, python=show)
    assert "--nodes=1 --ntasks-per-node=4" in ran.words[0] and ran.variable("NCCL_NET")[0] is None


def test_on_perlmutter_an_open_mpi_of_the_set_up_binds_ranks_as_well(tmp_path):
    program(tmp_path / "venv" / "mpiexec", "")
    ran = Launched("perlmutter", "sweep.sh", tmp_path, python='echo "$@"')
    assert "--bind core" in ran.output


def test_on_aurora_neither_mpi_looks_for_gpus_nor_oneccl_for_its_own_mpi(tmp_path):
    wanted = ["0", "pmix", "mpi", "own"]
    for script in ("train.sh", "scale.sh"):
        ran = Launched("aurora", script, tmp_path, CCL_KVS_MODE="own")
        names = ("MPIR_CVAR_ENABLE_GPU", "CCL_PROCESS_LAUNCHER", "CCL_ATL_TRANSPORT", "CCL_KVS_MODE")
        assert [ran.variable(name)[0] for name in names] == wanted


@pytest.mark.parametrize("script", ["train.sh", "scale.sh"])
def test_open_mpi_hands_on_what_is_set_and_nothing_else(tmp_path, script):
    own = {"WORKSHOP_MNIST": "/data", "NCCL_SOCKET_IFNAME": "ib0", "UCX_TLS": "rc", "TMPDIR": str(tmp_path)}
    ran = Launched("sophia", script, tmp_path, WORKSHOP_JOB_RANKS="16", **own)
    named = set(re.findall(r"-x (\S+)", ran.words[0]))
    assert {*own, "PATH", "PYTHONPATH", "OMP_NUM_THREADS", "WORKSHOP_GLOO_TIMEOUT_S"} <= named
    assert named <= ran.launches[0][1].keys(), "Open MPI warns about names that stand for nothing"


def test_open_mpi_hands_on_what_the_library_sets_when_the_library_starts_ranks(tmp_path):
    ran = Launched("sophia", "sweep.sh", tmp_path, python='echo "$WORKSHOP_MPIEXEC"')
    assert {*launchers.OWN_VARIABLES} <= set(re.findall(r"-x (\S+)", ran.output))


def test_on_sophia_a_job_may_have_fewer_gpus_than_a_node(tmp_path):
    ran = Launched("sophia", "train.sh", tmp_path, nodes=1, WORKSHOP_RANKS_PER_NODE="2")
    assert "ppr:2:node" in ran.words[0] and "-n 2 " in ran.words[0]


@pytest.mark.parametrize("machine", PER_NODE)
def test_the_table_of_variables_is_true_for_the_script_that_stands_alone(tmp_path, machine):
    own = {"WORKSHOP_MPIEXEC": "srun --own", "WORKSHOP_GLOO_TIMEOUT_S": "9", "WORKSHOP_NO_MODULES": "1"}
    ran = Launched(machine, "scale.sh", tmp_path, fails_on="2", WORKSHOP_JOB_RANKS="1:2:4", **own)
    assert [words[:10] for words in ran.words] == ["--own -n 1", "--own -n 2", "--own -n 4"]
    assert all("--device cpu" in words for words in ran.words)
    assert ran.variable("OMP_NUM_THREADS") == ["1"] * 3 and ran.variable("WORKSHOP_GLOO_TIMEOUT_S") == ["9"] * 3
    assert ran.returncode == 1 and "These numbers of ranks failed: 2;" in ran.output


@pytest.mark.parametrize("machine", PER_NODE)
def test_on_a_cold_file_system_ranks_wait_for_one_another(tmp_path, machine):
    for script in ("train.sh", "scale.sh"):
        if (machine, script) != ("slurm", "train.sh"):  # the library starts those
            ran = Launched(machine, script, tmp_path, WORKSHOP_JOB_RANKS="4")
            assert ran.variable("WORKSHOP_GLOO_TIMEOUT_S") == ["600"]


def test_only_their_owner_reads_the_output_that_holds_a_lab_s_token(tmp_path):
    assert Launched("polaris", "train.sh", tmp_path, nodes=1).mode & 0o044
    assert Launched("polaris", "lab.sh", tmp_path, nodes=1).mode == 0o600


def test_a_lab_announces_a_free_port_and_starts_on_no_other(tmp_path):
    """Behind a taken port is somebody else's server, to which people would give their token."""
    with contextlib.ExitStack() as servers:
        with contextlib.suppress(OSError):  # it may be taken already
            servers.enter_context(socket.create_server(("127.0.0.1", 8888)))
        ran = Launched("slurm", "lab.sh", tmp_path, nodes=1, python='echo "$@"')
        found = re.search(r"ssh -L (\d+):\S+:\1 .*--port=\1 --ServerApp.port_retries=0", ran.output, re.DOTALL)
        assert found and found[1] != "8888", ran.output
        taken = str(servers.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1])
        ran = Launched("slurm", "lab.sh", tmp_path, nodes=1, python='echo "$@"', WORKSHOP_JOB_PORT=taken)
        assert ran.returncode == 1 and "jupyterlab" not in ran.output
        assert f"port {taken} of {os.uname().nodename} is taken: set WORKSHOP_JOB_PORT" in ran.output


def test_what_fails_before_the_job_says_so(tmp_path):
    in_the_way = BUILD / f"polaris-launched-{os.getpid()}"
    in_the_way.parent.mkdir(exist_ok=True)
    in_the_way.touch()
    try:
        ran = Launched("polaris", "train.sh", tmp_path)
    finally:
        in_the_way.unlink()
    assert ran.returncode == 1 and "cannot be created" in ran.output
    ran = Launched("polaris", "train.sh", tmp_path, WORKSHOP_JOB_BACKENDS="", python="echo broken; exit 1")
    assert ran.returncode == 1 and "cannot import workshop_lib" in ran.output and not ran.launches


def test_a_job_looks_at_its_nodes_as_its_ranks_will_use_them(tmp_path):
    ran = Launched("polaris", "preflight.sh", tmp_path, python='echo "$@ NET=$NCCL_NET"')
    said = "preflight --ranks 8 --threads 8 --bind none --device cuda --machine polaris --out"
    assert said in ran.output and "NET=AWS Libfabric" in ran.output
