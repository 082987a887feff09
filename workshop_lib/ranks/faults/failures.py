"""What to say when a call does not end well, and whether the ranks can take the next call."""

import time
from signal import SIGINT, SIGUSR2
from typing import NoReturn

from workshop_lib.ranks.call import engine
from workshop_lib.ranks.call.call import Call
from workshop_lib.ranks.call.messages import Frame
from workshop_lib.ranks.launch import limits

from .losses import ERRORS_SHOWN, places
from .rank_errors import DEADLOCK, RankError, is_communicating, listed, named, traceback_text
from .standstill import Standstill

GRACE_S = 0.1  # from the failure of one rank to the first look at where the others are
LOOK_AGAIN_S = 0.4
STILL_S = 0.2  # how long ranks wait at one place before it counts, if messages on their way would be noticed
STILL_UNNOTICED_S = 0.7  # the same, if messages on their way would not be noticed
TELL_AFTER_S = 0.6  # what a rank raised is shown before the others have ended, if they need longer than this
STILL_LIMIT_S = 10.0  # time for ranks that compute or sleep to end by themselves after one has failed
INTERRUPT_LIMIT_S = 2.0
MPI_LIMIT_S = 0.5  # an interrupt has no effect on a rank inside MPI; an operation under way may end in this time
COMPILED_LIMIT_S = 3.0  # compiled code must first return, if it can
STOP_LIMIT_S = 1.5  # time for a call that stops when asked to, at a step that all ranks agree on
CHECK_LIMIT_S = 30.0  # time for busy ranks to join the check of whether all ranks are in step
CHECK_LOOK_EVERY_S = 1.5
CHECK_LOOKS = 3
TOGETHER_EVERY_S = 0.5  # time between two looks at ranks that all run, at first and while all of them wait
TOGETHER_MOST_S = 3.0  # the longest time between two looks, while one of the ranks does something
ALONE_S = 1.3  # how long a rank that runs a cell without the others waits at one place before it counts
DEADLOCK_S = 2.5  # how long all ranks wait for each other, and none moves, before that is said to be a deadlock
NOTICE_S = 5.0
KEEP_RESULT = "*Stop*, the button beside its progress, ends it too, and keeps its result."
USELESS = "These ranks cannot be used any more."
READY = "The ranks are still in step and ready for the next cell."
OUT_OF_STEP = "some ranks had sent messages that others never received"
NO_ANSWER = f"the ranks were still busy {CHECK_LIMIT_S:.0f} s later, so whether they match is unknown"


class AfterAFailure:
    """Watches ranks that still run after one has failed: do they wait for that rank, or can they end by themselves?

    A rank that stays inside one collective while nothing moves waits for a rank that will not come. A rank that
    computes or sleeps may end by itself, or go on to a collective; after STILL_LIMIT_S it is interrupted.
    """

    def __init__(self, call: Call):
        self.call = call
        self.began = time.monotonic()
        self.next_look = time.monotonic() + GRACE_S
        self.standstill = Standstill(call)
        self.is_told = False

    def look(self) -> list[str]:
        """Give the ranks up and raise RankError once the others cannot end by themselves. Returns lines to show."""
        if not self.call.running or time.monotonic() < self.next_look:
            return []
        self.standstill.look()
        enough_s = STILL_S if self.standstill.knows_activity else STILL_UNNOTICED_S
        if self.standstill.all_still_s >= enough_s:
            raise_stuck(self.call, self.standstill.stacks)
        self.next_look = time.monotonic() + LOOK_AGAIN_S
        elapsed_s = time.monotonic() - self.began
        if elapsed_s > STILL_LIMIT_S:
            self._interrupt()
        if self.is_told or elapsed_s < TELL_AFTER_S or not self.call.running:
            return []
        self.is_told = True
        waits = f"Waiting up to {STILL_LIMIT_S:.0f} s for {named(self.call.running)} to end as well."
        return [*errors_text(self.call).splitlines(), waits]

    def _interrupt(self) -> None:
        late = self.call.running
        self.call.signal(SIGINT)
        if not self.call.wait(INTERRUPT_LIMIT_S):
            raise_stuck(self.call, self.call.stacks())
        for rank in late:
            if "error" in self.call.outcomes[rank]:
                what = f"was still running {STILL_LIMIT_S:.0f} s later and was interrupted"
                self.call.outcomes[rank]["error"]["what"] = what


