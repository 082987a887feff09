"""What every exercise's check has to pass; a file of tests derives a class from `Verdicts`.

All answers to an exercise are observed in one call on the ranks (those that need no ranks, here), and each verdict
is a test of its own. What the known mistakes of an exercise are told is tested without being listed again.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
from judge import thread_ranks
from judge.answers import own, solution, stub, variant

from workshop_lib import judge
from workshop_lib.judge import Exercise


def planted(notebook: str, wrong: dict[str, dict[str, tuple[list, str]]]) -> dict[str, tuple]:
    """`wrong` of Verdicts, from the replacements in the solution and the hint, by exercise and title."""
    return {
        f"{name}, {title}": (partial(variant, notebook, name, *replacements), hint)
        for name, mistakes in wrong.items()
        for title, (replacements, hint) in mistakes.items()
    }


def _made(notebook: str, table: dict[str, dict]) -> dict[str, tuple]:
    """What makes each answer of a table, and what comes after it there, by exercise and title in one."""
    made = {}
    for name, answers in table.items():
        if not isinstance(answers, dict):  # a table by title, with what makes each answer
            made[name] = answers if isinstance(answers, tuple) else (answers,)
            continue
        for title, planted in answers.items():
            answer, *expected = planted if isinstance(planted, tuple) else (planted,)
            make = partial(own, notebook, name, answer)
            if isinstance(answer, list):
                make = partial(variant, notebook, name, *answer)
            made[f"{name}, {title}"] = (make, *expected)
    return made


def observed(exercise: Exercise, answers: list, team, at_once: int = 1, threads: int = 0) -> list:
    """Each answer's observations, one per rank: on so many threads, or all made in one call on the ranks that team()
    returns; if it does not communicate, of so many answers at once."""
    if not exercise.communicates:
        observe = partial(judge.observe_one, None, exercise.observe)
        if at_once == 1:
            return [[observe(answer)] for answer in answers]
        with ThreadPoolExecutor(at_once) as pool:
            return [[seen] for seen in pool.map(observe, answers)]
    if threads:
        return [thread_ranks.run(threads, partial(_observe, exercise, answer)) for answer in answers]
    if exercise.ready is not None:
        team().run(exercise.ready, timeout=judge.READY_LIMIT_S, show=False)
    limit_s = 10 + exercise.timeout_s * len(answers)
    by_rank = team().run(_each, exercise.observe, answers, timeout=limit_s, show=False)
    return list(zip(*by_rank, strict=True))


def _each(observe, answers):
    return [judge.observe_one(judge._own_communicator(), observe, answer) for answer in answers]


def _observe(exercise: Exercise, answer, comm):
    return judge.observe_one(comm, exercise.observe, answer)


def verdict_of(exercise: Exercise, observations: list) -> judge.Verdict:
    raised = [seen for seen in observations if isinstance(seen, Exception)]
    assert not raised, f"the answer raised {raised[0]}: such an answer goes into `raises`"
    return exercise.verdict(list(observations))


def verdicts_of(cls: "type[Verdicts]", team) -> dict:
    """The verdict on every answer of a class, by (kind, exercise, title); team() returns the ranks, if it is called."""
    found = {}
    for name in cls.names:
        exercise = getattr(cls.check, name)
        answers = {("solution", name, ""): solution(cls.notebook, name), ("stub", name, ""): stub(cls.notebook, name)}
        for at, edit in enumerate(exercise.edits):
            answers["known", name, str(at)] = variant(cls.notebook, name, *edit.replacements)
        planted_ones = [("right", title, make) for title, make in cls.right.items()]
        planted_ones += [("wrong", title, make) for title, (make, _) in cls.wrong.items()]
        for kind, title, make in planted_ones:
            answer = make()
            if answer.__name__ == name:
                answers[kind, name, title] = answer
        made = observed(exercise, list(answers.values()), team, cls.at_once.get(name, 1), cls.threads)
        observations = dict(zip(answers, made, strict=True))
        known = [list(observations["known", name, str(at)]) for at in range(len(exercise.edits))]
        n = len(made[0])
        exercise._known[n] = [exercise._known_failure(seen) for seen in known]  # or it would observe them once more
        found |= {key: verdict_of(exercise, seen) for key, seen in observations.items()}
    return found


class Verdicts:
    """`check` is the module of the exercises, `notebook` its notebook, and `names` are its exercises.

    Answers are planted in tables by exercise and title. An answer is a list of replacements in the solution, or the
    text of a function that a learner may write. `right` has answers; `wrong` has pairs (answer, words that the hint
    must have); `raises`, pairs with words that the failure or the hint must have; `never_ends`, pairs with words of the
    hint, and then lines of code on which each rank waits.

    at_once: of how many answers an exercise can be observed at a time, if of more than one.
    threads: the number of threads that are the ranks, if the exercises use only collectives of ThreadComm.
    """

    right: dict = {}
    wrong: dict = {}
    never_ends: dict = {}
    raises: dict = {}
    at_once: dict = {}
    threads: int = 0

    def __init_subclass__(cls):
        """Make the answers. Without any of a kind, there is no test of them."""
        cls.right = {title: make for title, (make,) in _made(cls.notebook, cls.right).items()}
        cls.wrong = _made(cls.notebook, cls.wrong)
        cls.raises = _made(cls.notebook, cls.raises)
        cls.never_ends = _made(cls.notebook, cls.never_ends)
        for test, cases in (
            ("test_a_known_mistake_is_rejected_with_its_hint", [getattr(cls.check, name).edits for name in cls.names]),
            ("test_another_right_way_passes", cls.right),
            ("test_a_wrong_answer_is_rejected_with_its_hint", cls.wrong),
            ("test_an_answer_that_raises_is_rejected_with_what_it_raised", cls.raises),
            ("test_an_answer_that_never_ends_is_stopped_and_the_hint_says_why", cls.never_ends),
        ):
            if not any(cases):
                setattr(cls, test, None)

    def pytest_generate_tests(self, metafunc):
        known = [
            pytest.param((name, at), id=f"{name}-{at}")
            for name in self.names
            for at in range(len(getattr(self.check, name).edits))
        ]
        cases = {
            "name": list(self.names),
            "way": list(self.right),
            "mistake": list(self.wrong),
            # To end ranks and start fresh ones takes seconds: one answer per notebook, unless everything is run.
            "endless": [
                pytest.param(title, marks=pytest.mark.exhaustive) if at else title
                for at, title in enumerate(self.never_ends)
            ],
            "known": known,
            "raising": list(self.raises),
        }
        for argument, values in cases.items():
            if argument in metafunc.fixturenames:
                metafunc.parametrize(argument, values)

    def test_the_solution_passes(self, name, verdicts):
        verdict = verdicts["solution", name, ""]
        assert verdict.passed is True, verdict

    def test_the_stub_is_not_solved_yet(self, name, verdicts):
        verdict = verdicts["stub", name, ""]
        assert verdict.passed is None
        assert "not solved yet" in repr(verdict)

    def test_a_known_mistake_is_rejected_with_its_hint(self, known, verdicts):
        name, at = known
        exercise = getattr(self.check, name)
        verdict = verdicts["known", name, str(at)]
        assert verdict.passed is False, verdict
        assert exercise.edits[at].hint.lower() in verdict.hint.lower(), verdict

    def test_another_right_way_passes(self, way, verdicts):
        [verdict] = [verdict for (kind, _, title), verdict in verdicts.items() if (kind, title) == ("right", way)]
        assert verdict.passed is True, verdict

    def test_a_wrong_answer_is_rejected_with_its_hint(self, mistake, verdicts):
        [verdict] = [verdict for (kind, _, title), verdict in verdicts.items() if (kind, title) == ("wrong", mistake)]
        assert verdict.passed is False, verdict
        assert self.wrong[mistake][1].lower() in verdict.hint.lower(), verdict

    def test_an_answer_that_raises_is_rejected_with_what_it_raised(self, raising, team):
        make, words = self.raises[raising]
        answer = make()
        verdict = soon(getattr(self.check, answer.__name__))(answer)
        assert verdict.passed is False, verdict
        assert words in f"{verdict.failed}\n{verdict.details}\n{verdict.hint}", verdict
        assert team.healthy, "fresh ranks are there for the next cell"

    def test_an_answer_that_never_ends_is_stopped_and_the_hint_says_why(self, endless, team):
        make, hint, *lines = self.never_ends[endless]
        answer = make()
        exercise = getattr(self.check, answer.__name__)
        verdict = soon(exercise)(answer)
        assert verdict.passed is False, verdict
        assert "was at" in verdict.details or "were at" in verdict.details, "it says on which line the ranks wait"
        assert all(line in verdict.details for line in lines), verdict.details
        assert hint in verdict.hint, verdict
        assert team.healthy, "fresh ranks are there for the next cell"


def soon(exercise: Exercise) -> Exercise:
    """The exercise with a shorter limit: an answer that is known never to end need not be waited for."""
    return replace(exercise, timeout_s=1.0)
