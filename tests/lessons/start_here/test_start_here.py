"""The exercises of 00 accept the solutions, and reject wrong answers with the hint that names the mistake."""

from functools import partial

import pytest
from judge.answers import written
from judge.verdicts import Verdicts

from workshop_lib.lessons.start_here import judge as check

pytestmark = pytest.mark.usefixtures("healthy")

NOTEBOOK = "00_start_here"
whoami = partial(written, "from mpi4py import MPI", "whoami(comm)")
my_part = partial(written, "", "my_part(n, rank, size)")


class TestStartHere(Verdicts):
    check, notebook, names = check, NOTEBOOK, ["whoami", "my_part"]
    right = {
        "the first ranks take one more": lambda: my_part(
            "each, over = divmod(n, size)",
            "start = rank * each + min(rank, over)",
            "return start, start + each + (rank < over)",
        ),
        "a list": lambda: my_part("return [n * rank // size, n * (rank + 1) // size]"),
    }
    wrong = {
        "prints": (lambda: whoami("print(comm.rank, comm.size)"), "no `return`"),
        "text": (lambda: whoami("return f'rank {comm.rank} of {comm.size}'"), "return two numbers"),
        "numbers as text": (
            lambda: whoami("return str(comm.rank), str(comm.size)"),
            "`comm.rank` is this rank's number",
        ),
        "always the world": (lambda: whoami("return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size"), "not from COMM_WORLD"),
        "size by heart": (lambda: whoami("return comm.rank, 2"), "do not hard-code"),
        "fractions": (lambda: my_part("return n * rank / size, n * (rank + 1) / size"), "`//` divides"),
        "nothing returned": (lambda: my_part("print(n * rank // size)"), "no `return`"),
        "how many, not which": (lambda: my_part("return n // size + (rank < n % size)"), "it returned"),
        "the last rank takes nothing": (
            lambda: my_part("return n * rank // size, n * (rank + 1) // size if rank < size - 1 else 0"),
            "nobody takes items 0, 1, 2, 3, …. Each rank should start",
        ),
    }
    never_ends = {"a loop": (lambda: my_part("while True:", "    pass"), "doesn't end")}
