"""What each script starts on its machine is what stands in `expected`, word by word, with its environment."""

import contextlib
import os
import re
import socket
from pathlib import Path

import pytest
from shell_programs import program
from submissions.stand_in import MACHINES, RECORDS, StandIn, job_scripts

from workshop_lib.paths import BUILD, ROOT

EXPECTED = Path(__file__).with_name("expected")
LIVE = [name for name in MACHINES if name not in RECORDS]
# Of the environment: what Python and bash add, and what the test itself sets.
NOT_SHOWN = ("LC_CTYPE", "OLDPWD", "PATH", "PWD", "SHLVL", "WORKSHOP_JOB_RANKS", "_")


def started(machine: str, folder: Path) -> str:
    """What every script of a machine starts, as text: the command, and which variables differ from the call before."""
    lines = []
    job = StandIn(machine, folder)
    before: set[str] = set()
    on_a_login_node = [] if machine in RECORDS else ["interactive.sh"]
    for script in [*on_a_login_node, *job_scripts(machine)]:
        lines.append(f"== {script}")
        for call in job.run(script, WORKSHOP_JOB_RANKS="8"):
            shown = [name for name in call.environment if name not in NOT_SHOWN and name not in job.given]
            settings = {f"{name}={call.environment[name]}" for name in shown}
            lines += [f"+ {setting}" for setting in sorted(settings - before)]
            lines += [f"- {setting}" for setting in sorted(before - settings)]
            lines.append(call.line)
            before = settings
    text = "\n".join([*lines, ""]).replace(str(folder), "FOLDER").replace(str(ROOT), "CHECKOUT")
    return re.sub(r"--port=\d+", "--port=PORT", text.replace("--allow-root ", ""))


@pytest.mark.parametrize("machine", MACHINES)
def test_scripts_start_what_is_expected(machine, tmp_path):
    """With WORKSHOP_WRITE_EXPECTED=1, the expected file is written, so that `git diff` shows what has changed."""
    file = EXPECTED / f"{machine}.txt"
    found = started(machine, tmp_path)
    if os.environ.get("WORKSHOP_WRITE_EXPECTED"):
        file.write_text(found)
    assert found == file.read_text(), "if this is meant, run the test again with WORKSHOP_WRITE_EXPECTED=1"


@pytest.mark.parametrize(
    "machine", [name for name in MACHINES if "cpu-bind list" in (EXPECTED / f"{name}.txt").read_text()]
)
def test_ranks_of_a_node_share_no_core(machine):
    of_node = MACHINES[machine]
    for binding in set(re.findall(r"--cpu-bind list:(\S+)", (EXPECTED / f"{machine}.txt").read_text())):
        ends = [share.split("-") for share in binding.split(":")]
        cores = [core for first, last in ends for core in range(int(first), int(last) + 1)]
        assert len(ends) == of_node["ranks"] and len(set(cores)) == len(cores)
        assert max(cores) < of_node["threads"] and not {*cores} & {*of_node.get("reserved", ())}


@pytest.mark.parametrize("script", ["train.sh", "scale.sh"])
def test_on_polaris_each_setting_can_be_overridden_and_a_missing_plug_in_ends_the_job(tmp_path, script):
    job = StandIn("polaris", tmp_path)
    [launch] = job.launches(script, WORKSHOP_JOB_RANKS="8", NCCL_CROSS_NIC="0", FI_CXI_RDZV_GET_MIN="1")
    assert (launch.environment["NCCL_CROSS_NIC"], launch.environment["FI_CXI_RDZV_GET_MIN"]) == ("0", "1")
    over_tcp = {"NCCL_NET": "Socket", "WORKSHOP_NCCL_PLUGIN": "/nowhere"}
    [launch] = job.launches(script, WORKSHOP_JOB_RANKS="8", **over_tcp)
    assert job.returncode == 0 and launch.environment["NCCL_NET"] == "Socket"
    assert not job.launches(script, WORKSHOP_NCCL_PLUGIN="/nowhere")
    assert job.returncode == 1 and "/nowhere has no libnccl-net.so" in job.output
    if script == "train.sh":
        on_one_node = StandIn("polaris", tmp_path, nodes=1)
        [launch] = on_one_node.launches(script, WORKSHOP_NCCL_PLUGIN="/nowhere")
        assert on_one_node.returncode == 0 and "NCCL_NET" not in launch.environment


@pytest.mark.parametrize("script", ["train.sh", "scale.sh"])
def test_on_aurora_a_setting_wins_over_the_module_s_and_gives_way_to_the_user_s(tmp_path, script):
    given = {"BASH_FUNC_module%%": "() { export CCL_KVS_MODE=pmi; }", "FI_MR_CACHE_MONITOR": "memhooks"}
    [launch] = StandIn("aurora", tmp_path).launches(script, WORKSHOP_JOB_RANKS="12", **given)
    assert (launch.environment["CCL_KVS_MODE"], launch.environment["FI_MR_CACHE_MONITOR"]) == ("mpi", "memhooks")


