"""The fault catalogue of 13: what each fault leaves behind, and what a wrong diagnosis is told."""

import inspect
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from torch.distributed.debug import start_debug_server

from workshop_lib.exercises.solutions import Solution
from workshop_lib.paths import SCRIPTS
from workshop_lib.ranks.launch import scripts

from lessons.ddp import clinic
from lessons.when_training_breaks import fault_catalogue, hung_jobs, hung_ranks, launchers, loss_spikes
from lessons.when_training_breaks.fault_catalogue_ranks import FAULTS

pytestmark = pytest.mark.usefixtures("healthy")


@pytest.mark.parametrize(
    ("judge", "of"),
    [(clinic.diagnoses, clinic), (fault_catalogue.diagnoses, fault_catalogue), (loss_spikes.causes, loss_spikes)],
)
def test_a_wrong_diagnosis_is_told_what_it_would_show(judge, of):
    said, sign = next(iter(of.SIGNS.items()))
    run = next(run for run, illness in of.RUNS.items() if illness != said)
    assert judge(of.RUNS).passed is True
    assert judge(of.RUNS | {run: ...}).passed is None
    verdict = judge(of.RUNS | {run: said})
    assert verdict.passed is False and verdict.failed == f"run {run}: {said}"
    assert sign in verdict.hint
    assert len(verdict.held) == len(of.RUNS) - 1, "the others are right"


def test_an_unknown_diagnosis_is_answered_with_the_known_ones():
    assert "no_sync forgotten" in clinic.diagnoses(clinic.RUNS | {"A": "a cold"}).hint


@pytest.fixture(scope="module")
def met():
    return fault_catalogue.meet(
        "is healthy", "raises", "computes a NaN", "flips a bit of its weights", "flips a bit of its gradient"
    )


def test_healthy_ranks_agree_and_a_bit_of_ones_weights_is_seen_in_its_digest(met):
    digests = {fault: [rank.digest for rank in ranks] for fault, ranks in met.items()}
    assert len(set(digests["is healthy"])) == 1
    sick = digests["flips a bit of its weights"]
    assert sick[0] == sick[2] != sick[1]
    [wrong] = set(digests["flips a bit of its gradient"])
    assert wrong != digests["is healthy"][0]


def test_a_nan_is_on_all_ranks_and_nobody_says_a_word(met):
    for rank in met["computes a NaN"]:
        assert rank.end == "exit code 0" and rank.words == "" and rank.losses[-1] != rank.losses[-1]


def test_the_others_name_the_connection_and_not_the_cause(met):
    first, sick, last = met["raises"]
    assert "ValueError" in sick.words
    assert "ValueError" not in first.words + last.words and first.after_s < 2
    row = fault_catalogue.table(met).loc["raises"]
    assert row["rank 1 ends with"] == "exit code 1" and row["same weights"] == "yes"


@pytest.mark.exhaustive
def test_every_fault_of_the_catalogue_shows_what_the_notebook_says():
    quiet = ("is slow", "computes a NaN", "flips a bit of its gradient", "flips a bit of its weights")
    met = fault_catalogue.meet(*FAULTS)
    for fault, ranks in met.items():
        loud = any(rank.end != "exit code 0" for rank in ranks)
        assert loud == (fault not in (*quiet, fault_catalogue.HEALTHY)), (fault, ranks)
    assert [rank.end for rank in met["is killed"]][1] == "SIGKILL"
    assert met["hangs"][1].end == "still running" and met["is stopped"][1].end == "stopped"


@pytest.mark.full
def test_the_job_that_hangs_is_alive_and_one_of_its_ranks_is_at_another_line(tmp_path, nothing_left):
    job = hung_jobs.HungJob(tmp_path / "tonight")
    rank, function = hung_jobs.CULPRITS["tonight"]
    expected = {"all_reduce": [at for at in range(hung_ranks.RANKS) if at != rank], function: [rank]}
    ranks_by_frame = Solution("13_when_training_breaks", "ranks_by_frame").load()
    found: dict[str, list[int]] = {}
    deadline = time.monotonic() + 90
    while found != expected and time.monotonic() < deadline:  # a rank may be on its way to where it stays
        for pid in job.pids:
            os.kill(pid, signal.SIGUSR1)
        time.sleep(0.5)
        logs = [(job.folder / f"log.{at}").read_text() for at in range(hung_ranks.RANKS)]
        found = {frame.rpartition(" in ")[2]: at for frame, at in ranks_by_frame(logs).items()}
    job.end()
    assert found == expected


@pytest.mark.full
def test_torchfrtrace_names_the_rank_that_called_another_collective(tmp_path, capsys):
    folder = hung_jobs.run_to_its_time_out(tmp_path / "morning")
    scripts.run("torchfrtrace", "-p", "trace_", folder)
    rank, function = hung_jobs.CULPRITS["this morning"]
    output = capsys.readouterr().out
    assert f"Culprit rank {rank};" in output and "save_checkpoint at" in output
    assert f"in {function}\n" in (folder / f"log.{rank}").read_text()
    assert all("RuntimeError: " in log.read_text() for log in folder.glob("log.*")), "everyone complains"


@pytest.mark.full
def test_launchers_end_a_job_that_lost_a_rank_and_pass_its_exit_code_on_or_not(tmp_path):
    table = launchers.after_a_death(tmp_path)
    assert table["its exit code"].to_dict() == {
        ("mpiexec", "exits with 7"): "7",
        ("mpiexec", "is killed"): "137",
        ("torchrun", "exits with 7"): "1",
        ("torchrun", "is killed"): "1",
    }
    assert "exitcode -9" in table["it says"]["torchrun", "is killed"]
    assert all(float(seconds) < launchers.SLEEP_S for seconds in table["job ends after s"])


def test_the_card_has_the_variable_and_signals_that_the_installed_versions_know():
    card = (SCRIPTS / "when_ranks_hang.md").read_text()
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if library.exists():  # its name on Linux
        contents = library.read_bytes()
        assert "TORCH_FR_DUMP_TEMP_FILE" in card and b"TORCH_FR_DUMP_TEMP_FILE" in contents
    for name, code in (("SIGABRT", 134), ("SIGKILL", 137), ("SIGSEGV", 139), ("SIGTERM", 143)):
        assert f"| {code}, −{code - 128} | `{name}`" in card and signal.Signals[name] == code - 128


def test_the_card_has_what_asks_a_live_job_and_what_a_failed_gpu_says():
    card = (SCRIPTS / "when_ranks_hang.md").read_text()
    for text in ("ncclras", "28028", "last enqueued NCCL work", "last completed NCCL work", "dmesg -T | grep Xid"):
        assert text in card, text
    for xid in ("48, 95", "74", "79", "94"):
        assert f"| {xid} | " in card
    port = inspect.signature(start_debug_server).parameters["port"].default
    assert f"http://NODE:{port}/stacks" in card and "torch.distributed.debug.start_debug_server()" in card
    for name in ("_record_memory_history", "_dump_snapshot"):
        assert f"torch.cuda.memory.{name}(" in card and hasattr(torch.cuda.memory, name)
