"""What a check reports, and where the workshop explains it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

LEVELS = ("ok", "look", "wrong")  # from best to worst
EXIT_CODES = {"ok": 0, "look": 2, "wrong": 3}  # of a command, by the worst level it reports
# Notebook and heading of the sections that findings refer to; an exercise's number and label aren't part of it.
SECTIONS = {
    "averaging": ("02_synchronous_sgd", "average the gradients"),
    "same start": ("02_synchronous_sgd", "The same start"),
    "equal": ("02_synchronous_sgd", "Equal, to the last bit"),
    "unequal": ("02_synchronous_sgd", "Deeper: unequal shards"),
    "norms": ("02_synchronous_sgd", "Deeper: what batch normalization changes"),
    "resume": ("03_horovod_pytorch", "Deeper: continue from a checkpoint"),
    "metric": ("01_mpi_basics", "Deeper: the mean of all values"),
    "processes": ("05_ddp", "How do processes find each other?"),
    "convert": ("05_ddp", "the script for many processes"),
    "ddp": ("05_ddp", "What DDP doesn't do"),
    "accumulate": ("05_ddp", "Deeper: accumulating gradients"),
    "sampler": ("05_ddp", "Who sees which sample?"),
    "branches": ("05_ddp", "Deeper: when ranks take different branches"),
    "fsdp": ("06_zero_and_fsdp", "FSDP: stage 3 in PyTorch"),
    "sharded file": ("06c_fitting_more", "Checkpoints in shards"),
    "rate": ("07_large_batch", "How long should a step be?"),
    "straggler": ("08b_where_the_time_goes", "A straggler"),
    "inside": ("08b_where_the_time_goes", "Deeper: inside a step"),
    "random": ("09_feeding_the_ranks", "Deeper: different random numbers on every rank"),
    "threads": ("10_compute_nodes", "Threads"),
    "devices": ("10_compute_nodes", "A GPU for each rank"),
    "stuck": ("13_when_training_breaks", "A catalogue of faults"),
    "save": ("13b_runs_that_survive", "A checkpoint for any moment"),
}


@dataclass(frozen=True)
class ScriptFinding:
    """One result of a check. why, change and section are empty where there is nothing to change."""

    level: str  # one of LEVELS
    check: str
    seen: str
    why: str = ""
    change: str = ""
    section: str = ""  # a key of SECTIONS
    ranks: tuple[int, ...] = ()
    step: int | None = None

    def as_json(self) -> dict:
        notebook, heading = SECTIONS[self.section] if self.section else ("", "")
        return {**asdict(self), "section": {"notebook": notebook, "heading": heading} if notebook else None}


class Leveled(Protocol):
    """A result of a check, whatever it checks."""

    @property
    def level(self) -> str: ...


def worst(findings: Sequence[Leveled]) -> str:
    return max((finding.level for finding in findings), key=LEVELS.index, default="ok")
