"""Run the same training on several numbers of ranks, one job at a time."""

from collections.abc import Callable, Iterator

from workshop_lib.scaling import records
from workshop_lib.training import equivalence


def sweep(
    start: Callable,
    rank_counts: list[int],
    options: list | Callable[[int], list],
    repeats: int = 1,
    timeout_s: float = 3600.0,
    show: bool = True,
    compare: bool = False,
    restart: bool = False,
) -> Iterator[dict]:
    """Yield a run record for each number of ranks, repeat and TrainOptions, as each run ends.

    `start(n)` gives a team of n ranks. `options` is a list of TrainOptions, or a function that gives one for
    n ranks, as in weak scaling, where the samples grow with the ranks. Repeats go round the options, so that
    a slow minute of the machine touches all of them; with `restart` round the numbers of ranks too, which
    costs a start of the ranks each time, and keeps a slow quarter of an hour out of the efficiency. Runs
    never overlap, since they would share the cores they are measured on.
    A line a run is printed; `show` adds each run's own progress. `compare` first compares each of the
    options with one process (training/equivalence.py), and puts what was found into the records.
    """
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; it must be at least 1.")
    blocks = [(n, range(repeats)) for n in rank_counts]
    if restart:
        blocks = [(n, [repeat]) for repeat in range(repeats) for n in rank_counts]
    found = {}
    for n, of_block in blocks:
        team, chosen = start(n), options(n) if callable(options) else options
        if n not in found:
            found[n] = [
                {"ladder": team.run(equivalence.compare, option, timeout=timeout_s, show=False)[0]} if compare else {}
                for option in chosen
            ]
        for repeat in of_block:
            for option, more in zip(chosen, found[n], strict=True):
                record = more | team.train(option, timeout=timeout_s, show=show)
                again = f", repeat {repeat + 1} of {repeats}" if repeats > 1 else ""
                print(f"{result_line(record)}{again}", flush=True)
                yield record


def result_line(record: dict) -> str:
    """What a run came to, in one line."""
    what, epochs = record["what"], record["epochs"]
    ranks = f"{records.name_of(what)}, {what['world_size']} rank{'s' * (what['world_size'] > 1)}"
    if what.get("emulate_workers") is not None:
        ranks += f" as {what['emulate_workers']} worker{'s' * (what['emulate_workers'] > 1)}"
    if not epochs:
        return f"{ranks}: stopped in the first epoch"
    last = epochs[-1]
    stopped = "; stopped" if record["stopped"] else ""
    return (
        f"{ranks}: {last['samples_per_s']:,.0f} samples/s in the last epoch, test accuracy "
        f"{last['test_accuracy']:.2%}, weights identical on all ranks{stopped}"
    )