def test_on_perlmutter_nccl_asks_for_the_network_only_where_a_step_has_it(tmp_path):
    job = StandIn("perlmutter", tmp_path)
    networks = [launch.environment.get("NCCL_NET") for launch in job.launches("scale.sh", WORKSHOP_JOB_RANKS="8:4")]
    assert networks == ["AWS Libfabric", None]
    assert job.launches("train.sh", NCCL_NET="Socket")[0].environment["NCCL_NET"] == "Socket"
    assert "NCCL_NET" not in StandIn("perlmutter", tmp_path, nodes=1).launches("train.sh")[0].environment


@pytest.mark.parametrize("machine", ["perlmutter", "slurm"])
def test_srun_fills_one_node_after_the_other(tmp_path, machine):
    """With fewer ranks than fill the job, srun spreads them over all of its nodes, unless it is given --nodes."""
    launches = StandIn(machine, tmp_path, nodes=8).launches("scale.sh", WORKSHOP_JOB_RANKS="2 4 5 32")
    assert [re.findall(r"--nodes=(\d+)", launch.line) for launch in launches] == [["1"], ["1"], ["2"], ["8"]]


@pytest.mark.parametrize("script", ["train.sh", "scale.sh"])
def test_open_mpi_hands_on_what_is_set_and_nothing_else(tmp_path, script):
    own = {"WORKSHOP_MNIST": "/data", "NCCL_SOCKET_IFNAME": "ib0", "UCX_TLS": "rc", "TMPDIR": str(tmp_path)}
    [launch] = StandIn("sophia", tmp_path).launches(script, WORKSHOP_JOB_RANKS="16", **own)
    named = set(re.findall(r"-x (\S+)", launch.line))
    assert {*own, "PATH", "PYTHONPATH", "OMP_NUM_THREADS", "WORKSHOP_GLOO_TIMEOUT_S"} <= named
    assert named <= launch.environment.keys(), "Open MPI warns about names that stand for nothing"


def test_on_sophia_a_job_may_have_fewer_gpus_than_a_node(tmp_path):
    [launch] = StandIn("sophia", tmp_path, nodes=1).launches("train.sh", WORKSHOP_RANKS_PER_NODE="2")
    assert "ppr:2:node" in launch.line and "-n 2 " in launch.line


@pytest.mark.parametrize("machine", LIVE)
def test_the_table_of_variables_is_true_for_the_script_that_stands_alone(tmp_path, machine):
    own = {"WORKSHOP_MPIEXEC": "srun --own", "WORKSHOP_GLOO_TIMEOUT_S": "9", "WORKSHOP_NO_MODULES": "1"}
    job = StandIn(machine, tmp_path)
    every = job.run("scale.sh", WORKSHOP_JOB_RANKS="1:2:4", STAND_IN_FAILS_ON="2", **own)
    calls = [call for call in every if call.name == "srun"]
    assert [call.words[:3] for call in calls] == [["--own", "-n", n] for n in "124"]
    for call in calls:
        assert "--device cpu" in call.line
        assert (call.environment["OMP_NUM_THREADS"], call.environment["WORKSHOP_GLOO_TIMEOUT_S"]) == ("1", "9")
    assert job.returncode == 1 and "These numbers of ranks failed: 2;" in job.output


def test_only_their_owner_reads_the_output_that_holds_a_lab_s_token(tmp_path):
    job = StandIn("polaris", tmp_path, nodes=1)
    job.run("train.sh")
    assert job.output_file.stat().st_mode & 0o044
    job.run("lab.sh")
    assert job.output_file.stat().st_mode & 0o777 == 0o600


def test_a_lab_announces_a_free_port_and_starts_on_no_other(tmp_path):
    """Behind a taken port is somebody else's server, to which people would give their token."""
    job = StandIn("slurm", tmp_path, nodes=1)
    with contextlib.ExitStack() as servers:
        with contextlib.suppress(OSError):  # it may be taken already
            servers.enter_context(socket.create_server(("127.0.0.1", 8888)))
        [lab] = job.run("lab.sh")
        port = re.search(r"--port=(\d+) --ServerApp.port_retries=0", lab.line)[1]
        assert port != "8888" and re.search(rf"ssh -L {port}:\S+:{port} ", job.output)
        taken = str(servers.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1])
        assert not job.run("lab.sh", WORKSHOP_JOB_PORT=taken) and job.returncode == 1
        assert f"port {taken} of {os.uname().nodename} is taken: set WORKSHOP_JOB_PORT" in job.output


def test_what_fails_before_the_job_is_said_in_a_sentence(tmp_path):
    job = StandIn("polaris", tmp_path)
    missing = str(tmp_path / "none")
    (BUILD / "polaris-in-the-way").touch()
    for settings, sentence in (
        ({"PBS_NODEFILE": ""}, "PBS_NODEFILE is not set: submit this script, or run it inside an interactive job."),
        ({"WORKSHOP_PYTHON": missing}, f"{missing} is missing: run make setup on a login node"),
        ({"WORKSHOP_JOB_BACKENDS": ""}, "finds no backend that is installed"),
        ({"PBS_JOBID": "in-the-way"}, "cannot be created"),
    ):
        assert not [call for call in job.run("train.sh", **settings) if call.name == "mpiexec"]
        assert job.returncode == 1 and sentence in job.output
    (BUILD / "polaris-in-the-way").unlink()
    program(tmp_path / "venv" / "python", "echo broken; exit 1")
    job.run("train.sh", WORKSHOP_JOB_BACKENDS="")
    assert job.returncode == 1 and "cannot import workshop_lib" in job.output
