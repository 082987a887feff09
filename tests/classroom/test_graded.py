"""A graded cell gives the point for a right answer and for no other, and says why."""

import assigned
import pytest

from workshop_lib.judge import NotPassed
from workshop_lib.lessons.start_here import judge as start_here

pytestmark = pytest.mark.usefixtures("healthy")

MISTAKE = ("return comm.rank, comm.size", "return comm.size, comm.rank", "The rank comes first, then the size.")


def run(answer: str):
    """Run an answer's cell and the graded cell after it; returns what nbgrader would show."""
    cells, namespace = assigned.cells("00_start_here"), {"check": start_here, "__name__": "__main__"}
    exec(answer, namespace)
    check = cells["check-whoami"].source
    return eval(check, namespace)


def test_the_solution_gets_the_point_but_neither_the_stub_nor_a_mistake_which_gets_its_hint():
    answer = assigned.cells("00_start_here")["whoami"].source
    assert run(assigned.solved(answer)).passed
    with pytest.raises(NotPassed, match="not solved yet"):
        run(assigned.released(answer))
    right, wrong, hint = MISTAKE
    with pytest.raises(NotPassed, match=hint):
        run(assigned.solved(answer).replace(right, wrong))
