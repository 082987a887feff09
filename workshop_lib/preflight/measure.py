"""What the ranks measure in a pre-flight check. All ranks call `preflight_report` together, and it blocks.

Each part is short: a thousand ranks take as long as two, except for the pairs, of which at most MOST_ROUNDS are tried
at the same moment.
"""

import contextlib
import datetime
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.distributed as dist

from workshop_lib.forecast import benchmark
from workshop_lib.machine import world
from workshop_lib.machine.cores import affinity
from workshop_lib.preflight import gpus
from workshop_lib.preflight.reports import Checkpoint, PairRow, PreflightReport, RankReport
from workshop_lib.training import rendezvous

# Between GPUs, a message has to be large: the time before its first byte would hide how fast the link is.
SIZES_BYTES = (4 * 2**10, 2**20, 16 * 2**20)
GPU_SIZES_BYTES = (4 * 2**10, 2**20, 128 * 2**20)
REPEATS = 5
PAIR_BYTES = 2**20
GPU_PAIR_BYTES = 64 * 2**20
PAIR_REPEATS = 5
MOST_ROUNDS = 64
CLOCK_TRIES = 20
CHECKPOINT_BYTES = 64 * 2**20
SMI_LIMIT_S = 20.0


def preflight_report(folder: str, device_name: str = "auto") -> PreflightReport:
    """Measure everything; returns the whole report on every rank. The checkpoint goes to `folder`.

    device_name: as `device` in TrainOptions.
    """
    here = world.detect()
    comm = here.mpi_comm()
    device = world.choose_device(device_name, here)
    sizes_bytes = SIZES_BYTES if device.type == "cpu" else GPU_SIZES_BYTES
    with _nccl_log(device) as log:
        rendezvous.join_process_group(here, device)
        group = benchmark.process_group(device)
        rows = benchmark.allreduces(comm, {dist.get_backend(): group}, sizes_bytes, REPEATS)
        carrier = transport(dist.get_backend(), log)
    driver, nvidia_gpus = _driver()
    about = RankReport(
        rank=here.rank,
        host=socket.gethostname(),
        cores=sorted(affinity()),
        host_cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        device=gpus.name_of(device),
        device_id=gpus.identity(device),
        gpus=nvidia_gpus or torch.xpu.device_count(),
        driver=driver,
        torch=torch.__version__,
        cuda=torch.version.cuda or "",
        transport=carrier,
        clock_ahead_s=_clock_ahead_s(comm),
    )
    of_rank_0 = checkpoint(folder) if here.rank == 0 else None
    return PreflightReport(
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        ranks=comm.allgather(about),
        allreduces=rows,
        pairs=_pairs(comm, device),
        checkpoint=comm.bcast(of_rank_0, 0),
    )


@contextlib.contextmanager
def _nccl_log(device: torch.device):
    """Have NCCL, if it starts inside, write down which network it takes; yields the file, None without a GPU."""
    if device.type != "cuda":
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "nccl.txt"
        os.environ |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": str(log)}
        yield log


def transport(backend: str, log: Path | None) -> str:
    """What carries tensors between ranks, in words, as NCCL's log names it: "NCCL over AWS Libfabric"."""
    if backend == "xccl":
        return "oneCCL, over a network that it doesn't name"
    if backend != "nccl":
        return f"{backend} over TCP"
    text = log.read_text(errors="replace") if log is not None and log.is_file() else ""
    networks = re.findall(r"Using network (.+)", text)
    return f"NCCL over {networks[-1].strip()}" if networks else "NCCL"


def _driver() -> tuple[str, int]:
    """The version of NVIDIA's driver and how many GPUs it shows on this host; ("", 0) if it doesn't answer."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=SMI_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return "", 0
    versions = listed.stdout.split()
    return (versions[0] if versions else ""), len(versions)


def _clock_ahead_s(comm) -> float:
    """How far this rank's clock is ahead of rank 0's, judged by the quickest of some round trips."""
    ahead_s = 0.0
    for rank in range(1, comm.size):
        if comm.rank == rank:
            tries = []
            for _ in range(CLOCK_TRIES):
                sent_s = time.time()
                of_rank_0_s = comm.sendrecv(None, 0, source=0)
                back_s = time.time()
                tries.append((back_s - sent_s, (sent_s + back_s) / 2 - of_rank_0_s))
            ahead_s = min(tries)[1]
        elif comm.rank == 0:
            for _ in range(CLOCK_TRIES):
                comm.recv(source=rank)
                comm.send(time.time(), rank)
    return ahead_s


def _pairs(comm, device: torch.device) -> list[PairRow]:
    """The speed between any two ranks, all pairs of a round at the same moment; all rounds if there are few ranks.

    In round k, two ranks meet whose numbers add up to k, modulo the number of ranks. Whoever would meet itself waits.
    """
    rows = []
    nbytes = PAIR_BYTES if device.type == "cpu" else GPU_PAIR_BYTES
    tensor = torch.ones(nbytes // 4, device=device)
    received = torch.empty_like(tensor)
    for number in range(min(comm.size, MOST_ROUNDS)):
        partner = (number - comm.rank) % comm.size
        took_s = []
        for _ in range(PAIR_REPEATS):
            comm.Barrier()
            began_s = time.perf_counter()
            if partner != comm.rank:
                both = [dist.P2POp(dist.isend, tensor, partner), dist.P2POp(dist.irecv, received, partner)]
                for work in dist.batch_isend_irecv(both):
                    work.wait()
                benchmark.wait_for(device)
            took_s.append(time.perf_counter() - began_s)
        own = None
        if comm.rank < partner:
            own = PairRow(ranks=[comm.rank, partner], bytes_per_s=nbytes / median(took_s))
        rows += [row for row in comm.allgather(own) if row is not None]
    return rows


def checkpoint(folder: str, nbytes: int = CHECKPOINT_BYTES) -> Checkpoint:
    """Write a file of this size into `folder`, read it again, and delete it."""
    values = np.random.default_rng(0).bytes(nbytes)
    found = Checkpoint(folder=folder, bytes=nbytes, free_bytes=0, write_s=0.0, read_s=0.0, error="")
    place = Path(folder) / f"preflight.{os.getpid()}.tmp"
    try:
        found["free_bytes"] = shutil.disk_usage(folder).free
        began_s = time.perf_counter()
        with place.open("wb") as file:
            file.write(values)
            file.flush()
            os.fsync(file.fileno())
        found["write_s"] = time.perf_counter() - began_s
        began_s = time.perf_counter()
        same = place.read_bytes() == values
        found["read_s"] = time.perf_counter() - began_s
        if not same:
            found["error"] = "what was read isn't what was written"
    except OSError as error:
        found["error"] = error.strerror or str(error)
    finally:
        with contextlib.suppress(OSError):
            place.unlink(missing_ok=True)
    return found
