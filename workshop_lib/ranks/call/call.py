"""One call under way on the ranks: what each rank answered, and the evidence of where each rank is."""

import contextlib
import functools
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn, cast

import cloudpickle
import psutil
from ipyparallel import AsyncResult
from ipyparallel.error import KernelError

from workshop_lib.ranks.faults import whereabouts
from workshop_lib.ranks.faults.activity import Activity, asleep, measure
from workshop_lib.ranks.faults.losses import after_a_loss
from workshop_lib.ranks.faults.rank_errors import parse_stack
from workshop_lib.ranks.launch import folders
from workshop_lib.ranks.launch.allocation import is_here

from . import engine
from .messages import ErrorReport, ExitRecord, Frame, Loss, Outcome, Published, SearchPath, StopNote, Whereabouts

POLL_S = 0.002
STACK_LIMIT_S = 1.5
ANSWER_LIMIT_S = 0.05  # time for ranks that wait to say what for; ranks that compute may not say it
LOOK_EVERY_S = 0.01
# Time for the lost rank's exit record, and for the others'.
RECORD_LIMIT_S = 1.0
OTHERS_LIMIT_S = 0.5
# Time for the first record of each host: files of other hosts may take a moment to appear on a shared disk.
HOSTS_LIMIT_S = 2.0


class Answer:
    """One rank's answer to a call, and what the rank has printed and published so far.

    AsyncResult has the same attributes, but it parses the dates of its messages whenever one of them is read.
    """

    def __init__(self, result: AsyncResult):
        self.result = result
        self._metadata = result.metadata

    @property
    def data(self) -> dict[str, Any]:
        """The last value that the rank has published under each key."""
        return self._metadata["data"]

    def ready(self) -> bool:
        return self.result.done()

    def outcome(self) -> Outcome:
        """The rank's outcome. Raises TimeoutError if there is none yet, and KernelError if the call itself failed."""
        return cloudpickle.loads(self.result.result(0))


