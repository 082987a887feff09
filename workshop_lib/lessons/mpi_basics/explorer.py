"""The deadlock explorer of 01_mpi_basics: run a small MPI program in every order in which its messages can match.

    explore(program, ranks=3)

Ranks interact only through messages, so only two things can change what a run does: which message a receive from any
source takes, and whether a send waits for its receiver (rendezvous) or MPI buffers it and returns (eager). Everything
else may happen in any order with the same result, so the explorer tries only one order of it. The method is that of ISP
(A. Vo et al., Formal Verification of Practical MPI Programs, PPoPP 2009). Here buffering is a choice, too, because it
can add deadlocks (S. Vakkalanka et al., Precise Dynamic Analysis for Slack Elasticity, EuroMPI 2010). If no receive
takes messages from any source, the run in which every send waits is enough to rule out deadlock (S. Siegel and
G. Avrunin, Analysis of MPI Programs, 2003).
"""

import contextlib
import io
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from workshop_lib.errors import InputError
from workshop_lib.judge import alike
from workshop_lib.lessons.mpi_basics.fake_mpi import replaced_mpi
from workshop_lib.lessons.mpi_basics.rank_thread import RankThread
from workshop_lib.lessons.mpi_basics.schedule import Choice, RunOutcome, Schedule
from workshop_lib.lessons.mpi_basics.schedule_report import Picture

RUNS = 1000
LIMIT_S = 6.0
LARGEST = 4
ROUNDING = 1e-9  # how much results may differ between orders, as a fraction of the largest
WORST_FIRST = ("mismatch", "message", "deadlock", "error", "endless", "reuse", "stuck", "race")
NOT_REPEATED = (
    "{} did something else when it ran again in the same order, so its orders can't be explored. Does it use the "
    "clock, random numbers without a seed, or a variable from outside that it changes?"
)
STUCK = {
    "send": (
        "Deadlock when sends wait for their receivers",
        "It may go unnoticed with small messages: MPI can copy those into a buffer and let the sender go on.",
    ),
    "collective": (
        "Deadlock when a collective waits for all ranks",
        "It may go unnoticed: MPI can let a rank leave some collectives before the others have come.",
    ),
}
HEADLINES = {
    "mismatch": "The ranks' collectives don't match",
    "message": "A message doesn't fit where it's received",
    "deadlock": "Deadlock",
    "error": "A rank fails",
    "endless": "A rank doesn't get to its end",
    "reuse": "An array is used while a message is under way",
    "race": "The result depends on whose message comes first",
}


@dataclass
class Exploration:
    """The result of exploring a program.

    kind: "" if no run failed, else one of WORST_FIRST. headline: the verdict; text: the details. orders: how many ways
    of matching messages and receives were tried; failed: how many of them show this fault; complete: whether there are
    no others. runs: how many runs that took, because sends may wait or not. results: what each rank returned in the
    first run without a failure.
    """

    kind: str
    headline: str
    text: str
    orders: int = 1
    failed: int = 0
    complete: bool = True
    runs: int = 1
    picture: Picture | None = None
    notes: list[str] = field(default_factory=list)
    results: list = field(default_factory=list)

    def __str__(self) -> str:
        return " ".join([f"{self.headline}.", self.text, *self.notes]).strip()


def explore(program: Callable, ranks: int = 2, runs: int = RUNS) -> Exploration:
    """Run `program(comm)` on 1 to 4 ranks in this process, in up to `runs` orders, for up to LIMIT_S seconds.

    The program makes its own data. What it returns or prints should be the same in every order. Raises InputError for
    wrong arguments and for calls that the explorer does not know, and NotImplementedError if the program raises it.
    """
    if not callable(program):
        raise InputError(f"explore takes a function with one argument, the communicator, not {program!r}.")
    if isinstance(ranks, bool) or ranks not in range(1, LARGEST + 1):
        raise InputError(f"the explorer runs 1 to {LARGEST} ranks, not {ranks!r}: set `ranks=`.")
    began = time.monotonic()
    with replaced_mpi(program), contextlib.redirect_stdout(_ByRank(sys.stdout)):
        search = OrderSearch(program, ranks)
        first = search.run_next()
        outcomes = [first] if first else []
        if first and first.kind != "endless":
            outcomes += search.check_again(first)
            while search.open and search.runs < runs and time.monotonic() - began < LIMIT_S:
                if outcome := search.run_next():
                    outcomes.append(outcome)
                    if outcome.kind == "endless":
                        break
    verdict = judge(outcomes, complete=not search.open)
    verdict.runs = search.runs
    return verdict