class NoneHasFailed:
    """Watches ranks none of which has failed: does each of them wait for another one, so that none can go on?

    The call is ended only if that's certain. If the ranks may be in one long operation, a notice says where they are.
    But ranks that run a cell without the others, and wait, are likely to wait for a rank that never comes.
    """

    def __init__(self, call: Call):
        self.call = call
        self.standstill = Standstill(call)
        self.pause_s = TOGETHER_EVERY_S
        self.next_look = time.monotonic() + self.pause_s
        self.signs: tuple | None = None  # what ranks have sent, and published
        self.has_noticed = False

    def look(self) -> list[str]:
        """Give the ranks up and raise RankError if they wait for each other. Returns lines to show, if any."""
        if not self.call.running or time.monotonic() < self.next_look:
            return []
        still_s = 0.0
        if self._moves():  # so there is no need to disturb the ranks
            self.standstill = Standstill(self.call)
        else:
            self.standstill.look()
            still_s = self.standstill.all_still_s
        alone = len(self.call.ranks) < self.call.team.n
        # Several ranks may have a communicator of their own, so they get more time.
        if alone and still_s >= (ALONE_S if len(self.call.ranks) == 1 else NOTICE_S):
            places = _where(self.call, self.standstill.stacks)
            _raise_alone(self.call, f"cannot go on: the others do not run this cell.\n{places}")
        if still_s >= DEADLOCK_S and self.standstill.is_certain and not alone:
            raise_deadlock(self.call, self.standstill, still_s)
        self.pause_s = TOGETHER_EVERY_S if still_s else min(TOGETHER_MOST_S, 1.5 * self.pause_s)
        self.next_look = time.monotonic() + self.pause_s
        if still_s < NOTICE_S or self.has_noticed or alone:
            return []
        self.has_noticed = True
        places = _where(self.call, self.standstill.stacks)
        advice = "They may be in one long operation. If they shouldn't be, interrupt the cell."
        return [f"All ranks have waited for each other for {still_s:.0f} s:", *places.splitlines(), advice]

    def _moves(self) -> bool:
        """Whether ranks have sent each other or published something since this was asked last."""
        before = self.signs
        published = [list(values.values()) for values in self.call.published()]
        self.signs = (self.call.activity().segments, published)
        return before is not None and before != self.signs


def check_alone(call: Call) -> None:
    """Give all ranks up and raise RankError if ranks that ran a cell alone have begun a collective with the others.

    The cell may end all the same, because the root of a broadcast can leave it before the other ranks join.
    """
    if not (in_step := still_in_step(call, allow_unreceived=True)):
        joined = "took part in a collective that the others never joined."
        _raise_alone(call, f"ran the cell, but {NO_ANSWER}." if in_step is None else joined)


def _raise_alone(call: Call, what: str) -> NoReturn:
    who = named(call.ranks)
    trouble = f"{who} alone took part in a collective or waited for a message"
    _give_up(call, trouble, f"{who} {what}\nName every rank that takes part, or leave out --on. ")


def _give_up(call: Call, trouble: str, text: str, advice: str = "") -> NoReturn:
    """Stop ranks that can no longer be used, and raise RankError with this text, followed by what to do."""
    remedy = call.team.remedy
    call.team.give_up(trouble)
    error = RankError(f"{text}{USELESS} {remedy}{advice}")
    error.what = text.strip()
    raise error


def _where(call: Call, stacks: dict[int, list[Frame]], still: str = "") -> str:
    """Where these ranks are, as lines for a message."""
    return places(call.team, stacks, call.stopped(), still)


def raise_stuck(call: Call, stacks: dict[int, list[Frame]]) -> NoReturn:
    text = f"{errors_text(call)}\nMeanwhile:\n{_where(call, stacks, still='still ')}\n"
    _give_up(call, "a rank failed while others waited for it", text)


def raise_deadlock(call: Call, standstill: Standstill, still_s: float) -> NoReturn:
    text = f"{DEADLOCK}: every rank waits for another one, and nothing has moved for {still_s:.0f} s{_ended(call)}:\n"
    text += f"{_where(call, standstill.stacks)}\n"
    if why := standstill.explanation():
        text += f"{why}\n"
    _give_up(call, "they waited for each other", text)


def _ended(call: Call) -> str:
    ended = [rank for rank in call.ranks if rank not in call.running]
    return f" (ended already: {listed(ended)})" if ended else ""


def raise_timeout(call: Call, timeout_s: float) -> NoReturn:
    if errors_text(call):  # an error on a rank says more than the timeout does
        raise_stuck(call, call.stacks())
    text = f"not finished after {timeout_s:g} s{_ended(call)}:\n{_where(call, call.stacks())}\n"
    longer = " If the work only needs longer, give `timeout=` more seconds."
    _give_up(call, f"a call did not end within {timeout_s:g} s", text, longer)


