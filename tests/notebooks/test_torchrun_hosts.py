"""torchrun on two hosts that meet at one address: it trains; a rank of one host is killed; a second start goes on."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
from notebooks.scripts_in_turn import SCRIPTS
from training.launching import rank_environment

pytestmark = pytest.mark.full

NAMES = "wsrun1", "wsrun2"
EPOCHS, LIMIT_S = 3, 120.0
WITHIN_S = 30.0  # from the kill until every process of both hosts has ended


class Job:
    """The script under torchrun on both hosts, as `srun` would start it; output lines with their time."""

    def __init__(self, hosts, per_host, checkpoint):
        words = ["--nnodes=2", f"--nproc-per-node={per_host}", "--rdzv-backend=c10d", "--rdzv-id=4711"]
        words += [f"--rdzv-endpoint={NAMES[0]}:29500"]
        program = [SCRIPTS / "ddp_resume.py", "--images", 8192, "--epochs", EPOCHS, "--out", checkpoint]
        command = [sys.executable, "-m", "torch.distributed.run", *words, *map(str, program)]
        environment = rank_environment(OMP_NUM_THREADS="1")
        self.lines: dict[str, list[tuple[float, str]]] = {name: [] for name in NAMES}
        self.processes = {
            name: subprocess.Popen(
                [*hosts.command(name), *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            for name in NAMES
        }
        self.readers = [threading.Thread(target=self._read, args=(name,)) for name in NAMES]
        for reader in self.readers:
            reader.start()

    def _read(self, name):
        for line in self.processes[name].stdout:
            self.lines[name].append((time.monotonic(), line.rstrip()))

    def text(self, name):
        return "\n".join(line for _, line in self.lines[name])

    def kill(self, rank: int) -> float:
        """Kill this rank as the kernel would, for too much memory; returns when."""
        for process in psutil.process_iter():
            try:
                own = process.environ()
            except psutil.Error:
                continue
            if own.get("TORCHELASTIC_RUN_ID") == "4711" and own.get("RANK") == str(rank):
                process.kill()
                return time.monotonic()
        raise AssertionError(f"there is no rank {rank}")

    def wait(self, limit_s: float) -> list[int]:
        """The exit status of each host's torchrun. Ends all that is left at the limit, and fails then."""
        deadline = time.monotonic() + limit_s
        try:
            return [process.wait(max(0.1, deadline - time.monotonic())) for process in self.processes.values()]
        finally:
            for process in self.processes.values():
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait(10)
            for reader in self.readers:
                reader.join(10)


def epochs(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"^epoch (\d+):", text, re.MULTILINE)]


@pytest.mark.exhaustive  # tests/slurm/test_slurm_job_script.py has torchrun on two nodes, too
@pytest.mark.timeout(300)
@pytest.mark.parametrize("per_host", [1, 2])
def test_a_killed_rank_ends_the_job_on_both_hosts_and_a_second_start_goes_on(hosts, tmp_path, per_host):
    checkpoint, last = tmp_path / "mnist.pt", 2 * per_host - 1
    job, deadline = Job(hosts, per_host, checkpoint), time.monotonic() + LIMIT_S
    try:
        while not checkpoint.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        killed = job.kill(last)
    finally:
        statuses = job.wait(LIMIT_S)
    ended = time.monotonic()
    first, second = map(job.text, NAMES)
    assert all(statuses), "both say that they failed"
    assert "exitcode  : -9" in second and f"rank      : {last}" in second, second
    assert re.search(r"Connection (closed|reset) by peer", first), first
    assert ended - killed < WITHIN_S
    for name in NAMES:
        times = [at - killed for at, line in job.lines[name] if at > killed]
        print(
            f"{name}: lines from {times[0]:.1f} to {times[-1]:.1f} s after the kill; ended {ended - killed:.1f} s after"
        )
    assert 1 in epochs(first) and EPOCHS not in epochs(first)

    again = Job(hosts, per_host, checkpoint)
    assert again.wait(LIMIT_S) == [0, 0], again.text(NAMES[0])
    assert epochs(again.text(NAMES[0])) == list(range(epochs(first)[-1] + 1, EPOCHS + 1))
    assert not epochs(again.text(NAMES[1])), "rank 0 alone prints"
