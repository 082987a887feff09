"""Follow one call on all ranks to its end, and say what went wrong when it does not end well."""

import contextlib
import json
import signal
import time
import warnings
from typing import cast

import cloudpickle
from ipyparallel.error import KernelError

from . import engine, folders
from .allocation import is_here
from .errors import RankError, how_it_ended, parse_stack, traceback_text, waiting_text, where
from .messages import ErrorReport, ExitRecord, Frame, Outcome, Published

POLL_S = 0.002
VIEW_EVERY_S = 0.1
GRACE_S = 0.7  # after one rank failed, for the others to end by themselves
STACK_LIMIT_S = 1.5
OTHERS_LIMIT_S = 0.2  # for the records of ranks that end together
INTERRUPT_LIMIT_S = 2.0
STOP_LIMIT_S = 4.0
IN_STEP_LIMIT_S = 1.5
OUTPUT_LIMIT_S = 1.0
USELESS = "These ranks cannot be used any more."


class Call:
    """One call under way on every rank of a team."""

    def __init__(self, team, payload: bytes):
        self.team = team
        self.results = [team.client[rank].apply_async(engine.call, payload) for rank in range(team.n)]
        self.outcomes: dict[int, Outcome] = {}
        self._started = time.monotonic()
        self._shown = [[0, 0] for _ in self.results]

    @property
    def running(self) -> list[int]:
        return [rank for rank in range(self.team.n) if rank not in self.outcomes]

    @property
    def failed(self) -> list[int]:
        return [rank for rank, outcome in sorted(self.outcomes.items()) if "error" in outcome]

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def published(self) -> list[Published]:
        """What each rank published last about its progress."""
        return [cast(Published, result.data or {}) for result in self.results]

    def collect(self) -> None:
        """Take the outcomes that have arrived. Raises RankError when a rank has ended."""
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

    def new_lines(self, whole: bool = False) -> list[str]:
        """What the ranks printed since the last time, each line with its rank, rank 0 first."""
        lines = []
        for rank, result in enumerate(self.results):
            for stream, text in enumerate((result.stdout, result.stderr)):
                start = self._shown[rank][stream]
                end = len(text) if whole else text.rfind("\n") + 1
                if end > start:
                    lines += [f"[{rank}] {line}" for line in text[start:end].splitlines()]
                    self._shown[rank][stream] = end
        return lines

    def wait(self, limit_s: float) -> bool:
        """Whether all ranks came to an end within the limit."""
        deadline = time.monotonic() + limit_s
        while self.running and time.monotonic() < deadline:
            self.collect()
            time.sleep(POLL_S)
        return not self.running

    def signal(self, number: int) -> None:
        with contextlib.suppress(Exception):  # a rank that is gone is reported by collect()
            self.team.client.send_signal(int(number), targets=self.running, block=False)

    def stacks(self) -> dict[int, list[Frame]]:
        """Where each running rank is, even while blocked inside MPI."""
        asked = self.running
        for rank in asked:
            with contextlib.suppress(OSError):  # the folder goes with whoever held the ranks
                (self.team.folder / f"stack.{rank}.txt").write_text("")
        self.signal(signal.SIGUSR1)
        deadline = time.monotonic() + STACK_LIMIT_S
        stacks: dict[int, list[Frame]] = dict.fromkeys(asked, [])
        while time.monotonic() < deadline and not all(stacks.values()):
            time.sleep(0.05)
            stacks = {rank: self._written_stack(rank) for rank in asked}
        return stacks

    def _written_stack(self, rank: int) -> list[Frame]:
        folder = self.team.folder
        try:
            main_thread = json.loads((folder / f"rank.{rank}.json").read_text())["main_thread"]
            return parse_stack((folder / f"stack.{rank}.txt").read_text("utf8", "replace"), main_thread)
        except OSError:
            return []

    def _wait_for_exit_records(self) -> list[ExitRecord]:
        deadline = time.monotonic() + 1.0
        while not (records := folders.exit_records(self.team.folder)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        time.sleep(OTHERS_LIMIT_S)  # the first record may be that of a rank that a different rank took along
        return folders.exit_records(self.team.folder) or records

    def _died(self, records: list[ExitRecord]) -> RankError:
        where_text = ""
        if records:
            first = records[0]
            what = f"rank {first['rank']} on {first['host']} {how_it_ended(first)}"
            if frames := self._written_stack(first["rank"]):
                where_text = f"\n  It was at {where(frames)}"
        elif self.team.attached_only and not is_here(host := folders.owner_host(self.team.folder)):
            what = f"the ranks are gone: the process that held them on {host}, or its job, has ended"
        else:
            what = "the ranks are gone: their mpiexec or controller ended"
        self.team._give_up(what)
        return RankError(f"{what}.{where_text}\nMPI ends all ranks when one is lost. {self.team.remedy}")


class _Screen:
    """The view of a call, if it has one; a display that fails is told once and does not end the call."""

    def __init__(self, view):
        self.view, self.failed = view, False

    @property
    def stop_requested(self) -> bool:
        return self.view is not None and self.view.stop_requested

    def show(self, call: Call, whole: bool = False) -> None:
        if self.view is not None:
            self.view.output(call.new_lines(whole))
            self._draw(self.view.update, call.published(), call.elapsed_s, call.running)

    def close(self, call: Call) -> None:
        if self.view is None:
            return
        # Output travels on a channel of its own and may arrive after the result.
        deadline = time.monotonic() + OUTPUT_LIMIT_S
        for result in call.results:
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


def watch(team, payload: bytes, timeout_s: float, view) -> list:
    """Run a call to its end; returns the values in rank order or raises one RankError."""
    call = Call(team, payload)
    try:
        return _watch(call, timeout_s, _Screen(view))
    except RankError as error:
        error.reports = tuple(call.outcomes[rank]["error"] for rank in call.failed)
        raise
    except BaseException:
        # Such as a second press of the stop button. What still runs would keep the next call waiting.
        team._give_up("a call on them was cut off")
        raise


def _watch(call: Call, timeout_s: float, screen: _Screen) -> list:
    try:
        _follow(call, timeout_s, screen)
    except KeyboardInterrupt:
        _interrupt(call)
    finally:
        screen.close(call)
    if call.failed:
        _raise_failed(call)
    return [call.outcomes[rank]["value"] for rank in range(call.team.n)]


def _follow(call: Call, timeout_s: float, screen: _Screen) -> None:
    failed_at = stop_at = None
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
        if call.failed and failed_at is None:
            failed_at = now
        if failed_at is not None and call.running and now - failed_at > GRACE_S:
            _raise_stuck(call)
        if stop_at is not None and now - stop_at > STOP_LIMIT_S:
            raise KeyboardInterrupt
        if call.elapsed_s > timeout_s:
            _raise_timeout(call, timeout_s)
        # A short call is over at once; a long one is looked at less often, since the ranks need the cores.
        time.sleep(min(VIEW_EVERY_S, max(POLL_S, call.elapsed_s / 20)))


def _without_frames(what: str, kind: str, error: Exception) -> ErrorReport:
    """An error of the transport in the shape of a rank's own (engine.describe)."""
    return ErrorReport(what=what, text=f"{kind}: {getattr(error, 'evalue', error)}", frames=[])


def _errors_text(call: Call) -> str:
    """The errors, each told once with the ranks that share it."""
    ranks_by_error: dict[str, list[int]] = {}
    for rank in call.failed:
        ranks_by_error.setdefault(traceback_text(call.outcomes[rank]["error"]), []).append(rank)
    parts = []
    for text, ranks in ranks_by_error.items():
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        parts.append(f"{who} {call.outcomes[ranks[0]]['error']['what']}:\n{text}")
    return "\n".join(parts)


def _raise_stuck(call: Call) -> None:
    errors, waiting = _errors_text(call), waiting_text(call.stacks())
    call.team._give_up("a rank failed while others waited for it")
    raise RankError(
        f"{errors}\nMeanwhile the others wait for what will not come:\n{waiting}\n{USELESS} {call.team.remedy}"
    )


def _raise_timeout(call: Call, timeout_s: float) -> None:
    done = [rank for rank in range(call.team.n) if rank not in call.running]
    ended = f" (ended already: {', '.join(map(str, done))})" if done else ""
    waiting = waiting_text(call.stacks())
    call.team._give_up(f"a call did not end within {timeout_s:g} s")
    raise RankError(
        f"not finished after {timeout_s:g} s{ended}:\n{waiting}\n{USELESS} {call.team.remedy} "
        "If the work only needs longer, give `timeout=` more seconds."
    )


def _raise_failed(call: Call) -> None:
    """All ranks came to an end, some with an error: are they still usable?"""
    errors = _errors_text(call)
    if _still_in_step(call.team):
        raise RankError(f"{errors}\nThe ranks are still in step and ready for the next cell.")
    call.team._give_up("after an error the ranks were out of step")
    raise RankError(f"{errors}\nSome ranks had sent messages that others never received. {USELESS} {call.team.remedy}")


def _still_in_step(team) -> bool:
    call = Call(team, cloudpickle.dumps((engine.in_step, (int(time.time()),), {})))
    try:
        return call.wait(IN_STEP_LIMIT_S) and all(out.get("value") for out in call.outcomes.values())
    except RankError:
        return False


def _interrupt(call: Call) -> None:
    """The learner pressed stop: interrupt the ranks; restart them if they cannot be interrupted."""
    call.signal(signal.SIGINT)
    try:
        ended = call.wait(INTERRUPT_LIMIT_S)
    except RankError:
        ended = False
    if ended and _still_in_step(call.team):
        raise RankError("interrupted. The ranks stopped what they did and are ready for the next cell.")
    waiting = "" if ended else f"\n{waiting_text(call.stacks())}"
    if call.team.attached_only:
        call.team._give_up("they were interrupted inside a collective")
        raise RankError(f"interrupted{waiting}\n{USELESS} {call.team.remedy}")
    call.team.restart()
    raise RankError(f"interrupted; the ranks were inside a collective, so fresh ones were started.{waiting}")
