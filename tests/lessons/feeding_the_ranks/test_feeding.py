"""The exercises of 09 accept the solutions, and reject wrong answers with the hint that names the mistake."""

from judge.answers import solution

from workshop_lib.lessons.feeding_the_ranks import judge as check


def test_the_solution_has_nothing_of_what_the_play_looks_for():
    numbers = list(check.play_generator(solution(check.NOTEBOOK, "generator"), None))
    assert [value for _, value, *_ in numbers] == [[True, False], list(range(12)), True]