class Call:
    """One call under way on every rank of a team, or on some. A rank runs from when `send` gives it something to do.

    shown: whether somebody sees what the ranks print.
    """

    def __init__(self, team, ranks: list[int] | None = None, shown: bool = False):
        self.team = team
        self.shown = shown
        self.ranks = list(range(team.n)) if ranks is None else ranks
        self.answers: dict[int, Answer] = {}
        self.outcomes: dict[int, Outcome] = {}
        self._began = time.monotonic()  # Linux and macOS do not count the time for which a laptop is asleep

    def send(self, payload: bytes, ranks: list[int] | None = None) -> None:
        """Start a pickled (function, arguments, keyword arguments) on these ranks, or on all ranks of the call."""
        view = self.team.client[:]
        path = added_to_search_path()
        for rank in self.ranks if ranks is None else ranks:
            view.targets = rank
            try:
                self.answers[rank] = Answer(view.apply_async(engine.call, payload, self.shown, path))
            except IndexError:  # the controller has missed the rank before its exit record was here
                self._raise_lost()
            self.outcomes.pop(rank, None)

    def forget(self, rank: int) -> None:
        """Drop what a rank has answered, as if nothing had been sent to it."""
        del self.answers[rank]
        del self.outcomes[rank]

    def follow_up(self, function, *args) -> "Call":
        """Start another call, on every rank of the team."""
        call = Call(self.team)
        call.send(cloudpickle.dumps((function, args, {})))
        return call

    @property
    def running(self) -> list[int]:
        return [rank for rank in self.ranks if rank in self.answers and rank not in self.outcomes]

    @property
    def failed(self) -> list[int]:
        return [rank for rank, outcome in sorted(self.outcomes.items()) if "error" in outcome]

    @property
    def elapsed_s(self) -> float:
        """How long the call has taken."""
        return time.monotonic() - self._began

    @property
    def stops_when_asked(self) -> bool:
        """Whether a rank has said that it ends cleanly when it is asked to stop."""
        return any(self.published_by(rank).get("stops_when_asked") for rank in self.answers)

    def published(self) -> list[dict[str, Any]]:
        """The last values of everything that each rank has published."""
        return [self.answers[rank].data for rank in self.ranks]

    def published_by(self, rank: int) -> Published:
        return cast(Published, self.answers[rank].data)

    def collect(self) -> None:
        """Take the outcomes that have arrived. If a rank has ended, give all ranks up and raise RankError."""
        if self.team.is_lost():
            self._raise_lost()
        for rank in self.running:
            if not self.answers[rank].ready():
                continue
            try:
                self.outcomes[rank] = self.answers[rank].outcome()
            except KernelError as error:  # the call itself failed, not the learner's function in it
                kind = getattr(error, "ename", type(error).__name__)
                if kind == "EngineError":
                    self._raise_lost()
                self.outcomes[rank] = Outcome(error=_without_frames(f"raised {kind}", kind, error))
            except Exception as error:
                what = "gave a result that cannot be used in the notebook"
                self.outcomes[rank] = Outcome(error=_without_frames(what, type(error).__name__, error))

    def wait(self, limit_s: float) -> bool:
        """Wait until all ranks have ended, at most `limit_s` seconds; return whether they have."""
        deadline = time.monotonic() + limit_s
        while self.running and time.monotonic() < deadline:
            self.collect()
            self.pause(POLL_S)
        return not self.running

    def pause(self, limit_s: float) -> None:
        """Wait for the first rank that still runs, at most `limit_s` seconds: so a short call ends without delay."""
        for rank in self.running[:1]:
            self.answers[rank].result.wait(limit_s)

    def signal(self, number: int) -> None:
        """Send the running ranks a signal."""
        self.team.send_signal(self.running, number)

    def stopped(self) -> dict[int, StopNote]:
        """The notes of running ranks that are stopped, for instance by SIGSTOP, by rank."""
        return {rank: note for rank, note in folders.stopped_ranks(self.team.folder).items() if rank in self.running}

    def stacks(self) -> dict[int, list[Frame]]:
        """Where each running rank is, even if it is blocked inside MPI; no frames for a rank that does not say."""
        stopped = self.stopped()
        asked = [rank for rank in self.running if rank not in stopped]
        self._clear_stacks()
        folders.forget_answers(self.team.folder)
        self.signal(whereabouts.ASK)
        began = time.monotonic()
        texts: dict[int, str] = {}
        silent_are_asked = False
        while time.monotonic() < began + STACK_LIMIT_S and not self.team.is_lost():
            time.sleep(LOOK_EVERY_S)
            if not silent_are_asked and time.monotonic() > began + whereabouts.ANSWER_LIMIT_S:
                silent_are_asked = True
                self.team.send_signal([rank for rank in asked if rank not in texts], signal.SIGUSR1)
            before = texts
            texts = {rank: text for rank in asked if (text := self._written(rank))}
            if len(texts) == len(asked) and texts == before:  # each stack arrives line by line
                break
        if not self.team.is_lost():  # the last words of ranks stay
            self._clear_stacks()
        return dict.fromkeys(self.running, []) | self._parsed(texts)

    def whereabouts(self) -> dict[int, Whereabouts]:
        """What the running ranks said about the last look at their stacks. A rank that computes may say nothing."""
        deadline = time.monotonic() + ANSWER_LIMIT_S
        while True:
            answers = {
                rank: note for rank, note in folders.answers_of(self.team.folder).items() if rank in self.running
            }
            if len(answers) == len(self.running) or time.monotonic() > deadline:
                return answers
            time.sleep(LOOK_EVERY_S)

    @functools.cached_property
    def _here(self) -> dict[int, psutil.Process]:
        """The processes of the call's ranks on this host, by rank."""
        return self.team.processes_here(self.ranks)

    def activity(self) -> Activity:
        """What the call's ranks on this host have sent and computed so far."""
        note = folders.rank_notes(self.team.folder).get(self.ranks[0])
        all_here = len(self._here) == len(self.ranks)
        segments = Path(note["segments"]) if note and note["segments"] and all_here else None
        return measure(segments, self._here)

    def asleep(self, rank: int) -> bool:
        """Whether no thread of a rank on this host computes, or waits for a core to do so."""
        return asleep(self._here[rank].pid)

    def _clear_stacks(self) -> None:
        for rank in self.running:
            with contextlib.suppress(OSError):  # the folder disappears with the ranks' holder
                (self.team.folder / f"stack.{rank}.txt").write_text("")

    def _written(self, rank: int) -> str:
        with contextlib.suppress(OSError):
            return (self.team.folder / f"stack.{rank}.txt").read_text("utf8", "replace")
        return ""

    def _parsed(self, texts: dict[int, str]) -> dict[int, list[Frame]]:
        """The stacks that these ranks have written down, without those of ranks whose main thread is unknown."""
        notes = folders.rank_notes(self.team.folder)
        return {rank: parse_stack(text, notes[rank]["main_thread"]) for rank, text in texts.items() if rank in notes}

    def _raise_lost(self) -> NoReturn:
        """Give all ranks up and raise RankError, because one has ended."""
        raise after_a_loss(self.team, self.loss(), self.stopped()) from None

    def loss(self) -> Loss:
        """What the ranks left behind after one was lost. Waits for their exit records, for at most 3 s."""
        ranks_on: dict[str, list[int]] = {}
        for rank, note in sorted(folders.rank_notes(self.team.folder).items()):
            ranks_on.setdefault(note["host"], []).append(rank)
        records = self._wait_for_exit_records(ranks_on)
        written = self._parsed({rank: self._written(rank) for rank in self.running})
        stacks = {rank: frames for rank, frames in written.items() if frames}
        errors = self._raised() if records else {}
        holder = self.team.holder_host
        return Loss(records, stacks, errors, "" if is_here(holder) else holder, self._lost_hosts(records, ranks_on))

    def _wait_for_exit_records(self, ranks_on: dict[str, list[int]]) -> list[ExitRecord]:
        deadline = time.monotonic() + RECORD_LIMIT_S
        while not (records := folders.exit_records(self.team.folder)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        # The first record may be of a rank that MPI killed after the loss. And each rank says where it was as it ends.
        first_at = time.monotonic()
        while records and len(records) < self.team.n:
            time.sleep(POLL_S)
            records = folders.exit_records(self.team.folder) or records
            limit_s = HOSTS_LIMIT_S if self._lost_hosts(records, ranks_on) else OTHERS_LIMIT_S
            if time.monotonic() - first_at > limit_s:
                break
        return records

    def _lost_hosts(self, records: list[ExitRecord], ranks_on: dict[str, list[int]]) -> dict[str, list[int]]:
        """The hosts of `ranks_on` that have gone as a whole, with their ranks.

        No rank of such a host has left a record, although ranks of other hosts have. If no rank has left one, then the
        heartbeats of all of the host's ranks have stopped, and those of other ranks have not.
        """
        alive = {record["host"] for record in records}
        if not records:
            registered = set(self.team.client.ids)
            alive = {host for host, ranks in ranks_on.items() if registered.intersection(ranks)}
        return {host: ranks for host, ranks in ranks_on.items() if alive and host not in alive}

    def _raised(self) -> dict[int, ErrorReport]:
        """The errors of ranks that ended by themselves before MPI killed them, as they do with gloo."""
        for rank in self.running:
            with contextlib.suppress(Exception):  # the lost rank has no result
                self.outcomes[rank] = self.answers[rank].outcome()
        return {rank: self.outcomes[rank]["error"] for rank in self.failed}


def added_to_search_path() -> SearchPath:
    """The folders that the user added to this process's search path, for instance with `sys.path.append`.

    Python's own and installed packages are left out, because ranks on other hosts may have others.
    """
    first: list[str] = []
    last = [os.path.abspath(entry) for entry in sys.path if not entry]
    place = first
    for entry in filter(None, sys.path):
        folder = os.path.abspath(entry)
        if folder.startswith((sys.prefix, sys.base_prefix)) or "-packages" in folder:
            place = last
        elif os.path.exists(folder):
            place.append(folder)
    return SearchPath(tuple(first), tuple(last))


def _without_frames(what: str, kind: str, error: Exception) -> ErrorReport:
    """An error of the transport, in the same form as a rank's own errors (engine.describe)."""
    return ErrorReport(what=what, text=f"{kind}: {getattr(error, 'evalue', error)}", frames=[])
