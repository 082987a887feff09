"""What a pre-flight check measures, as plain data that a file can keep."""

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:  # importing it at run time would start MPI
    from workshop_lib.forecast.benchmark import MessageRow


class RankReport(TypedDict):
    """What one rank found out about itself.

    device: the name of its GPU, or "cpu". device_id: what no other device on this host has, empty for a CPU. gpus: how
    many of NVIDIA's GPUs its host shows, or of Intel's its PyTorch sees. driver: the version of NVIDIA's driver, or "".
    cuda: the CUDA version that PyTorch was built with, or "". transport: what carries tensors to other ranks.
    clock_ahead_s: how far the host's clock is ahead of rank 0's host.
    """

    rank: int
    host: str
    cores: list[int]
    host_cores: int
    threads: int
    device: str
    device_id: str
    gpus: int
    driver: str
    torch: str
    cuda: str
    transport: str
    clock_ahead_s: float


class PairRow(TypedDict):
    """Two ranks that sent each other a message at the same moment, and the bytes per second in each direction."""

    ranks: list[int]
    bytes_per_s: float


class Checkpoint(TypedDict):
    """A file that rank 0 wrote, read again and deleted; `error` says what went wrong, and is empty if nothing did."""

    folder: str
    bytes: int
    free_bytes: int
    write_s: float
    read_s: float
    error: str


class PreflightReport(TypedDict):
    """One pre-flight check of all ranks."""

    date: str
    ranks: list[RankReport]
    allreduces: list["MessageRow"]
    pairs: list[PairRow]
    checkpoint: Checkpoint
