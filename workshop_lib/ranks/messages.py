"""What crosses between the processes of a set of ranks: outcomes, errors, records and progress, as plain data.

And the interface of a call under way, for the files that may not import the one it stands in.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, NotRequired, Protocol, TypedDict


class Frame(TypedDict):
    """One line of a stack; `code` is there where the rank itself could read its source."""

    file: str
    line: int
    name: str
    code: NotRequired[str | None]


class ErrorReport(TypedDict):
    """An exception on a rank: "raised ValueError", its text, and its frames, outermost first."""

    what: str
    text: str
    frames: list[Frame]


class Outcome(TypedDict, total=False):
    """How one rank's part of a call ended: a value or an error."""

    value: Any
    error: ErrorReport


class ExitRecord(TypedDict):
    """exit.N.json, which a rank's supervisor writes; returncode is minus the signal that killed the rank.

    asked: its launcher asked it to end, as it does with all ranks when one is lost.
    """

    rank: int
    host: str
    pid: int
    returncode: int
    asked: bool
    time: float


class StopNote(TypedDict):
    """stopped.N.json, which is there while a rank is stopped by this signal, such as SIGSTOP."""

    rank: int
    host: str
    pid: int
    signal: int


class PdbCommand(TypedDict):
    """pdb.N.json, which the notebook writes for a rank at a breakpoint: the number of its question, and the answer."""

    question: int
    command: str


class RankNote(TypedDict):
    """rank.N.json, which a rank writes once it is ready; main_thread finds its stack among those written."""

    rank: int
    pid: int
    host: str
    main_thread: int | None


class AboutRank(TypedDict):
    """Where a rank runs and what it may use; threads is None where OMP_NUM_THREADS is unset."""

    rank: int
    host: str
    pid: int
    threads: int | None
    cores: list[int]
    mpi: str


class Displayed(TypedDict):
    """What a rank displayed: a MIME bundle, and its place in what the rank printed.

    lines: how many lines it had printed before, to stdout and to stderr. name: of a display that can be
    updated. clears: this takes the place of all that the rank displayed before.
    """

    data: dict[str, Any]
    metadata: dict[str, Any]
    lines: tuple[int, int]
    name: str | None
    updates: bool
    clears: bool


def displayed_key(number: int) -> str:
    """Under which a rank publishes what it displayed; whoever listens sees all keys, whenever it looks."""
    return f"displayed.{number}"


class PublishedPoint(TypedDict):
    """A rank's state after a step; done counts the steps of the run, sums begin again with each epoch."""

    done: int
    epoch: int
    step: int
    steps_per_epoch: int
    lr: float
    samples_per_s: float
    sums: list[float]  # loss, correct answers, samples


class Published(TypedDict, total=False):
    """What one rank published last about its training, or at a breakpoint; datapub merges the parts."""

    info: dict[str, Any]
    points: list[PublishedPoint]
    trace: list[Any]  # StepTrace of the last steps
    epochs: list[dict[str, Any]]
    at_breakpoint: int  # how often it has asked for a command of pdb
    step: Any  # the StepEvent itself, where only one rank is known: under plain mpiexec


class Point(NamedTuple):
    """What happened since the point before, on the same steps of all ranks."""

    done: int  # steps of the run, so far
    lr: float
    sums: list[list[float]]  # [rank] loss, correct answers, samples

    def of_ranks(self) -> list[list[float]]:
        """The sums of each rank, and last those of all ranks together."""
        return [*self.sums, [sum(column) for column in zip(*self.sums, strict=True)]]


class Call(Protocol):
    """What verdict.py and debugger.py use of a call under way (watch.Call)."""

    team: Any
    ranks: list[int]  # that run the call
    outcomes: dict[int, Outcome]

    @property
    def running(self) -> list[int]: ...
    def published_by(self, rank: int) -> Published: ...
    def wait(self, limit_s: float) -> bool: ...
    def signal(self, number: int) -> None: ...
    def stacks(self) -> dict[int, list[Frame]]: ...
    def stopped(self) -> dict[int, StopNote]: ...
    def cpu_s(self) -> dict[int, float]: ...
    def follow_up(self, function: Callable, *args) -> "Call": ...
