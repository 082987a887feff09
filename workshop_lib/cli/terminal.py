"""What a training shows in a terminal, how Ctrl-C ends it, and how errors of ranks are told there."""

import codecs
import io
import os
import signal
import sys
import time
from typing import Any

from workshop_lib.errors import cause
from workshop_lib.ranks import RankError
from workshop_lib.ranks.progress import TextView

INTERRUPTED = 130  # the exit code of what Ctrl-C ended: 128 and the number of SIGINT
ASK_EVERY_S = 1.0
# What stands for a character that the terminal's encoding doesn't have; a "?" for all others.
PLAIN = {"→": "->", "←": "<-", "…": "...", "·": "*", "×": "x", "−": "-", "–": "-", "—": "-", "±": "+-", "²": "^2"}
PLAIN |= {"µ": "u", "‘": "'", "’": "'", "“": '"', "”": '"', "✓": "ok", "✗": "no", "≤": "<=", "≥": ">="}


def plain(error: UnicodeError) -> tuple[str, int]:
    """The error handler of an output stream: what is written instead of characters that it doesn't have."""
    assert isinstance(error, UnicodeEncodeError)
    lost = error.object[error.start : error.end]
    return "".join(PLAIN.get(character, "?") for character in lost), error.end


def prepare_output() -> None:
    """Let nothing that is printed fail: not for a character that the encoding lacks, nor where output was closed."""
    codecs.register_error("workshop", plain)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as this process lives
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="workshop")


def show_error(error: BaseException | str) -> None:
    text = text_of(error) if isinstance(error, BaseException) else error
    print(f"workshop: {text}", file=sys.stderr, flush=True)


class Interrupt:
    """Ctrl-C: once armed, the first one asks a training to stop, and the second ends this process at once.

    As callbacks it is armed from the first step on.
    """

    def __init__(self):
        self.asked, self._before = False, signal.getsignal(signal.SIGINT)

    def arm(self) -> None:
        if self._before is not signal.SIG_IGN:  # as in a script's background
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


class Terminal(TextView):
    """The progress of a training, after notes on what is unusual about it."""

    noted = False

    def update(self, data, elapsed_s, running):
        super().update(data, elapsed_s, running)
        if self.progress.info and not self.noted:
            self.noted = True
            self.output(notes(self.progress.info))


class OfTeam(Terminal):
    """The progress of ranks that were started here; with `show` off, it only passes an interrupt on to them."""

    def __init__(self, n: int, trains: bool = False, *, team: Any, interrupt: Interrupt, show: bool):
        super().__init__(n, trains)
        self.team, self.interrupt, self.show, self.asked_s = team, interrupt, show, 0.0

    def output(self, lines):
        if self.show:
            super().output(lines)

    def update(self, data, elapsed_s, running):
        if self.interrupt.asked and time.monotonic() > self.asked_s + ASK_EVERY_S:
            # Not by stop_requested, which gives the steps under way a few seconds. And more than once: a rank
            # forgets it when its part of the call begins.
            self.asked_s = time.monotonic()
            self.team.send_signal(running, signal.SIGUSR2)
        if self.show:
            super().update(data, elapsed_s, running)


class OfThisRank(Terminal):
    """The same as callbacks, on rank 0 of those that mpiexec started, or on a process alone."""

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
    """What is unusual about a run, given its RunInfo: a line for each."""
    lines = []
    if info["oversubscribed"]:
        lines.append(
            f"The threads of {info['world_size']} ranks are more than the cores here (oversubscribed): they take "
            "turns, so the times say nothing about scaling."
        )
    if info["steps_per_epoch"] == 1:
        lines.append(
            f"Each epoch is a single step: the global batch of {info['global_batch']:,} holds all training samples. "
            "Choose a smaller --batch-size for more steps."
        )
    return lines


def text_of(error: BaseException) -> str:
    """What a terminal says of an error: for a mistake of the user on the ranks the sentence alone, and never what
    notebooks need to know of the ranks' state."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {cause(error)}"
    if not isinstance(error, RankError) or error.reports is None:
        return str(error)
    if error.reports and not any(report["frames"] for report in error.reports):
        texts = dict.fromkeys(report["text"] for report in error.reports)
        # A rank that failed alone is quoted by the others.
        return "\n".join(text for text in texts if not any(text in other for other in texts if other != text))
    text, _, state = str(error).rpartition("\n")
    longer = "\nIf the work only needs longer, give --timeout more seconds." if "`timeout=`" in state else ""
    return f"{text or state}{longer}"
