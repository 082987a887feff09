"""What the processes of a set of ranks send each other: outcomes, errors and records, as plain data."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, NotRequired, TypedDict


class Frame(TypedDict):
    """One frame of a stack; `code` is the frame's line of source if the rank itself could read it."""

    file: str
    line: int
    name: str
    code: NotRequired[str | None]


class ErrorReport(TypedDict):
    """An exception on a rank: what happened ("raised ValueError"), its text, and its frames, outermost first."""

    what: str
    text: str
    frames: list[Frame]


class SearchPath(NamedTuple):
    """Folders that the user added to Python's search path: where it looks first, and where it looks last."""

    first: tuple[str, ...]
    last: tuple[str, ...]


NO_FOLDERS = SearchPath((), ())


class Outcome(TypedDict, total=False):
    """How one rank's part of a call ended: a value or an error."""

    value: Any
    error: ErrorReport


class ExitRecord(TypedDict):
    """exit/N.json, which the agent that made rank N writes. After a signal, returncode is minus the signal.

    asked: whether the rank's launcher asked it to end, as a launcher asks all ranks when one is lost. why: the limit
    for which Linux killed it, as the end of a sentence, if one is known.
    """

    rank: int
    host: str
    pid: int
    returncode: int
    asked: bool
    time: float
    why: NotRequired[str]


class Loss(NamedTuple):
    """What the ranks left behind when one was lost: how each ended, its last stack, and the error that it had raised.

    holder: the host of the process that held the ranks, if that's another host than this one. lost_hosts: the ranks of
    each host that has gone with all its ranks.
    """

    records: list[ExitRecord]
    stacks: dict[int, list[Frame]]
    errors: dict[int, ErrorReport]
    holder: str = ""
    lost_hosts: Mapping[str, list[int]] = MappingProxyType({})

    @property
    def holder_ended(self) -> bool:
        """Whether the ranks went with their holder, as when their job is canceled."""
        if self.holder in self.lost_hosts:
            return True
        return bool(self.holder) and not self.records and not self.lost_hosts


class StopNote(TypedDict):
    """stopped/N.json, which exists while rank N is stopped by this signal, such as SIGSTOP."""

    rank: int
    host: str
    pid: int
    signal: int


class Waiting(TypedDict):
    """What a rank waits for that only another rank can send: the call by its name.

    spins: whether the wait keeps a core busy.
    """

    name: str
    spins: bool


class Whereabouts(TypedDict):
    """at/N.json, which rank N writes when it is asked: where it is, and what it waits for, if that's known.

    place: a number that changes when the rank moves, even around a loop of one line.
    """

    place: int
    waiting: Waiting | None


class PdbCommand(TypedDict):
    """pdb.N.json, which the notebook writes for rank N at a breakpoint: the number of its question, and the command."""

    question: int
    command: str


class RankNote(TypedDict):
    """rank/N.json, which rank N writes once it is ready.

    main_thread tells its stack from those of other threads. segments: the folder of the ranks' shared memory, if they
    have one of their own.
    """

    rank: int
    pid: int
    host: str
    main_thread: int
    segments: str | None


class AboutRank(TypedDict):
    """Where a rank runs and what it may use; threads is None if OMP_NUM_THREADS is unset."""

    rank: int
    host: str
    pid: int
    threads: int | None
    cores: list[int]
    mpi: str


class Text(NamedTuple):
    """What a rank printed to "stdout" or "stderr"; it may end within a line."""

    stream: str
    text: str


class Displayed(TypedDict):
    """What a rank displayed: a MIME bundle."""

    data: dict[str, Any]
    metadata: dict[str, Any]


def output_key(number: int) -> str:
    """The key under which a rank publishes the Text or Displayed of this number, counted from the call's beginning.

    A listener sees all keys, whenever it looks.
    """
    return f"output.{number}"


class Published(TypedDict, total=False):
    """The state that one rank published last; datapub merges its parts. A function may publish more, for its view."""

    stops_when_asked: bool  # whether the call ends cleanly soon after `stop_asked` became true
    result_bytes: int  # the size of a large result, before the rank sends it
    at_breakpoint: int  # how many commands the rank has asked for in pdb
