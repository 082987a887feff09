"""Right answers to the exercises of 00 beside the solutions, and wrong ones beside the known mistakes."""

from lessons.start_here.judge import RANK_AND_SIZE

RIGHT = {
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
WRONG = {
    "whoami": {
        "methods that nobody calls": (
            [(RANK_AND_SIZE, "comm.Get_rank, comm.Get_size")],
            "rank 0 returned a tuple of 2 (`Get_rank` without `()`, `Get_size` without `()`)",
        ),
        "always the world": ([(RANK_AND_SIZE, "MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size")], "or taken from COMM_WORLD"),
    },
    "my_part": {"fractions": ([("//", "/")], "`//` divides")},
}
NEVER_ENDS = {"my_part": {"a loop": ([("return ", "while True: ")], "doesn't end")}}
