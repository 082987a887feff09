"""The tests that every exercise's check has to pass; a file of tests derives a class from one of these."""

from functools import partial

from answers import solution, stub, variant

CASES = {"name": "names", "way": "right", "mistake": "wrong", "endless": "never_ends"}


def planted(notebook: str, wrong: dict[str, dict[str, tuple[list, str]]]) -> dict[str, tuple]:
    """`wrong` of Verdicts, from the replacements in the solution and the hint, by exercise and title."""
    return {
        f"{name}, {title}": (partial(variant, notebook, name, *replacements), hint)
        for name, mistakes in wrong.items()
        for title, (replacements, hint) in mistakes.items()
    }


class Solutions:
    """The notebook's own solutions and stubs. `check` is the module of the checks, `names` the exercises."""

    def pytest_generate_tests(self, metafunc):
        for argument, cases in CASES.items():
            if argument in metafunc.fixturenames:
                metafunc.parametrize(argument, list(getattr(self, cases)))

    def test_the_solution_passes(self, name):
        verdict = getattr(self.check, name)(solution(self.notebook, name))
        assert verdict.passed is True, verdict

    def test_the_stub_is_not_solved_yet(self, name):
        verdict = getattr(self.check, name)(stub(self.notebook, name))
        assert verdict.passed is None
        assert "not solved yet" in repr(verdict)


class Verdicts(Solutions):
    """And answers planted by title: `right` makes a function of the exercise's name; `wrong` and `never_ends`
    hold one that does, and the words that the hint must have."""

    def judged(self, make):
        answer = make()
        return getattr(self.check, answer.__name__)(answer)

    def test_another_right_way_passes(self, way):
        verdict = self.judged(self.right[way])
        assert verdict.passed is True, verdict

    def test_a_wrong_answer_is_rejected_with_its_hint(self, mistake):
        make, hint = self.wrong[mistake]
        verdict = self.judged(make)
        assert verdict.passed is False, verdict
        assert hint in verdict.hint, verdict

    def test_an_answer_that_never_ends_is_stopped_and_the_hint_says_why(self, endless, team):
        make, hint = self.never_ends[endless]
        verdict = self.judged(make)
        assert verdict.passed is False, verdict
        assert "is at" in verdict.failed, "it says on which line the ranks wait"
        assert hint in verdict.hint, verdict
        assert team.healthy, "fresh ranks are there for the next cell"