class OrderSearch:
    """The runs that have been done, and the choices that are still open.

    A run is a sequence of choices. What a program does next depends on which choices were made, not on their order, so
    only one run continues from each set of choices.
    """

    def __init__(self, program: Callable, size: int):
        self.program = program
        self.size = size
        self.runs = 0
        self.open: list[tuple[Choice, ...]] = [()]
        self.seen: set[frozenset[Choice]] = set()
        self._first: tuple[Choice, ...] = ()
        self._random = random.Random(0)  # draws the next run, so that the first of many differ

    def run_next(self) -> RunOutcome | None:
        """Do a new run and return its outcome; None if it reached choices from which another run continues."""
        path = self.open.pop(self._random.randrange(len(self.open)))
        with Schedule(self.program, self.size) as schedule:
            taken = self._repeat(schedule, path)
            while options := self._worthwhile(schedule, taken):
                new = [choice for choice in options if frozenset((*taken, choice)) not in self.seen]
                if not new:
                    break
                self.seen |= {frozenset((*taken, choice)) for choice in new}
                now = new.pop(self._random.randrange(len(new)) if self.runs else 0)
                self.open += [(*taken, choice) for choice in new]
                schedule.take(now)
                taken.append(now)
        if not schedule.over:
            return None
        self._first = self._first if self.runs else tuple(taken)
        self.runs += 1
        schedule.outcome.order = frozenset(choice for choice in taken if choice.sender is not None)
        return schedule.outcome

    def _worthwhile(self, schedule: Schedule, taken: Sequence[Choice]) -> list[Choice]:
        """Run up to the next choice and return the options that are worth trying.

        When a rank has just left a call early and this changed nothing for the other ranks, only the rank's own next
        step is worth trying. The other ranks' steps could just as well come before, and they are tried there.
        """
        before = schedule.options
        matched = schedule.matched
        options = schedule.advance()
        if not taken or taken[-1].sender is not None or not options or schedule.matched > matched:
            return options
        mine = [choice for choice in options if choice.sender is None and choice.rank == taken[-1].rank]
        return options if set(options) - set(before) - set(mine) else mine

    def _repeat(self, schedule: Schedule, path: Sequence[Choice]) -> list[Choice]:
        for choice in path:
            if choice not in schedule.advance():
                raise InputError(NOT_REPEATED.format(self.program.__name__))
            schedule.take(choice)
        return list(path)

    def check_again(self, first: RunOutcome) -> list[RunOutcome]:
        """Repeat the first run, which must give the same result, and check that no array is read too early.

        For this check, a further run changes the values in arrays that a nonblocking receive may still write. If its
        result differs, returns an outcome that says so. Raises InputError if the first run cannot be repeated.
        """
        with Schedule(self.program, self.size) as schedule:
            self._repeat(schedule, self._first)
            schedule.advance()
        again = schedule.outcome
        if (again.kind, again.text) != (first.kind, first.text) or _apart(first, again) is not None:
            raise InputError(NOT_REPEATED.format(self.program.__name__))
        lanes = first.picture.lanes if first.picture else []
        if first.kind or not any(box.name == "Irecv" for lane in lanes for box in lane):
            return []
        with Schedule(self.program, self.size, poison=True) as schedule, contextlib.suppress(InputError):
            self._repeat(schedule, self._first)
            schedule.advance()
        poisoned = schedule.outcome
        rank = _apart(first, poisoned)
        if not poisoned.kind and rank is None and poisoned.results:
            return []
        where = f"rank {rank}" if rank is not None else "a rank"
        text = f"{where} uses the array of an Irecv before it has waited for the message."
        return [RunOutcome("reuse", text, picture=first.picture)]


