"""What a training run shows in a terminal, how Ctrl-C ends it, and how the errors of ranks are shown there."""

import os
import signal
import sys
import time
from typing import Any

from workshop_lib.errors import cause
from workshop_lib.machine.emulation import session as emulation
from workshop_lib.notebook.training_text import TrainingText
from workshop_lib.ranks import RankError
from workshop_lib.words import plural

INTERRUPTED = 130  # exit code after Ctrl-C: 128 plus the number of SIGINT
ASK_EVERY_S = 1.0


def replace_closed_streams() -> None:
    """Send what belongs into a standard stream to /dev/null if this process was started without the stream.

    If nothing took a closed stream's number, the next file would get it, and programs started here would print into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is the stream's
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode))  # noqa: SIM115 - stays open as long as the process


def show_error(error: BaseException | str) -> None:
    text = text_of(error) if isinstance(error, BaseException) else error
    print(f"workshop: {text}", file=sys.stderr, flush=True)


class Interrupt:
    """Handles Ctrl-C: once armed, the first one asks the run to stop, and the second ends this process at once.

    As callbacks of a training run, it arms itself when the run starts.
    """

    def __init__(self):
        self.asked = False
        self._before = signal.getsignal(signal.SIGINT)

    def arm(self) -> None:
        if self._before is not signal.SIG_IGN:  # a script's background job ignores Ctrl-C, so leave that as it is
            signal.signal(signal.SIGINT, self._ask)

    def close(self) -> None:
        signal.signal(signal.SIGINT, self._before)

    def on_start(self, info):
        self.arm()

    def should_stop(self):
        return self.asked

    def _ask(self, *_):
        if self.asked:
            raise SystemExit(INTERRUPTED)
        self.asked = True
        show_error("stopping after the next steps, to keep what was measured; Ctrl-C again ends it at once.")


class Terminal(TrainingText):
    """Shows the progress of a training run, after notes on anything unusual about the run."""

    noted = False

    def update(self, data, elapsed_s, running):
        super().update(data, elapsed_s, running)
        if self.progress.info and not self.noted:
            self.noted = True
            self.output(notes(self.progress.info))


class OfTeam(Terminal):
    """Shows the progress of ranks that this process started; with `show` off, it only passes on interrupts to them."""

    def __init__(self, n: int, trains: bool = False, *, team: Any, interrupt: Interrupt, show: bool):
        super().__init__(n, trains)
        self.team = team
        self.interrupt = interrupt
        self.show = show
        self.asked_s = 0.0

    def output(self, lines):
        if self.show:
            super().output(lines)

    def update(self, data, elapsed_s, running):
        if self.interrupt.asked and time.monotonic() > self.asked_s + ASK_EVERY_S:
            # This sends a signal because stop_requested allows the steps under way only a few seconds. It is sent
            # repeatedly because a rank forgets the signal when its part of the call begins.
            self.asked_s = time.monotonic()
            self.team.send_signal(running, signal.SIGUSR2)
        if self.show:
            super().update(data, elapsed_s, running)


class OfThisRank(Terminal):
    """Shows the same progress as callbacks of a training run, on rank 0 under mpiexec or in a single process."""

    def __init__(self):
        super().__init__(1)
        self.lead: Any = {"epochs": []}
        self.began_s = time.monotonic()

    def on_start(self, info):
        self._publish(info=info)

    def on_step(self, event):
        if event["step"] % 20 == 0 or event["step"] == event["steps_per_epoch"]:
            self._publish(step=event)

    def on_epoch(self, row):
        self._publish(epochs=[*self.lead["epochs"], row])

    def _publish(self, **news):
        self.lead |= news
        self.update([self.lead], time.monotonic() - self.began_s, [0])


def notes(info: dict) -> list[str]:
    """A line about each unusual thing in a run, given its RunInfo."""
    lines = []
    if machine := info.get("machine"):
        lines.append(emulation.label(machine))
    if info["oversubscribed"]:
        lines.append(
            f"The threads of {plural(info['world_size'], 'rank')} share {info['cores']} (oversubscribed), so the times "
            "say nothing about scaling."
        )
    return lines


def text_of(error: BaseException) -> str:
    """The text that a terminal shows for an error.

    If ranks reported a user's mistake, the text is only the sentence that names it. The state of the ranks is left
    out, because only notebooks need it.
    """
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {cause(error)}"
    if not isinstance(error, RankError) or error.reports is None:
        return str(error)
    if error.reports and not any(report["frames"] for report in error.reports):
        texts = dict.fromkeys(report["text"] for report in error.reports)
        # If a single rank failed, the others quote its text.
        return "\n".join(text for text in texts if not any(text in other for other in texts if other != text))
    text, _, state = str(error).rpartition("\n")
    longer = "\nIf the work only needs longer, give --timeout more seconds." if "`timeout=`" in state else ""
    return f"{text or state}{longer}"