def raise_failed(call: Call) -> NoReturn:
    """Raise RankError after all ranks have ended, some with an error; it says whether the ranks can still be used."""
    errors = errors_text(call)
    try:
        in_step = still_in_step(call)
    except RankError as lost:
        raise RankError(f"{errors}\nAfter that, {lost}") from None
    if in_step:
        raise RankError(f"{errors}\n{READY}")
    why = NO_ANSWER if in_step is None else OUT_OF_STEP
    _give_up(call, f"after an error {why}", f"{errors}\n{why[0].upper()}{why[1:]}. ")


def still_in_step(call: Call, allow_unreceived: bool = False) -> bool | None:
    """Whether the ranks still match each other; None if busy ranks do not join the check.

    allow_unreceived: whether messages from one rank to another may still wait to be received.

    It proves nothing if no rank answers for a while: the machine may be busy, or a thread may hold the interpreter. Two
    things prove that the ranks do not match: one rank says so, or all ranks that have not answered are stuck inside the
    check. Raises RankError if a rank has ended.
    """
    check = call.follow_up(engine.in_step, int(time.time()), allow_unreceived)
    looks = 0
    deadline = time.monotonic() + CHECK_LIMIT_S
    next_look = time.monotonic() + CHECK_LOOK_EVERY_S
    while not check.wait(0.1) and time.monotonic() < deadline:
        if not all(outcome.get("value") for outcome in check.outcomes.values()):
            return False
        if time.monotonic() > next_look:
            names = [[frame["name"] for frame in frames] for frames in check.stacks().values()]
            inside = all(engine.in_step.__name__ in each for each in names)
            looks = looks + 1 if inside else 0
            next_look = time.monotonic() + CHECK_LOOK_EVERY_S
        if looks == CHECK_LOOKS:
            return False
    return None if check.running else all(outcome.get("value") for outcome in check.outcomes.values())


def raise_interrupted(call: Call, stops_when_asked: bool = False) -> NoReturn:
    """Interrupt the ranks after the learner pressed stop, and raise RankError. Restart unusable ranks first."""
    keep = f" {KEEP_RESULT}" if stops_when_asked else ""
    stacks: dict[int, list[Frame]] = {}
    try:
        if stops_when_asked:  # all ranks agree on a step, so none is left inside a collective
            call.signal(SIGUSR2)
            call.wait(STOP_LIMIT_S)
        call.signal(SIGINT)
        ended = call.wait(MPI_LIMIT_S)
        if not ended:
            stacks = call.stacks()
        if not ended and not any(is_communicating(frames) for frames in stacks.values()):
            ended = call.wait(INTERRUPT_LIMIT_S + COMPILED_LIMIT_S - MPI_LIMIT_S)
            stacks = call.stacks()
        in_step = still_in_step(call) if ended else None
    except RankError as lost:
        raise RankError(f"interrupted, and {lost}") from None
    if in_step:
        raise RankError(f"interrupted. The ranks stopped what they did and are ready for the next cell.{keep}")
    why = f"interrupted. But {NO_ANSWER if in_step is None else OUT_OF_STEP}."
    if not ended:
        why = f"interrupted, but not every rank could be:\n{_where(call, stacks)}"
    team = call.team
    if team.attached_only:
        _give_up(call, "they could not be interrupted", f"{why}\n")
    empty = team.empty_memory
    team.restart()
    raise RankError(f"{why}\nFresh ranks were started. {empty}{keep}")


def errors_text(call: Call) -> str:
    """The errors in the order in which they arrived, each one once, with all ranks that raised it.

    The last line names limits of this host that may be the cause.
    """
    ranks_by_text: dict[str, list[int]] = {}
    for rank, outcome in call.outcomes.items():
        if error := outcome.get("error"):
            ranks_by_text.setdefault(f"{error['what']}:\n{traceback_text(error)}", []).append(rank)
    blocks = [f"{named(sorted(ranks))} {text}" for text, ranks in ranks_by_text.items()]
    if len(blocks) > ERRORS_SHOWN:
        rest = [rank for ranks in list(ranks_by_text.values())[ERRORS_SHOWN:] for rank in ranks]
        blocks = [*blocks[:ERRORS_SHOWN], f"{named(sorted(rest))} raised other errors"]
    text = "\n".join(blocks)
    return f"{text}\n{limits.behind(text)}".rstrip()
