"""Run the same training on several numbers of ranks, one job at a time."""

from collections.abc import Callable, Iterator


def sweep(
    start: Callable,
    rank_counts: list[int],
    options: list,
    repeats: int = 1,
    timeout_s: float = 3600.0,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[dict]:
    """Yield a run record for each number of ranks, repeat and TrainOptions, as each run ends.

    `start(n)` gives a team of n ranks. Repeats go round the options, so that a slow minute of the
    machine touches all of them; runs never overlap, since they would share the cores they are measured on.
    """
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; it must be at least 1.")
    for n in rank_counts:
        team = start(n)
        for repeat in range(repeats):
            for option in options:
                again = f", repeat {repeat + 1} of {repeats}" if repeats > 1 else ""
                say(f"{option.backend}, {n} rank{'s' * (n > 1)}{again}")
                yield team.train(option, timeout=timeout_s)
