"""Exercises: what ranks observe of a learner's function, which properties must hold, and the known mistakes.

Each lesson has a `judge` module with its exercises. A notebook calls an `Exercise` with the learner's function, as in
`lesson.check.reduce_scatter(mine)`. Most exercises are made from a play (play.py), one way to observe a function.

    observe(comm, function)     runs on every rank: calls the function, returns an observation (plain data)
    properties(observations)    runs in the notebook on all ranks' observations: yields what must hold, in order
    edits                       known mistakes, as edits of the notebook's solution, each with its hint

The first property that fails ends the check, so later properties may rely on earlier ones. If the failed property has
no hint of its own, the known mistakes are run like the learner's function, and the one that leaves the same evidence
provides the hint. Where that would take too long, every property has a hint, and only the tests run the mistakes.
Nothing that the learner wrote makes a check raise.
"""

import builtins
import html
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np

from workshop_lib import ranks
from workshop_lib.errors import InputError, WorkshopError
from workshop_lib.exercises import exercises, learners_log
from workshop_lib.exercises.did_not_end import hint_for, learners_lines
from workshop_lib.exercises.outdated import is_outdated
from workshop_lib.exercises.solutions import Replacement, Solution
from workshop_lib.machine import kernel
from workshop_lib.words import plural

UNKNOWN_HINT = "none of the known mistakes does this: work out by hand what it should be, for the smallest case."
READY_LIMIT_S = 60.0  # limit for work that is slow only on fresh ranks, such as importing PyTorch
ROUNDING = 1e-5  # how much values may differ, as a fraction of the largest
BESIDE_ZERO = 1e-7  # added to the largest, so that rounding errors beside zeros do not count
SHOWN = 4  # how many elements of an array a hint shows
OUTDATED = "But this is about an earlier version: the cell that you ran last to define it ended with an error."
GROUP_HINT = "Is a number of ranks written into your code, or taken from COMM_WORLD? Take it from `comm.size`."
UNSOLVED = "unsolved"  # what a stub leaves in place of an observation
STUB = ("your code here", "and here")  # how the text of a stub's NotImplementedError begins
NO_KEYBOARD = "A rank has no keyboard, so `input()` can't ask you anything here: use the function's arguments."


class Edit:
    """A known mistake: the solution with texts in it replaced, and the hint for learners who make this mistake.

    Other mistakes may leave the same values. So a hint says what the values show, and asks for the cause if there are
    several.
    """

    def __init__(self, hint: str, *replacements: Replacement):
        self.hint = hint
        self.replacements = replacements


@dataclass(frozen=True)
class Property:
    """Something that must hold of the observations.

    hint: what to do if the property fails; without it, the known mistakes are searched for a hint.
    evidence: the part of the observations that tells mistakes apart if the property fails; by default, all of them.
    observed: a sentence on what was observed, which is shown before the hint of a known mistake.
    advice: what to do if no known mistake explains it; by default, what the exercise has for all such failures.
    """

    text: str
    holds: bool
    hint: str = ""
    evidence: Any = None
    observed: str = ""
    advice: str = ""


class NotPassed(WorkshopError):
    """A verdict other than "correct", as an error, because graders look for errors."""


