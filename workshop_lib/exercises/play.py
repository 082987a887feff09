"""Exercises that are judged by a play: what a function does, beside what the notebook's solution does.

    def play_largest(largest, comm):
        value = largest(comm, -comm.rank)
        yield "it is the largest of all values, on every rank", value

A play is a generator that shows a function off, with the learner's function and with the notebook's own solution, on
every rank. It yields what must hold, the most basic first, with the value that shows it. The first value that differs
from the solution's on some rank fails the exercise, so a play never says what is right. It makes the same calls, and
yields as often, for a wrong function as for the solution.

A step is a tuple (text, value), or with more to say (text, value, observed, advice):

    observed    a sentence on what this rank observed; or words such as "after round 2", which the value and the
                solution's complete to a sentence
    advice      what to do if no known mistake explains the failure; by default, the exercise's `unknown`

Consecutive steps with the same text are one property. All of them are played before it fails, because their values
together tell known mistakes apart. What comes after a property that fails is not played.

Each result of the function must have the form of the solution's result, and the function leaves its arguments alone
unless the solution changes them, too. So a play may rely on both.
"""

import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from workshop_lib.exercises.forms import described, fits, plain
from workshop_lib.exercises.judge import ROUNDING, SHOWN, Edit, Exercise, Property, alike, is_number, shown
from workshop_lib.exercises.solutions import Solution

DIGITS = (4, 6, 8, 12)  # the digits with which values are shown: the fewest that tell them apart
# NumPy and PyTorch keep up to KEPT freed blocks of each size up to SMALL_BYTES for their next arrays.
SMALL_BYTES = 1024
KEPT = 8
Play = Callable[[Callable, Any], Iterator[tuple]]


class Step(NamedTuple):
    """What a play yields."""

    text: str
    value: Any
    observed: str = ""
    advice: str = ""


@dataclass
class Played:
    """A play on one rank, up to the first property that fails on some rank.

    held: the texts of the properties that hold. failed: the values of the one that fails; None if none does.
    wrong: the first step of that one which is wrong on this rank, if one is.
    """

    held: list[str]
    failed: list | None = None
    wrong: Step | None = None


def _overwrite_freed_memory() -> None:
    """Overwrite what the solution's small arrays have left in memory.

    A new array may get that memory. An answer that never writes into its array would then return the right values.
    """
    torch = sys.modules.get("torch")
    for nbytes in range(8, SMALL_BYTES + 1, 8):
        _kept = [np.full(nbytes, 0xFE, np.uint8) for _ in range(KEPT)]
        if torch is not None:
            _kept += [torch.full((nbytes,), 0xFE, dtype=torch.uint8) for _ in range(KEPT)]


def played(
    name: str,
    notebook: str,
    play: Play,
    edits: Sequence[Edit] = (),
    *,
    returns: str = "",
    in_place: bool = False,
    rounding: float = ROUNDING,
    communicates: bool = True,
    watched: bool = True,
    group_of: int = 1,
    ready: Callable[[], None] | None = None,
    **options: Any,
) -> Exercise:
    """The exercise `name` of a notebook, judged by a play and by edits of the notebook's solution.

    returns: what the function returns, in words that complete "It should `return` an array of 4: …".
    in_place: whether the function may change its arguments. Those that the solution changes may be changed anyway.
    rounding: how much values may differ from the solution's, as a fraction of the largest.
    watched: whether results' forms and arguments are compared with the solution's, call by call. A function that is
    called in another order each time cannot be watched.
    The other options are those of Exercise. `comm` is None if it doesn't communicate.
    """
    solution = Solution(notebook, name)
    return Exercise(
        name,
        Playing(play, solution, watched, returns, in_place, rounding),
        properties,
        edits,
        notebook,
        compared=True,
        communicates=communicates,
        group_of=group_of if communicates else 0,
        ready=functools.partial(_get_ready, solution, ready),
        **options,
    )


def _get_ready(solution: Solution, ready: Callable[[], None] | None) -> None:
    """Runs on every rank before the clock of a check starts, since a solution may import PyTorch."""
    if ready is not None:
        ready()
    solution.load()


@dataclass(frozen=True)
class Playing:
    """Plays a function beside the solution on one rank; this is what such an exercise observes."""

    play: Play
    solution: Solution
    watched: bool
    returns: str
    in_place: bool
    rounding: float

    def __call__(self, comm, function: Callable) -> Played:
        """The play with the function, beside the same play with the solution."""
        solution = self.solution.load()
        calls = Calls(comm, solution, self.returns, self.in_place)
        if self.watched and not inspect.isclass(solution):
            solution, function = calls.of_solution, calls.beside_solution(function)
        right = [_step(each) for each in self.play(solution, comm)]
        _overwrite_freed_memory()
        played = self._up_to_a_failure(self.play(function, comm), right, calls)
        calls.end()
        return played

    def _up_to_a_failure(self, play: Iterator[tuple], right: list[Step], calls: "Calls") -> Played:
        held: list[str] = []
        try:
            for text, expected_steps in itertools.groupby(right, key=lambda step: step.text):
                values = []
                wrong = None
                for expected in expected_steps:
                    step = _step(next(play, ()))
                    values.append(step.value)
                    if wrong is None and not alike(step.value, expected.value, self.rounding):
                        wrong = step._replace(observed=calls.sentence(step, expected.value))
                if calls.on_some_rank(wrong is not None):
                    return Played(held, values, wrong)
                held.append(text)
        except Unlike as unlike:
            value = unlike.wrong.value if unlike.wrong else None
            return Played(held, [value], unlike.wrong)
        return Played(held)


