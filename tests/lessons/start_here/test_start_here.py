"""The exercises of 00 accept the solutions, and reject wrong answers with the hint that names the mistake."""

import pytest
from judge.verdicts import Verdicts

from workshop_lib.lessons.start_here import judge as check

pytestmark = pytest.mark.usefixtures("healthy")


class TestStartHere(Verdicts):
    check, notebook, names = check, check.NOTEBOOK, ["whoami", "my_part"]
    right = {
        "my_part": {
            "the first ranks take one more": """
                def my_part(n, rank, size):
                    each, over = divmod(n, size)
                    start = rank * each + min(rank, over)
                    return start, start + each + (rank < over)
                """,
            "a list": """
                def my_part(n, rank, size):
                    return [n * rank // size, n * (rank + 1) // size]
                """,
        }
    }
    wrong = {
        "whoami": {
            "text": ([(check.RANK_AND_SIZE, "f'rank {comm.rank} of {comm.size}'")], "a tuple of 2 (each a number)"),
            "numbers as text": ([(check.RANK_AND_SIZE, "str(comm.rank), str(comm.size)")], "a tuple of 2 ('0', '2')"),
            "methods that nobody calls": (
                [(check.RANK_AND_SIZE, "comm.Get_rank, comm.Get_size")],
                "rank 0 returned a tuple of 2 (`Get_rank` without `()`, `Get_size` without `()`)",
            ),
            "always the world": (
                [(check.RANK_AND_SIZE, "MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size")],
                "not from COMM_WORLD",
            ),
            "size by heart": ([("comm.size", "2")], "do not hard-code"),
        },
        "my_part": {
            "fractions": ([("//", "/")], "`//` divides"),
            "how many, not which": (
                [(f"{check.START}, {check.STOP}", "n // size + (rank < n % size)")],
                "it returned 7. It should `return` a tuple of 2",
            ),
            "the last rank takes nothing": (
                [(check.STOP, f"{check.STOP} if rank < size - 1 else 0")],
                "nobody takes items 0, 1, 2, 3, …. Each rank should start",
            ),
        },
    }
    never_ends = {"my_part": {"a loop": ([("return ", "while True: ")], "doesn't end")}}
