"""Follow one call on the ranks until it ends, and show what they print meanwhile."""

import signal
import sys
import time
import warnings

from workshop_lib.learner import in_notebook
from workshop_lib.ranks.faults import failures
from workshop_lib.ranks.faults.rank_errors import RankError, named, positions_text, stopped_text

from .call import POLL_S, Call
from .engine import LARGE_BYTES
from .output import Output
from .prompt import Prompt

VIEW_EVERY_S = 0.1
STOP_LIMIT_S = 4.0
OUTPUT_LIMIT_S = 5.0  # time for a rank's output to arrive after its result, on a busy machine


class _Screen:
    """The view of a call, if it has one. A display that fails is reported once and does not end the call."""

    def __init__(self, view, call: Call):
        self.view = view
        self.call = call
        self.output = Output(call.answers)
        self.failed = False
        self.stopped: set[int] = set()  # the stopped ranks that were reported already
        self.sending: set[int] = set()  # the ranks whose large results were announced

    @property
    def stop_requested(self) -> bool:
        return self.view is not None and self.view.stop_requested

    def show(self, whole: bool = False) -> None:
        if self.view is not None:
            self.view.output([*self.output.news(whole), *self._newly_stopped()])
            self._draw(self.view.unfinished, self.output.unfinished())
            self._draw(self.view.update, self.call.published(), self.call.elapsed_s, self.call.running)

    def tell(self, lines: list[str]) -> None:
        """Show these lines about the ranks, if any, below what the ranks have printed by now."""
        if self.view is not None and lines:
            self.show()
            self.view.output(lines)

    def note_large_results(self) -> None:
        """Say that ranks are sending large results."""
        sizes = {rank: self.call.published_by(rank).get("result_bytes", 0) for rank in self.call.running}
        new = [rank for rank, size in sizes.items() if size and rank not in self.sending]
        self.sending.update(new)
        if new:
            size = max(sizes[rank] for rank in new)
            _announce(self.view, f"Receiving {size / 1e6:,.0f} MB from {named(new)} …")

    def note_interrupt(self) -> None:
        if self.view is not None:
            self.view.interrupted = True

    def _newly_stopped(self) -> list[str]:
        """The ranks that SIGSTOP or a debugger has stopped since the last report."""
        stopped = self.call.stopped()
        new = {rank: stopped_text(note) for rank, note in sorted(stopped.items()) if rank not in self.stopped}
        self.stopped = set(stopped)
        return positions_text(new).splitlines()

    def close(self) -> None:
        if self.view is None:
            return
        # Output travels on a separate channel and may arrive after the result.
        deadline = time.monotonic() + OUTPUT_LIMIT_S
        for answer in self.call.answers.values():
            if answer.ready() and self.call.team.client is not None:
                answer.result.wait_for_output(max(0.0, deadline - time.monotonic()))
        self.show(whole=True)
        self._draw(self.view.close)

    def _draw(self, function, *args) -> None:
        try:
            function(*args)
        except BrokenPipeError:  # the reader of the output, such as `head`, has seen enough
            self.failed = True
        except Exception as error:
            if not self.failed:
                message = f"The display of progress failed ({type(error).__name__}: {error}); the run goes on."
                warnings.warn(message, stacklevel=2)
            self.failed = True


def _announce(view, line: str) -> None:
    """Show a line about a transfer that takes seconds, even if the call itself is not shown."""
    if view is not None:
        view.output([line])
    else:
        # Outside a notebook, stdout is for a program's results.
        print(line, file=sys.stdout if in_notebook() else sys.stderr, flush=True)


def watch(team, payload: bytes, timeout_s: float, view, ranks: list[int] | None = None) -> list:
    """Run a call on these ranks, or on all, until it ends. Return the values in rank order, or raise one RankError."""
    call = Call(team, ranks, shown=view is not None)
    try:
        if len(payload) >= LARGE_BYTES:
            _announce(view, f"Sending {len(payload) / 1e6:,.0f} MB to {named(call.ranks)} …")
        call.send(payload)  # inside the try, because stop may be pressed even while the call is sent
        return _watch(call, timeout_s, _Screen(view, call))
    except RankError as error:
        error.reports = tuple(call.outcomes[rank]["error"] for rank in call.failed)
        raise
    except BaseException:
        # For example, the stop button was pressed twice. Whatever still runs would keep the next call waiting.
        team.give_up("a call on them was cut off")
        team.wait_until_ended()
        raise


def _watch(call: Call, timeout_s: float, screen: _Screen) -> list:
    try:
        _follow(call, timeout_s, screen)
    except KeyboardInterrupt:
        screen.note_interrupt()
        failures.raise_interrupted(call, call.stops_when_asked)
    finally:
        screen.close()
    if call.failed:
        failures.raise_failed(call)
    if len(call.ranks) < call.team.n:
        failures.check_alone(call)
    return [call.outcomes[rank]["value"] for rank in call.ranks]


def _follow(call: Call, timeout_s: float, screen: _Screen) -> None:
    others: failures.AfterAFailure | None = None
    together = failures.NoneHasFailed(call)
    prompt = Prompt(call)
    stop_by_s: float | None = None
    next_view = 0.0
    answered_in_s = 0.0  # time that the learner took at breakpoints, which does not count toward the time-out
    while call.running:
        call.collect()
        now = time.monotonic()
        if now >= next_view:
            next_view = now + VIEW_EVERY_S
            screen.show()
            screen.note_large_results()
            if screen.stop_requested and stop_by_s is None:
                stop_by_s = now + STOP_LIMIT_S
                call.signal(signal.SIGUSR2)
        if prompt.is_due():
            screen.show()
            prompt.ask()
            asked_s = time.monotonic() - now
            answered_in_s += asked_s
            if others is not None:
                others.began += asked_s
        elif call.failed:
            others = others or failures.AfterAFailure(call)
            screen.tell(others.look())
        else:
            screen.tell(together.look())
        if stop_by_s is not None and time.monotonic() > stop_by_s:
            raise KeyboardInterrupt
        if call.running and call.elapsed_s - answered_in_s > timeout_s:
            failures.raise_timeout(call, timeout_s)
        # A short call is over at once. The longer a call takes, the less often it is looked at: ranks need the cores.
        call.pause(min(VIEW_EVERY_S, max(POLL_S, call.elapsed_s / 20)))
