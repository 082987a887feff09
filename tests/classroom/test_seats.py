"""The seats of a class on one reservation share no port, token or core, and a server lets in its own token only."""

import csv
import importlib.util
import io
import os
import socket
import subprocess
import sys

import pytest

from workshop_lib.paths import ROOT

SCRIPT = ROOT / "assets" / "instructor" / "seats.py"


def seats(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, timeout=30)


def test_forty_seats_share_nothing_on_a_node():
    ran = seats("plan", "--seats", 40, "--per-node", 10)
    rows = list(csv.DictReader(io.StringIO(ran.stdout), delimiter="\t"))
    assert len(rows) == 40 == len({row["token"] for row in rows}) == len({row["port"] for row in rows})
    assert [int(row["node"]) for row in rows] == [1 + at // 10 for at in range(40)]
    for node in range(1, 5):
        cores = [core for row in rows if row["node"] == str(node) for core in row["cores"].split(",")]
        assert len(cores) == 30 == len(set(cores))


@pytest.mark.parametrize(
    ("arguments", "words"), [(["plan", "--seats", 0], "at least 1"), (["serve", os.devnull], "no seat on node 1")]
)
def test_what_cannot_be_used_is_a_sentence(arguments, words):
    ran = seats(*arguments)
    assert ran.returncode and words in ran.stderr and "Traceback" not in ran.stderr


def test_a_seat_knows_nothing_of_the_rest_of_the_job():
    spec = importlib.util.spec_from_file_location("seats", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    told = ["SLURM_JOB_ID", "PBS_NODEFILE", "PBS_JOBID", "COBALT_JOBID", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"]
    assert all(module.OF_A_JOB.match(name) for name in told)
    assert not any(module.OF_A_JOB.match(name) for name in ("PATH", "HOME", "LD_LIBRARY_PATH"))
    assert "WORKSHOP_PROFILE" in module.KEPT, "the instructor chooses the sizes"


def test_a_node_with_too_few_cores_starts_nobody(tmp_path):
    file = tmp_path / "seats.tsv"
    file.write_text("seat\tnode\tport\tcores\ttoken\n1\t1\t8801\t0,4095\tsecret\n")
    ran = seats("serve", file)
    assert ran.returncode and "need 4096 cores, but only" in ran.stderr and "Traceback" not in ran.stderr


def test_a_seat_whose_port_is_taken_is_sent_to_nobody_else_s_server(tmp_path):
    python = tmp_path / "seat-01" / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/bin/true")
    with socket.create_server(("127.0.0.1", 0)) as somebodys:
        port = somebodys.getsockname()[1]
        (tmp_path / "seats.tsv").write_text(f"seat\tnode\tport\tcores\ttoken\n1\t1\t{port}\t0\tsecret\n")
        ran = seats("serve", tmp_path / "seats.tsv")
    assert f"seat 1: port {port} is taken on this node: write another one into" in ran.stdout
    assert "http://" not in ran.stdout
