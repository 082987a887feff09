"""Checks of exercises: run the learner's function on the ranks, say which property holds and which fails, and
hint at the likely mistake. A check never raises for what the learner wrote.
"""

import html
import numbers
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from workshop_lib import probes, ranks

STUCK_HINT = "some rank waits for a message or a collective that never comes; see the lines above."
ENDLESS_HINT = "the function does not end: is there a `while` whose condition stays true?"
TRUNCATED_HINT = "a message was larger than the array made ready for it: give that array the size of what arrives."
READY_LIMIT_S = 60.0  # for what takes long once on fresh ranks, such as importing PyTorch
Judge = Callable[[list], Iterator[tuple[str, bool, str]]]


@dataclass
class Verdict:
    """What a check found. `passed` is None while the exercise is unsolved; `hint` is for the failure."""

    name: str
    passed: bool | None = None
    held: list[str] = field(default_factory=list)
    failed: str = ""
    hint: str = ""

    @property
    def headline(self) -> str:
        if self.passed is None:
            return f"{self.name}: not solved yet. Replace its NotImplementedError, then run both cells."
        return f"{self.name}: {'correct' if self.passed else 'not yet'}"

    def __repr__(self) -> str:
        lines = [self.headline, *(f"  ✓ {text}" for text in self.held)]
        if self.failed:
            lines.append(f"  ✗ {self.failed}")
        if self.hint:
            lines.append(f"  Hint: {self.hint}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        colour = {None: "#595959", True: "#0072B2", False: "#D55E00"}[self.passed]
        head, *rows = (html.escape(line) for line in repr(self).splitlines())
        body = "\n".join([f"<b>{head}</b>", *rows])
        style = f"border-left: 6px solid {colour}; padding: 4px 12px; white-space: pre-wrap"
        return f'<pre class="workshop-check" style="{style}">{body}</pre>'


def judged(
    function,
    probe,
    judge: Judge,
    *,
    on: int | None = None,
    timeout: float = 5.0,
    stuck: str = STUCK_HINT,
    truncated: str = TRUNCATED_HINT,
    ready=None,
) -> Verdict:
    """Run `probe(comm, function)` on every rank and judge what it reports.

    judge: takes the facts in rank order and yields (property, whether it holds, hint); the first property
    that fails ends it, so a later one may rely on those before it. on: the number of ranks that the
    exercise needs. timeout: seconds for the probe, which begin when the ranks have imported what it needs and
    called `ready()`. stuck: the hint for a function that does not end on all ranks; truncated: for one where
    a message meets a receive of another size.
    """
    verdict = Verdict(getattr(function, "__name__", "exercise"))
    if not callable(function):
        verdict.failed = f"a function was expected, not {function!r}"
        verdict.hint = "give the function itself, without calling it."
        verdict.passed = False
        return verdict
    facts = _gather(verdict, function, probe, on, timeout, stuck, truncated, ready)
    if facts is not None:
        _judge(verdict, judge, facts)
    return verdict


def _gather(verdict: Verdict, function, probe, on, timeout, stuck, truncated, ready) -> list | None:
    """The facts of every rank; None when there are none, which the verdict then explains."""
    try:
        team = ranks.current()
        if on is not None and team.n != on:
            raise ranks.RankError(f"This exercise needs {on} ranks, not {team.n}: `team = ranks.start({on})`.")
        team.run(probes.prepare, probe, function, ready, timeout=READY_LIMIT_S, show=False)
        outcomes = team.run(probes.attempt, probe, function, timeout=timeout)
    except ranks.RankError as error:
        verdict.passed, verdict.failed = False, f"it did not run to its end on every rank.\n{error}"
        if str(error).startswith(f"not finished after {timeout:g} s"):
            verdict.hint = stuck
        elif "truncate" in str(error).lower():  # MPI's word, told by Open MPI and MPICH alike
            verdict.hint = truncated
        _refresh(verdict)
        return None
    if any("unsolved" in outcome for outcome in outcomes):
        return None
    return [outcome["facts"] for outcome in outcomes]


def _refresh(verdict: Verdict) -> None:
    """Fresh ranks where these were lost, so that the notebook can go on."""
    try:
        team = ranks.current()
        if not team.healthy:
            team.restart()
            verdict.failed += "\nFresh ranks were started; cells that define something on the ranks have to run again."
    except ranks.RankError:
        pass  # the verdict already says that there are no ranks


def _judge(verdict: Verdict, judge: Judge, facts: list) -> None:
    try:
        for text, holds, hint in judge(facts):
            if not holds:
                verdict.passed, verdict.failed, verdict.hint = False, text, hint
                return
            verdict.held.append(text)
        verdict.passed = True
    except Exception as error:  # whatever the learner's function returned, the notebook goes on
        verdict.passed = False
        verdict.failed = f"what it returned cannot be compared: {type(error).__name__}: {error}"


def is_number(value) -> bool:
    if isinstance(value, np.ndarray):
        return value.shape == ()
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def shown(value) -> str:
    """What a function returned, short enough for a hint."""
    if isinstance(value, np.ndarray) and value.ndim:
        first = np.array2string(value.ravel()[:4], precision=4, threshold=4)
        return first + (" …" if value.size > 4 else "")
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "…"