@dataclass
class Verdict:
    """The result of a check. `passed` is None while the exercise is unsolved; `hint` says what to do about `failed`."""

    name: str
    passed: bool | None = None
    held: list[str] = field(default_factory=list)
    failed: str = ""
    hint: str = ""
    to_do: str = "Replace its NotImplementedError"
    details: str = ""  # what the ranks did, shown below the hint
    standing: str = ""  # how much the learner has solved by now, once the check passed
    outdated: bool = False  # whether the cell with a newer version ended with an error
    on: str = ""  # the ranks on which it failed, if it is judged on more than one number of them

    def recorded(self) -> "Verdict":
        """Put this verdict into the log of a learner's notebook, add where they stand if it passed, and return it."""
        if self.passed is not None:
            failed = f"{self.failed}\n{self.details}".strip()
            learners_log.keep(learners_log.Check(self.name, self.passed, failed))
        if self.passed:
            self.standing = exercises.standing(learners_log.own_notebook())
        return self

    def follow(self, rules: Iterable[tuple[str, str]]) -> "Verdict":
        """Judge by rules, up to the first one that fails, and return this verdict.

        A rule is a text of what must hold, and a hint, which is empty if it holds.
        """
        self.passed = True
        for text, hint in rules:
            if hint:
                self.passed = False
                self.failed = text
                self.hint = hint
                break
            self.held.append(text)
        return self

    @property
    def headline(self) -> str:
        about = f". {OUTDATED}" if self.outdated else ""
        if self.passed is None:
            return f"{self.name}: not solved yet. {self.to_do}, then run both cells{about or '.'}"
        state = "correct" if self.passed else "not yet"
        on = f", {self.on}" if self.on and not self.passed else ""
        return f"{self.name}: {state}{on}{about}"

    def must_pass(self) -> "Verdict":
        """Return this verdict if the exercise is solved; if not, raise NotPassed, because a grader counts errors."""
        if not self.passed:
            raise NotPassed(repr(self))
        return self

    def __repr__(self) -> str:
        lines = [self.headline, *(f"  ✓ {text}" for text in self.held)]
        if self.failed:
            lines.append(f"  ✗ {self.failed}")
        if self.hint:
            lines.append(f"  Hint: {self.hint}")
        if self.details:
            lines.append(self.details)
        if self.standing:
            lines.append(self.standing)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        color = {None: "#595959", True: "#0072B2", False: "#D55E00"}[self.passed]
        head, *rows = (html.escape(line) for line in repr(self).splitlines())
        body = "\n".join([f"<b>{head}</b>", *rows, *self._way_to_the_solution()])
        # JupyterLab breaks lines of output anywhere. This style breaks hints between words only.
        style = f"border-left: 6px solid {color}; padding: 4px 12px; white-space: pre-wrap; word-break: normal"
        return f'<pre class="workshop-check" style="{style}">{body}</pre>'

    def _way_to_the_solution(self) -> list[str]:
        """A line with a link to this exercise in the solutions, if the check failed and the notebook has solutions."""
        file = kernel.notebook_file()
        if self.passed is not False or file is None or not exercises.solutions_of(file).exists():
            return []
        there = exercises.by_notebook().get(file.stem, {}).get(self.name)
        heading = there.heading.replace(" ", "-") if there else ""  # as JupyterLab names headings in links
        link = html.escape(f"solutions/{exercises.solutions_of(file).name}#{heading}".removesuffix("#"))
        return [f'  Stuck? <a href="{link}">Open the solution of {html.escape(self.name)}</a>']