def _step(yielded: tuple) -> Step:
    step = Step(*yielded)
    return step._replace(value=plain(step.value))


def properties(observations: list[Played]) -> Iterator[Property]:
    """Yield the properties that hold on all ranks, and then the one that fails on some rank, if one does."""
    first = observations[0]
    yield from (Property(text, True) for text in first.held)
    if first.failed is not None:
        wrong = next(each.wrong for each in observations if each.wrong is not None)
        evidence = (len(first.held), [each.failed for each in observations])
        yield Property(wrong.text, False, evidence=evidence, observed=wrong.observed, advice=wrong.advice)


class Unlike(Exception):
    """Ends a play, on all ranks after the same call, because a result or an argument is not like the solution's."""

    def __init__(self, wrong: Step | None):
        self.wrong = wrong  # what is wrong on this rank


class Calls:
    """The calls that a play makes: first those of the solution, then those of another function beside them."""

    def __init__(self, comm, solution: Callable, returns: str, in_place: bool):
        self._who = "it" if comm is None else f"rank {comm.rank}"
        self._agreeing = comm and comm.Dup()  # never gets a message that a function has left unreceived
        self._solution = solution
        self._returns = returns
        self._in_place = in_place
        self._right: list[tuple[Any, list[str]]] = []  # the result and the changed arguments of each call

    def end(self) -> None:
        """Give the ranks' own communicator back, since an MPI library has a limited number of them."""
        if self._agreeing is not None:
            self._agreeing.Free()

    def sentence(self, step: Step, right: Any) -> str:
        """What a step observed, as a sentence."""
        if step.observed.endswith((".", ":")) or isinstance(right, bool):
            return step.observed
        beginning = f"{step.observed}, " if step.observed else ""
        verb = "gives" if self._agreeing is None else "has"
        got, right = beside(step.value, right)
        return f"{beginning}{self._who} {verb} {got} where {right} is right."

    def on_some_rank(self, wrong: bool) -> bool:
        """Whether something is wrong on some rank. All ranks call this, so that they go on or stop together."""
        return wrong if self._agreeing is None else any(self._agreeing.allgather(wrong))

    @property
    def of_solution(self) -> Callable:
        """The solution, which notes its calls."""

        @functools.wraps(self._solution)
        def call(*args, **kwargs):
            result, changed = self._call(self._solution, args, kwargs)
            self._right.append((plain(result), changed))
            return result

        return call

    def beside_solution(self, function: Callable) -> Callable:
        """The function, which raises Unlike after a call if its result or its arguments are not like the solution's."""
        calls = iter(self._right)

        def call(*args, **kwargs):
            right, may_change = next(calls)
            result, changed = self._call(function, args, kwargs)
            wrong = self._wrong(plain(result), right, [name for name in changed if name not in may_change])
            if self.on_some_rank(wrong is not None):
                raise Unlike(wrong)
            return result

        return call

    def _call(self, function: Callable, args: tuple, kwargs: dict) -> tuple[Any, list[str]]:
        """The result of a call, and the names of the arguments that it changed."""
        given = inspect.signature(self._solution).bind(*args, **kwargs).arguments
        before = plain(dict(given))
        result = function(*args, **kwargs)
        after = plain(dict(given))
        return result, [name for name in before if not alike(after[name], before[name], 0)]

    def _wrong(self, result: Any, right: Any, changed: list[str]) -> Step | None:
        """What is wrong with a result's form or with changed arguments, as a step of the play."""
        if not fits(result, right):
            form = described(right)
            should = f"It should `return` {form}: {self._returns}." if self._returns else f"It should `return` {form}."
            if result is None:
                should = f"{should} `print` only shows a value; `return` hands it back."
            returned = shown(result) if is_number(result) else described(result)
            observed = f"{self._who} returned {returned}."
            return Step(f"it returns {self._returns or form}", described(result), observed, should)
        if changed and not self._in_place:
            observed = f"it changes `{changed[0]}`, which it was given."
            advice = "Work on a copy, or make a new one: `a + b` is a new array, and `a += b` changes `a`."
            return Step("its arguments are left alone", changed[0], observed, advice)
        return None


def beside(got: Any, right: Any) -> tuple[str, str]:
    """Texts that show two values beside each other.

    For arrays that begin alike, this is the first element that differs. For dictionaries with the same keys, it is the
    first entry that differs. Numbers that differ have enough digits to look different.
    """
    if isinstance(got, dict) and isinstance(right, dict) and got.keys() == right.keys():
        key = next((key for key in right if not alike(got[key], right[key])), next(iter(right)))
        got, right = beside(got[key], right[key])
        return f"{key} = {got}", right
    if isinstance(got, np.ndarray) and isinstance(right, np.ndarray):
        if got.shape != right.shape:
            return described(got), described(right)
        first = int(np.argmax(~np.isclose(got, right, rtol=ROUNDING, atol=0)))
        if first >= SHOWN:
            at = first if got.ndim == 1 else [int(index) for index in np.unravel_index(first, got.shape)]
            got_text, right_text = beside(got.flat[first], right.flat[first])
            return f"{got_text} at {at}", right_text
        differ = slice(first, first + 1)
        digits = _digits(got.ravel()[differ], right.ravel()[differ])
    else:
        digits = _digits(got, right)
    return shown(got, digits), shown(right, digits)


def _digits(got: Any, right: Any) -> int:
    """How many digits tell these values apart, if they can."""
    return next((digits for digits in DIGITS if shown(got, digits) != shown(right, digits)), DIGITS[0])
