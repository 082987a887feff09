"""A play is judged beside the notebook's solution: form, arguments, values, and the hints of known mistakes."""

from functools import partial

import numpy as np
import pytest
from exercises.answers import written
from thread_ranks import run_on_threads

from workshop_lib.exercises import judge
from workshop_lib.exercises.forms import fits, plain
from workshop_lib.exercises.play import Edit, beside, played
from workshop_lib.exercises.solutions import Solution

SOURCE = '''# %% [markdown]
# # A notebook

# %%
import math
from os import no_such_name, sep

import numpy as np


# %%
def total(comm, values, weight):
    """The weighted sum of all ranks' values, on every rank."""
    # <solution>
    own = weight * values
    return comm.allreduce(own), np.arange(comm.size)
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
def scaled(values, factor):
    # <solution>
    assert sep
    return np.array([factor * value for value in values])
    # </solution>
'''
TOTAL = "total(comm, values, weight)"


def play_total(total, comm):
    for weight in (1, 2):
        values = np.arange(3.0) + comm.rank
        added, ranks = total(comm, values, weight)
        yield "the sums are right", added, f"with weight {weight}"
    yield "every rank is there", len(ranks), f"rank {comm.rank} counted {len(ranks)} ranks:", "count all of them."


def play_scaled(scaled, comm):
    assert comm is None
    yield "it is scaled", scaled([1.0, 2.0], 3)
    yield "also by 0", scaled([1.0, 2.0], 0)


@pytest.fixture(autouse=True)
def source(tmp_path, monkeypatch):
    """Both exercises' notebook, with this name in no other test."""
    name = tmp_path.name
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.setattr("workshop_lib.exercises.solutions.SOURCES", tmp_path)
    return name


@pytest.fixture
def total(source):
    edits = [
        Edit("use the weight.", ("weight * values", "values")),
        Edit("add up over the ranks.", ("comm.allreduce(own)", "own")),
        Edit("this one raises.", ("weight * values", "1 / 0")),
        Edit("return both.", (", np.arange(comm.size)", "")),
    ]
    return played("total", source, play_total, edits, returns="the sums and the ranks", unknown="work it out.")


@pytest.fixture
def scaled(source):
    edits = [Edit("multiply.", ("factor * value", "factor + value"))]
    return played("scaled", source, play_scaled, edits, communicates=False)


class ThreadTeam:
    """Ranks that are threads of this process."""

    healthy = True

    def __init__(self, n: int):
        self.n = n

    def run(self, function, *args, timeout: float, show: bool = True) -> list:
        return run_on_threads(lambda comm: function(*args), self.n)


def verdict(exercise, function, ranks=2):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge.ranks, "current", lambda: ThreadTeam(ranks))
        return exercise(function)


answer = partial(written, "import numpy as np", TOTAL)


def test_the_solution_and_another_right_way_pass(total, source):
    passed = verdict(total, Solution(source, "total").load())
    assert passed.passed
    assert passed.held == ["the sums are right", "every rank is there"]
    assert verdict(total, answer("return [comm.allreduce(values * weight).tolist(), list(range(comm.size))]")).passed


@pytest.mark.parametrize(
    ("body", "failed", "hint"),
    [
        (
            "return comm.allreduce(values), np.arange(comm.size)",
            "the sums are right",
            "with weight 2, rank 0 has [1. 3. 5.] where [ 2.  6. 10.] is right. Use the weight.",
        ),
        (
            "return values * weight, np.arange(comm.size)",
            "the sums are right",
            "with weight 1, rank 0 has [0. 1. 2.] where [1. 3. 5.] is right. Add up over the ranks.",
        ),
        (
            "return comm.allreduce(values * weight) + comm.rank, np.arange(comm.size)",
            "the sums are right",
            "with weight 1, rank 1 has [2. 4. 6.] where [1. 3. 5.] is right. Work it out.",
        ),
        (
            "return comm.allreduce(values * weight)",
            "it returns the sums and the ranks",
            "rank 0 returned an array of 3. Return both.",
        ),
        (
            "added = comm.allreduce(values * weight)\n    return (added, np.arange(2)) if comm.rank == 0 else None",
            "it returns the sums and the ranks",
            "rank 1 returned nothing. It should `return` a tuple of 2 (an array of 3, an array of 2): the sums",
        ),
        (
            "values *= weight\n    return comm.allreduce(values), np.arange(comm.size)",
            "its arguments are left alone",
            "it changes `values`, which it was given. Work on a copy",
        ),
    ],
)
def test_a_wrong_answer_is_told_what_is_wrong_and_why(total, body, failed, hint):
    wrong = verdict(total, answer(body))
    assert wrong.passed is False
    assert wrong.failed == failed
    assert wrong.hint.startswith(hint)