@dataclass(frozen=True)
class Exercise:
    """One exercise of a notebook; call it with the learner's function to get a Verdict.

    notebook: the notebook whose solution the edits change.
    compared: whether the known mistakes are run to find the hint for a failure.
    communicates: whether the learner's function needs several ranks. Other functions still run on the ranks, so that
    an endless loop can be ended, but one observation counts, and their mistakes run in the notebook, without `comm`.
    group_of: the size of smaller groups of ranks that run it, too, each with a communicator of its own. That exposes a
    number of ranks that is written into the code. 0 for none.
    grouped: what a rank enters for that, so that it sees its group alone.
    group_hint: the hint for a function that fails only there.
    ready: called on every rank before the clock starts, for work that is slow only the first time.
    on: the number of ranks that the exercise needs; None for any number.
    stuck: the hint for a function that never ends. The default depends on whether it communicates.
    raised: the hint for an error that ranks raised, by words in the error's text, beside those of RAISED.
    unknown: the hint for a failure that no known mistake explains.
    """

    name: str
    observe: Callable[[Any, Callable], Any]
    properties: Callable[[list], Iterator[Property]]
    edits: Sequence[Edit] = ()
    notebook: str = ""
    compared: bool = False
    communicates: bool = True
    group_of: int = 0
    grouped: Callable[[], AbstractContextManager] = nullcontext
    group_hint: str = GROUP_HINT
    ready: Callable[[], None] | None = None
    on: int | None = None
    timeout_s: float = 5.0
    stuck: str = ""
    raised: Mapping[str, str] = field(default_factory=dict)
    unknown: str = UNKNOWN_HINT
    _known: dict[int, list[Property | None]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __call__(self, function: Callable) -> Verdict:
        return replace(self._judge(function), outdated=is_outdated(function)).recorded()

    def _judge(self, function: Callable) -> Verdict:
        if not callable(function):
            failed = f"a function was expected, not {function!r}"
            hint = "give the function itself, without calling it."
            return Verdict(self.name, False, failed=failed, hint=hint)
        try:
            team = ranks.current()
            if self.on is not None and team.n != self.on:
                raise ranks.RankError(f"This exercise needs {self.on} ranks, not {team.n}: `ranks.start({self.on})`.")
            # Unpickling these imports what they need, which takes seconds on fresh ranks.
            team.run(_prepare, self.observe, function, self.ready, timeout=READY_LIMIT_S, show=False)
            observations = team.run(_observe_on_rank, self.observe, self.communicates, function, timeout=self.timeout_s)
        except ranks.RankError as error:
            return self._did_not_end(error)
        verdict = self.verdict(observations if self.communicates else observations[:1])
        return self._in_groups(function, verdict) if self.group_of and verdict.passed else verdict

    def _in_groups(self, function: Callable, verdict: Verdict) -> Verdict:
        """The verdict on a function that has passed on all ranks together, after smaller groups have run it."""
        n = self.group_of
        verdict.on = f"on {plural(n, 'rank')}"
        where = "when a rank is alone" if n == 1 else verdict.on
        try:
            seen = ranks.current().run(
                _observe_in_group, self.observe, n, self.grouped, function, timeout=self.timeout_s, show=False
            )
        except ranks.RankError as error:
            details = self._did_not_end(error).details
            return replace(verdict, passed=False, failed=f"also {where}", hint=self.group_hint, details=details)
        failures = (self._first_failure(seen[at : at + n], []) for at in range(0, len(seen), n))
        failed = next(filter(None, failures), None)
        if failed is None:
            return verdict
        hint = _one_after_another(failed.observed, self.group_hint)
        return replace(verdict, passed=False, failed=f"also {where}", hint=hint)

    def verdict(self, observations: list) -> Verdict:
        """The verdict on a function, from every rank's observation of it."""
        verdict = Verdict(self.name)
        if any(isinstance(seen, str) and seen == UNSOLVED for seen in observations):
            return verdict
        try:
            failed = self._first_failure(observations, verdict.held)
        except Exception as error:  # whatever the learner's function returned, the notebook goes on
            verdict.passed = False
            verdict.failed = f"what it returned cannot be compared: {type(error).__name__}: {error}"
            return verdict
        verdict.passed = failed is None
        if failed is not None:
            verdict.on = self._on(len(observations))
            verdict.failed = failed.text
            verdict.hint = failed.hint
            if not verdict.hint:
                hint = self._hint_of_a_mistake(failed, len(observations))
                verdict.hint = _one_after_another(failed.observed, hint)
        return verdict

    def _first_failure(self, observations: list, held: list[str]) -> Property | None:
        """The first property that fails, or None. Its evidence, if it names none, becomes all observations."""
        for prop in self.properties(observations):
            if not prop.holds:
                return replace(prop, evidence=observations if prop.evidence is None else prop.evidence)
            held.append(prop.text)
        return None

    def _on(self, n: int) -> str:
        return f"on {plural(n, 'rank')}" if self.group_of else ""

    def _hint_of_a_mistake(self, failed: Property, n: int) -> str:
        """The hint of the first known mistake that fails in the same way on n ranks, or advice if there is none."""
        try:
            for edit, known in zip(self.edits, self._known_failures(n), strict=False):
                if known is not None and known.text == failed.text and alike(known.evidence, failed.evidence):
                    return edit.hint
        except Exception:  # if ranks ended or values cannot be compared, the verdict still stands
            pass
        return failed.advice or self.unknown

    def _known_failures(self, n: int) -> list[Property | None]:
        """The property that each known mistake fails on n ranks, or None for a mistake that raises."""
        if not self.compared:
            return []
        if n not in self._known:
            self._known[n] = [self._known_failure(list(seen)) for seen in self._observe_mistakes()]
        return self._known[n]

    def _observe_mistakes(self) -> Iterable[tuple]:
        """Every rank's observation of each known mistake."""
        answers = [Solution(self.notebook, self.name, edit.replacements) for edit in self.edits]
        if self.communicates:
            limit_s = self.timeout_s * (1 + len(answers))
            team = ranks.current()
            by_rank = team.run(_observe_each_on_rank, self.observe, answers, timeout=limit_s, show=False)
        else:
            by_rank = [[observe_one(None, self.observe, answer.load()) for answer in answers]]
        return zip(*by_rank, strict=True)

    def _known_failure(self, observations: list) -> Property | None:
        if any(isinstance(seen, Exception) for seen in observations):
            return None
        try:
            return self._first_failure(observations, [])
        except Exception:  # what this mistake returns cannot be compared, so it explains nothing
            return None

    def _did_not_end(self, error: ranks.RankError) -> Verdict:
        """The verdict on a function that raised or never ended. If ranks were lost, this starts fresh ones."""
        verdict = Verdict(self.name, False, failed="it did not run to its end on every rank")
        verdict.details = learners_lines(str(error))
        verdict.hint = hint_for(error, self.timeout_s, self.communicates, self.stuck, self.raised)
        try:
            team = ranks.current()
            verdict.on = self._on(team.n)
            if not team.healthy:
                team.restart()
                fresh = "Fresh ranks were started: run the cells with %%ranks or team.push again."
                verdict.details = learners_lines(f"{error.what or error}\n{fresh}")
        except ranks.RankError:
            return Verdict(self.name, to_do=f"Start ranks with `ranks.start({self.on or 2})`")
        return verdict


def _one_after_another(sentence: str, hint: str) -> str:
    """A hint after a sentence, or after the beginning of a sentence that ends with a colon."""
    if sentence.endswith(".") and hint[:1].isascii():  # a formula may begin with β
        hint = hint[:1].upper() + hint[1:]
    return f"{sentence} {hint}".strip()


def _prepare(observe: Callable, function: Callable, ready: Callable[[], None] | None) -> None:
    """Do the slow part of getting ready, on every rank, before the check's timer starts."""
    if ready is not None:
        ready()


def _observe_on_rank(observe: Callable, communicates: bool, function: Callable):
    """Runs on every rank: its observation of a function, or UNSOLVED. Exceptions are left for the ranks to report."""
    builtins.input = _no_keyboard
    return _unless_stub(observe, _own_communicator() if communicates else None, function)


def _observe_in_group(observe: Callable, size: int, grouped: Callable, function: Callable):
    """Runs on every rank: its observation of a function in a group of `size` ranks."""
    everyone = _own_communicator()
    own = everyone.Split(everyone.rank // size)
    with grouped():
        return observe(own, function)


def _observe_each_on_rank(observe: Callable, answers: Sequence[Solution]) -> list:
    """Runs on every rank: its observation of each answer in turn, or an exception for an answer that raises."""
    return [observe_one(_own_communicator(), observe, answer.load()) for answer in answers]


def _own_communicator():
    """A communicator of all ranks for one call, so that messages it leaves unreceived never reach the next call.

    Nobody frees it, or a group of it: MPI would give its number, and such messages, to the next communicator.
    """
    from mpi4py import MPI  # imported only here, because the notebook's side of a check must not start MPI

    return MPI.COMM_WORLD.Dup()


def observe_one(comm, observe: Callable, function: Callable):
    """The observation of one function, UNSOLVED for a stub, or a RuntimeError that quotes the exception it raised."""
    try:
        return _unless_stub(observe, comm, function)
    except Exception as error:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _unless_stub(observe: Callable, comm, function: Callable):
    try:
        return observe(comm, function)
    except NotImplementedError as error:
        if not is_of_stub(error):
            raise
        return UNSOLVED


def is_of_stub(error: NotImplementedError) -> bool:
    """Whether a stub raised this. PyTorch raises it, too, with another text; nbgrader's stubs have none."""
    return not str(error) or str(error).startswith(STUB)


def _no_keyboard(*_, **__):
    raise InputError(NO_KEYBOARD)


def own_or_library(function: Callable, finished: Callable | None) -> Callable | None:
    """The learner's function or class. While it is still a stub, print a line that says so, and return `finished`."""
    return finished if _is_stub(function, "the library's own") else function


def own_or_solution(made: Callable, notebook: str) -> Callable:
    """The learner's function or class. While it is still a stub, say so and return the notebook's solution."""
    return Solution(notebook, made.__name__).load() if _is_stub(made, "the solution") else made


def _is_stub(made: Callable, instead: str) -> bool:
    """Whether the learner's function or class is still a stub. If so, print what takes its place."""
    parts = vars(made).values() if isinstance(made, type) else [made]
    codes = [code for part in parts if (code := getattr(part, "__code__", None))]  # a `functools.partial` has no code
    if not any("NotImplementedError" in code.co_names for code in codes):
        return False
    print(f"{made.__name__} isn't solved yet, so {instead} takes its place here.")
    return True


def alike(a, b, rounding: float = ROUNDING) -> bool:
    """Whether two observations, or parts of them, are the same up to rounding. Fields of dataclasses with
    compare=False, such as times, do not count."""
    if is_dataclass(a) and not isinstance(a, type):
        return type(a) is type(b) and all(
            alike(getattr(a, f.name), getattr(b, f.name), rounding) for f in fields(a) if f.compare
        )
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(alike(a[key], b[key], rounding) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(alike(x, y, rounding) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) or (is_number(a) and is_number(b)):
        return close(a, b, rounding)
    return a is b or (type(a) is type(b) and a == b)


def close(got, right, rounding: float = 1e-9) -> bool:
    """Whether `got` has the shape of `right` and differs by at most `rounding` times the largest element of `right`.

    Elements that are no numbers (nan) in both are the same.
    """
    try:
        if np.shape(got) != np.shape(right):
            return False
        got, right = np.asarray(got, dtype=float), np.asarray(right, dtype=float)
    except (TypeError, ValueError):  # these are not numbers at all
        return bool(np.array_equal(got, right))
    same = (got == right) | (np.isnan(got) & np.isnan(right))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(got - right))
    largest = np.max(np.abs(right[np.isfinite(right)]), initial=0.0)
    return bool(np.max(apart, initial=0.0) <= rounding * (largest + BESIDE_ZERO))


def is_number(value) -> bool:
    if isinstance(value, np.ndarray):
        return value.shape == ()
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def shown(value, digits: int = 4) -> str:
    """A value that a function returned, as a text short enough for a hint. digits: those of numbers in an array."""
    if isinstance(value, np.ndarray) and value.ndim:
        first = np.array2string(value.ravel()[:SHOWN], precision=digits, threshold=SHOWN)
        return first + (" …" if value.size > SHOWN else "")
    if isinstance(value, np.ndarray | np.generic):
        value = value.item()
    text = repr(value)
    if isinstance(value, float):
        text = f"{value:.{digits + 2}g}"
    if isinstance(value, list):
        text = f"[{', '.join(shown(each, digits) for each in value)}]"
    return text if len(text) < 60 else text[:57] + "…"