def judge(outcomes: Sequence[RunOutcome], complete: bool) -> Exploration:
    """Return the verdict on a program, given the outcomes of its runs."""
    ended = [outcome for outcome in outcomes if not outcome.kind]
    kinds = [outcome.kind or ("stuck" if outcome.stuck else "") for outcome in outcomes]
    kinds = [
        "race" if not kind and _apart(ended[0], o) is not None else kind
        for kind, o in zip(kinds, outcomes, strict=True)
    ]
    orders = {outcome.order for outcome in outcomes}
    results, notes = (ended[0].results, ended[0].notes) if ended else ([], [])
    for kind in WORST_FIRST:
        if kind in kinds:
            outcome = outcomes[kinds.index(kind)]
            failed = len({o.order for o, its_kind in zip(outcomes, kinds, strict=True) if its_kind == kind})
            headline, text = _says(kind, outcome, ended[0] if ended else outcome)
            if failed < len(orders) and kind != "race":
                headline += f", in {failed} of {len(orders)} orders"
            picture = outcome.stuck_picture if kind == "stuck" else outcome.picture
            return Exploration(kind, headline, text, len(orders), failed, complete, picture=picture, results=results)
    headline = "No order fails"
    text = "There is only one, because every receive names its source."
    if not complete:
        headline = f"No order fails among the {len(orders):,} tried"
        text = "There are more, which weren't tried."
    elif len(orders) > 1:
        text = f"There are {len(orders):,}. All were tried, with sends that wait and sends that don't."
    return Exploration(
        "", headline, text, len(orders), 0, complete, picture=ended[0].picture, notes=notes, results=results
    )


def _says(kind: str, outcome: RunOutcome, ended: RunOutcome) -> tuple[str, str]:
    """Return the headline and the details of a verdict."""
    if kind == "stuck":
        headline, text = STUCK[outcome.left]
        return headline, f"{_capital(outcome.stuck)}. {text}"
    if kind == "race":
        return HEADLINES[kind], _says_race(ended, outcome)
    return HEADLINES[kind], _capital(outcome.text) + ("." if kind in ("deadlock", "error") else "")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _says_race(one: RunOutcome, other: RunOutcome) -> str:
    rank = _apart(one, other) or 0
    pair = [(each.results[rank], each.printed[rank]) for each in (one, other)]
    texts = [_short(result) for result, _ in pair]
    verb = "returns"
    if texts[0] == texts[1]:
        texts = [_short(printed.strip()) for _, printed in pair]
        verb = "prints"
    return f"Rank {rank} {verb} {texts[0]} in one order, and {texts[1]} in another."


def _short(value: Any) -> str:
    text = " ".join((value if isinstance(value, str) else repr(value)).split())
    return text if len(text) < 50 else text[:47] + "…"


def _apart(one: RunOutcome, other: RunOutcome) -> int | None:
    """Return the first rank whose result or output differs between two runs; None if there is none."""
    pairs = zip(one.results, other.results, one.printed, other.printed, strict=False)
    return next((rank for rank, (a, b, c, d) in enumerate(pairs) if c != d or not alike(a, b, ROUNDING)), None)


class _ByRank(io.TextIOBase):
    """An output stream that keeps what each rank prints, and passes on what any other thread prints."""

    def __init__(self, others: Any):
        self.others = others

    def write(self, text: str) -> int:
        thread = threading.current_thread()
        if isinstance(thread, RankThread):
            thread.printed += text
            return len(text)
        return self.others.write(text)

    def flush(self) -> None:
        self.others.flush()
