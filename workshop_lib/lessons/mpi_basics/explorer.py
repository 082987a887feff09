"""The deadlock explorer of 01_mpi_basics: run a small MPI program in every order in which its messages can match.

    explore(program, ranks=3)

Ranks interact only through messages, so only two things can change what a run does: which message a receive from any
source takes, and whether a send waits for its receiver (rendezvous) or MPI buffers it and returns (eager). Everything
else may happen in any order with the same result, so the explorer tries only one order of it. The method is that of ISP
(A. Vo et al., Formal Verification of Practical MPI Programs, PPoPP 2009). All orders are tried twice: once all sends
wait, and once none does. Without receives from any source, a program that ends in the first case always ends (S. Siegel
and G. Avrunin, Analysis of MPI Programs, 2003).
"""

import io
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from mpi4py import MPI

from workshop_lib.errors import InputError
from workshop_lib.judge import alike
from workshop_lib.lessons.mpi_basics.fake_mpi import FakeStatus, FakeWorld, Request
from workshop_lib.lessons.mpi_basics.schedule import Choice, Schedule

RUNS = 1000
LIMIT_S = 6.0
LARGEST = 4
ROUNDING = 1e-9  # how much results may differ between orders, as a fraction of the largest
NOT_REPEATED = (
    "{} did something else when it ran again in the same order, so its orders can't be explored. Does it use the "
    "clock, random numbers without a seed, or a variable from outside that it changes?"
)
# The kinds of failures, the worst first.
HEADLINES = {
    "mismatch": "The ranks' collectives don't match",
    "deadlock": "Deadlock",
    "error": "A rank fails",
    "endless": "A rank doesn't get to its end",
    "stuck": "Deadlock when sends wait for their receivers",
    "race": "The result depends on whose message comes first",
}
UNNOTICED = " It may go unnoticed with small messages: MPI can copy those into a buffer and let the sender go on."


@dataclass
class Exploration:
    """The result of exploring a program.

    kind: "" if no run failed, else a key of HEADLINES. headline: the verdict; text: the details. orders: how many ways
    of matching messages and receives were tried; complete: whether there are no others. run: the first run that fails
    like this, or the first run. results: what each rank returned in the first run without a failure.
    """

    kind: str
    headline: str
    text: str
    orders: int
    complete: bool
    run: Schedule
    notes: list[str] = field(default_factory=list)
    results: list = field(default_factory=list)

    def __str__(self) -> str:
        return " ".join([f"{self.headline}.", self.text, *self.notes]).strip()


def explore(program: Callable, ranks: int = 2, runs: int = RUNS) -> Exploration:
    """Run `program(comm)` on 1 to 4 ranks in this process, in up to `runs` orders, for up to LIMIT_S seconds.

    The program makes its own data. What it returns should be the same in every order, and what it prints is not shown.
    Raises InputError for wrong arguments and for calls that the explorer does not know, and NotImplementedError if the
    program raises it.
    """
    if not callable(program):
        raise InputError(f"explore takes a function with one argument, the communicator, not {program!r}.")
    if isinstance(ranks, bool) or ranks not in range(1, LARGEST + 1):
        raise InputError(f"the explorer runs 1 to {LARGEST} ranks, not {ranks!r}: set `ranks=`.")
    end = time.monotonic() + LIMIT_S
    tried: list[Schedule] = []
    complete = True
    with redirect_stdout(io.StringIO()):
        for run in search(program, ranks):
            tried.append(run)
            if run.kind == "endless":
                break
            if len(tried) == 1:
                again = next(search(program, ranks))
                if again.text != run.text or _apart(run, again) is not None:
                    raise InputError(NOT_REPEATED.format(program.__name__))
            if len(tried) == runs or time.monotonic() > end:
                complete = False
                break
    return judge(tried, complete)


def search(program: Callable, size: int) -> Iterator[Schedule]:
    """Run the program once for each set of choices, breadth first, so that the first of many runs differ.

    What a program does next depends on which choices were made, not on their order, so only one run continues from each
    set of choices.
    """
    paths: deque[tuple[bool, list[Choice]]] = deque([(False, []), (True, [])])
    seen: set[tuple[bool, frozenset[Choice]]] = set()
    while paths:
        buffers, path = paths.popleft()
        fakes: dict[str, Any] = {"COMM_WORLD": FakeWorld(), "Request": Request, "Status": FakeStatus}
        with patch.multiple(MPI, **fakes), Schedule(program, size, buffers) as run:
            for choice in path:
                if choice not in run.advance():
                    raise InputError(NOT_REPEATED.format(program.__name__))
                run.take(choice)
            while options := run.advance():
                sets = {choice: (buffers, frozenset([*run.taken, choice])) for choice in options}
                new = [choice for choice in options if sets[choice] not in seen]
                if not new:
                    break
                seen |= set(sets.values())
                paths += [(buffers, [*run.taken, choice]) for choice in new[1:]]
                run.take(new[0])
        if not options:
            yield run


def judge(tried: Sequence[Schedule], complete: bool) -> Exploration:
    """Return the verdict on a program, given its runs."""
    ended = [run for run in tried if not run.kind]
    results = [rank.value for rank in ended[0].ranks] if ended else []
    kinds = ["stuck" if run.kind == "deadlock" and not run.buffers else run.kind for run in tried]
    kinds = [
        "race" if not run.kind and _apart(ended[0], run) is not None else kind
        for run, kind in zip(tried, kinds, strict=True)
    ]
    by_order = [frozenset(run.taken) for run in tried]
    orders = len(set(by_order))
    for kind, headline in HEADLINES.items():
        if kind not in kinds:
            continue
        worst = tried[kinds.index(kind)]
        failed = len({order for order, its_kind in zip(by_order, kinds, strict=True) if its_kind == kind})
        if failed < orders and kind != "race":
            headline += f", in {failed} of {orders} orders"
        text = _says_race(ended[0], worst) if kind == "race" else f"{worst.text.removesuffix('.')}."
        text = text[0].upper() + text[1:] + (UNNOTICED if kind == "stuck" else "")
        return Exploration(kind, headline, text, orders, complete, worst, results=results)
    headline = "No order fails"
    text = "There is only one, because every receive names its source."
    if not complete:
        headline = f"No order fails among the {orders:,} tried"
        text = "There are more, which weren't tried."
    elif orders > 1:
        text = f"There are {orders:,}. All were tried, with sends that wait and sends that don't."
    return Exploration("", headline, text, orders, complete, ended[0], ended[0].never_waited_for, results)


def _says_race(one: Schedule, other: Schedule) -> str:
    rank = _apart(one, other) or 0
    pair = [" ".join(repr(run.ranks[rank].value).split()) for run in (one, other)]
    texts = [text if len(text) < 50 else text[:47] + "…" for text in pair]
    return f"rank {rank} returns {texts[0]} in one order, and {texts[1]} in another."


def _apart(one: Schedule, other: Schedule) -> int | None:
    """Return the first rank whose result differs between two runs; None if there is none."""
    pairs = zip(one.ranks, other.ranks, strict=True)
    return next((a.number for a, b in pairs if not alike(a.value, b.value, ROUNDING)), None)