def test_what_comes_after_a_property_that_fails_is_not_played(source):
    played_with = []

    def play(total, comm):
        for weight in (1, 2, 3):
            played_with.append(weight)
            yield "weights up to 2 are right" if weight < 3 else "also 3", total(comm, np.ones(1), weight)[0]

    exercise = played("total", source, play)
    verdict(exercise, answer("return comm.allreduce(0 * values), np.arange(comm.size)"), ranks=1)
    assert played_with == [1, 2, 3, 1, 2]


def test_advice_takes_the_place_of_the_hint_for_unknown_failures(source):
    def play(total, comm):
        yield "it is small", total(comm, np.ones(1), 1)[0] < 2, "it is large:", "make it small."

    wrong = verdict(played("total", source, play), answer("return 7 * values, np.arange(comm.size)"), ranks=1)
    assert wrong.hint == "it is large: make it small."


def test_arguments_may_be_changed_if_the_exercise_allows_it(source):
    function = answer("values *= weight\n    return comm.allreduce(values), np.arange(comm.size)")
    assert verdict(played("total", source, play_total, in_place=True), function).passed


def test_a_function_that_does_not_communicate_is_judged_without_ranks(scaled):
    assert verdict(scaled, lambda values, factor: [factor * value for value in values]).passed
    wrong = verdict(scaled, lambda values, factor: [factor + value for value in values])
    assert wrong.hint == "it gives [4, 5] where [3. 6.] is right. Multiply."
    assert verdict(scaled, lambda values, factor: None).hint.startswith("it returned nothing. It should `return`")


def test_a_solution_has_only_the_imports_that_it_needs(source):
    total = Solution(source, "total")
    assert total.text().startswith("import numpy as np\ndef total(")
    assert "NotImplementedError" not in total.text()
    assert Solution(source, "scaled").text().startswith("from os import sep\nimport numpy as np\ndef scaled(")
    edited = Solution(source, "total", (("weight * values", "math.sqrt(weight) * values"),))
    assert edited.text().startswith("import math\nimport numpy as np\ndef total(")


def test_an_edit_of_what_is_not_in_the_solution_is_refused(source):
    with pytest.raises(ValueError, match="total has no 'nowhere'"):
        Solution(source, "total", (("nowhere", ""),)).load()
    with pytest.raises(ValueError, match="defines missing 0 times"):
        Solution(source, "missing").load()


@pytest.mark.parametrize(
    ("got", "right", "same"),
    [
        (3, 2.5, True),
        (np.float32(3), 2, True),
        (True, 1, False),
        (1, True, False),
        ("3", 3, False),
        (None, 3, False),
        (3, None, True),
        ([1, 2], np.ones(2), True),
        ([[1, 2], [3]], np.ones((2, 2)), False),
        (np.ones(3), np.ones(2), False),
        ([1, 2], (3, 4), True),
        ((1, 2, 3), (3, 4), False),
        ([1], [3, 4], True),
        (["a"], [3, 4], False),
        ({1: 2}, {1: 3}, True),
        ({1: 2}, {2: 2}, False),
        (len, print, True),
        (Edit("a"), Edit("b"), True),
        (3, Edit("b"), False),
    ],
)
def test_a_result_has_the_form_of_the_right_one(got, right, same):
    assert fits(plain(got), plain(right)) is same


def test_what_is_shown_of_two_arrays_tells_them_apart():
    right = np.zeros((2, 3))
    wrong = right.copy()
    wrong[1, 2] = 7
    assert beside(wrong, right) == ("7 at [1, 2]", "0")
    assert beside(right[0], right) == ("an array of 3", "an array of shape (2, 3)")
    assert beside(np.array([1.0, 0.03555]), np.array([1.0, 0.03554])) == ("[1.      0.03555]", "[1.      0.03554]")


def test_a_failure_says_on_how_many_ranks_and_what_held_on_all_of_them(total):
    wrong = verdict(total, answer("return comm.allreduce(values * weight), np.arange(2)"))
    assert wrong.headline == "total: not yet, on 1 rank"
    assert wrong.held == ["the sums are right", "every rank is there"] and wrong.failed == "also when a rank is alone"
    wrong = verdict(total, answer("return comm.allreduce(values * weight), [[], [0, 1]][comm.size - 1]"))
    assert wrong.headline == "total: not yet, on 1 rank" and "Take it from `comm.size`" in wrong.hint
    assert verdict(total, answer("return values, np.arange(comm.size)")).headline == "total: not yet, on 2 ranks"
    right = verdict(total, answer("return comm.allreduce(weight * values), np.arange(comm.size)"))
    assert right.headline == "total: correct"
