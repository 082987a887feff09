"""Follow one call on all ranks until it ends."""

import contextlib
import json
import signal
import time
import warnings
from collections.abc import Iterator
from typing import cast

import cloudpickle
import psutil
from ipyparallel.error import KernelError

from . import debugger, engine, folders, verdict
from .allocation import is_here
from .errors import RankError, how_it_ended, parse_stack, positions_text, stopped_text, where
from .messages import ErrorReport, ExitRecord, Frame, Outcome, Published, StopNote
from .output import Output

POLL_S = 0.002
VIEW_EVERY_S = 0.1
STACK_LIMIT_S = 1.5
# Time for the lost rank's exit record, and for the others'.
RECORD_LIMIT_S = 1.0
OTHERS_LIMIT_S = 0.5
STOP_LIMIT_S = 4.0
OUTPUT_LIMIT_S = 5.0  # time for a rank's output to arrive after its result, on a busy machine


class Call:
    """One call under way on every rank of a team, or on some."""

    def __init__(self, team, payload: bytes, ranks: list[int] | None = None):
        self.team = team
        self.ranks = list(range(team.n)) if ranks is None else ranks
        self.results = {rank: team.client[rank].apply_async(engine.call, payload) for rank in self.ranks}
        self.output = Output(self.results)
        self.outcomes: dict[int, Outcome] = {}
        self._started = time.monotonic()

    def follow_up(self, function, *args) -> "Call":
        """Start another call, on every rank of the team."""
        return Call(self.team, cloudpickle.dumps((function, args, {})))

    @property
    def running(self) -> list[int]:
        return [rank for rank in self.ranks if rank not in self.outcomes]

    @property
    def failed(self) -> list[int]:
        return [rank for rank, outcome in sorted(self.outcomes.items()) if "error" in outcome]

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def published(self) -> list[Published]:
        """What each rank published last about its progress."""
        return [self.published_by(rank) for rank in self.ranks]

    def published_by(self, rank: int) -> Published:
        return cast(Published, self.results[rank].data or {})

    @contextlib.contextmanager
    def clock_stopped(self) -> Iterator[None]:
        """A context manager: the time spent inside it does not count toward the time-out."""
        began = time.monotonic()
        yield
        self._started += time.monotonic() - began

    def collect(self) -> None:
        """Take the outcomes that have arrived. Raises RankError if a rank has ended."""
        if self.team._lost():
            raise self._died(self._wait_for_exit_records())
        for rank in self.running:
            if not self.results[rank].ready():
                continue
            try:
                self.outcomes[rank] = cloudpickle.loads(self.results[rank].get(0))
            except KernelError as error:  # the call itself failed, not the learner's function in it
                kind = getattr(error, "ename", type(error).__name__)
                if kind == "EngineError":
                    raise self._died(self._wait_for_exit_records()) from None
                self.outcomes[rank] = Outcome(error=_without_frames(f"raised {kind}", kind, error))
            except Exception as error:
                what = "gave a result that cannot be used in the notebook"
                self.outcomes[rank] = Outcome(error=_without_frames(what, type(error).__name__, error))

    def wait(self, limit_s: float) -> bool:
        """Wait until all ranks have ended, at most `limit_s` seconds; return whether they have."""
        deadline = time.monotonic() + limit_s
        while self.running and time.monotonic() < deadline:
            self.collect()
            time.sleep(POLL_S)
        return not self.running

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
        self.signal(signal.SIGUSR1)
        deadline = time.monotonic() + STACK_LIMIT_S
        stacks: dict[int, list[Frame]] = {}
        while len(stacks) < len(asked) and time.monotonic() < deadline:
            time.sleep(0.05)
            stacks = {rank: frames for rank in asked if (frames := self._written_stack(rank))}
        self._clear_stacks()  # whatever the files contain later are a rank's last words
        return dict.fromkeys(self.running, []) | stacks

    def _clear_stacks(self) -> None:
        for rank in self.running:
            with contextlib.suppress(OSError):  # the folder disappears with the ranks' holder
                (self.team.folder / f"stack.{rank}.txt").write_text("")

    def _written_stack(self, rank: int) -> list[Frame]:
        folder = self.team.folder
        try:
            main_thread = json.loads((folder / f"rank.{rank}.json").read_text())["main_thread"]
            return parse_stack((folder / f"stack.{rank}.txt").read_text("utf8", "replace"), main_thread)
        except OSError:
            return []

    def cpu_s(self) -> dict[int, float]:
        """The CPU seconds that each running rank on this host has used, by rank."""
        used_s = {}
        for rank, process in self.team.processes_here(self.running).items():
            with contextlib.suppress(psutil.Error):
                used_s[rank] = sum(process.cpu_times()[:2])
        return used_s

    def _wait_for_exit_records(self) -> list[ExitRecord]:
        deadline = time.monotonic() + RECORD_LIMIT_S
        while not (records := folders.exit_records(self.team.folder)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        # The first record may be of a rank that MPI killed after the loss. And each rank says where it was as it ends.
        deadline = time.monotonic() + OTHERS_LIMIT_S
        while len(records) < self.team.n and time.monotonic() < deadline:
            time.sleep(POLL_S)
            records = folders.exit_records(self.team.folder) or records
        return records

    def _raised(self) -> dict[int, ErrorReport]:
        """The errors of ranks that ended by themselves before MPI killed them, as they do with gloo."""
        for rank in self.running:
            with contextlib.suppress(Exception):  # the lost rank has no result
                self.outcomes[rank] = cloudpickle.loads(self.results[rank].get(0))
        return {rank: self.outcomes[rank]["error"] for rank in self.failed}

    def _died(self, records: list[ExitRecord]) -> RankError:
        where_text = ""
        if records:
            first = records[0]
            what = f"rank {first['rank']} on {first['host']} {how_it_ended(first)}"
            last_words = {rank: frames for rank in self.running if (frames := self._written_stack(rank))}
            if frames := last_words.pop(first["rank"], []):
                where_text = f"\n  It was {where(frames)}"
            raised = self._raised()
            rows = [f"  rank {rank} {error['what']} {where(error['frames'][::-1])}" for rank, error in raised.items()]
            if still := {rank: frames for rank, frames in last_words.items() if rank not in raised}:
                rows.append(positions_text(still, {}))
            if rows:
                where_text += "\n".join(["\nMeanwhile:", *rows])
        elif self.team.attached_only and not is_here(host := folders.owner_host(self.team.folder)):
            what = f"the ranks are gone: the process that held them on {host}, or its job, has ended"
        else:
            what = "the ranks are gone: their mpiexec or controller ended"
        remedy = self.team.remedy
        self.team._give_up(what)
        return RankError(f"{what}.{where_text}\nMPI ends all ranks when one is lost. {remedy}")


class _Screen:
    """The view of a call, if it has one. A display that fails is reported once and does not end the call."""

    def __init__(self, view):
        self.view = view
        self.failed = False
        self.stopped: set[int] = set()  # the stopped ranks that were reported already

    @property
    def stop_requested(self) -> bool:
        return self.view is not None and self.view.stop_requested

    def show(self, call: Call, whole: bool = False) -> None:
        if self.view is not None:
            self.view.output([*call.output.news(whole), *self._newly_stopped(call)])
            self._draw(self.view.unfinished, call.output.unfinished())
            self._draw(self.view.update, call.published(), call.elapsed_s, call.running)

    def _newly_stopped(self, call: Call) -> list[str]:
        """What to do about ranks that SIGSTOP or a debugger has stopped since the last report; one line per rank."""
        stopped = call.stopped()
        new = [note for rank, note in sorted(stopped.items()) if rank not in self.stopped]
        self.stopped = set(stopped)
        remedy = "`kill -CONT {pid}` there lets it go on; or stop this call, and `team.restart()` brings fresh ranks."
        return [f"rank {note['rank']} is {stopped_text(note)}: {remedy.format(**note)}" for note in new]

    def close(self, call: Call) -> None:
        if self.view is None:
            return
        # Output travels on a separate channel and may arrive after the result.
        deadline = time.monotonic() + OUTPUT_LIMIT_S
        for result in call.results.values():
            if result.ready() and call.team.client is not None:
                result.wait_for_output(max(0.0, deadline - time.monotonic()))
        self.show(call, whole=True)
        self._draw(self.view.close)

    def _draw(self, function, *args) -> None:
        try:
            function(*args)
        except Exception as error:
            if not self.failed:
                message = f"The display of progress failed ({type(error).__name__}: {error}); the run goes on."
                warnings.warn(message, stacklevel=2)
            self.failed = True


def watch(team, payload: bytes, timeout_s: float, view, ranks: list[int] | None = None) -> list:
    """Run a call on these ranks, or on all, until it ends. Return the values in rank order, or raise one RankError."""
    try:
        call = Call(team, payload, ranks)  # inside the try, because stop may be pressed even while the call is sent
        return _watch(call, timeout_s, _Screen(view))
    except RankError as error:
        error.reports = tuple(call.outcomes[rank]["error"] for rank in call.failed)
        raise
    except BaseException:
        # For example, the stop button was pressed twice. Whatever still runs would keep the next call waiting.
        team._give_up("a call on them was cut off")
        raise


def _watch(call: Call, timeout_s: float, screen: _Screen) -> list:
    try:
        _follow(call, timeout_s, screen)
    except KeyboardInterrupt:
        verdict.raise_interrupted(call)
    finally:
        screen.close(call)
    if call.failed:
        verdict.raise_failed(call)
    if len(call.ranks) < call.team.n:
        verdict.check_alone(call)
    return [call.outcomes[rank]["value"] for rank in call.ranks]


def _follow(call: Call, timeout_s: float, screen: _Screen) -> None:
    others: verdict.Others | None = None
    alone = verdict.Alone(call) if len(call.ranks) < call.team.n else None
    prompt = debugger.Prompt(call)
    stop_at = None
    next_view = 0.0
    while call.running:
        call.collect()
        now = time.monotonic()
        if now >= next_view:
            next_view = now + VIEW_EVERY_S
            screen.show(call)
            if screen.stop_requested and stop_at is None:
                stop_at = now
                call.signal(signal.SIGUSR2)
        if prompt.is_due():
            screen.show(call)
            with call.clock_stopped():
                prompt.ask()
        elif call.failed:
            others = others or verdict.Others(call)
            others.look()
        elif alone:
            alone.look()
        if stop_at is not None and now - stop_at > STOP_LIMIT_S:
            raise KeyboardInterrupt
        if call.elapsed_s > timeout_s:
            verdict.raise_timeout(call, timeout_s)
        # A short call is over at once. The longer a call takes, the less often it is looked at: ranks need the cores.
        time.sleep(min(VIEW_EVERY_S, max(POLL_S, call.elapsed_s / 20)))


def _without_frames(what: str, kind: str, error: Exception) -> ErrorReport:
    """An error of the transport, in the same form as a rank's own errors (engine.describe)."""
    return ErrorReport(what=what, text=f"{kind}: {getattr(error, 'evalue', error)}", frames=[])
