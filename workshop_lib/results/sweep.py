"""Run the same training on several numbers of ranks, one job at a time."""

import time
from collections.abc import Callable, Iterator, Mapping

from workshop_lib import training
from workshop_lib.errors import InputError
from workshop_lib.results import records
from workshop_lib.training import equivalence
from workshop_lib.training.load import Meter
from workshop_lib.words import duration, plural


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

    `start(n)` returns a team of n ranks. `options` is a list of TrainOptions, or a function that returns such a list
    for n ranks, as in weak scaling, where the samples grow with the ranks. Each repeat goes through all options
    before the next repeat begins, so that a slow minute of the machine affects all of them. With `restart`, each
    repeat also goes through all numbers of ranks. That starts the ranks anew each time, but keeps a slow quarter of an
    hour from distorting the efficiency. Runs never overlap, because they would share the cores they are measured on.

    Each run prints a line with the estimated time for the rest, and a warning if other programs used the cores
    meanwhile. `show` adds the run's own progress. `compare` adds to the records how far each of the options is from
    one process (training/equivalence.py). Raises InputError if `repeats` is less than 1.
    """
    if repeats < 1:
        raise InputError(f"repeats is {repeats}; it must be at least 1.")
    rounds = [(n, repeat) for n in rank_counts for repeat in range(repeats)]
    if restart:
        rounds.sort(key=lambda each: each[1])
    plan = {n: options(n) if callable(options) else options for n in rank_counts}
    pending = [option for n, _ in rounds for option in plan[n]]
    total = len(pending)
    comparisons: dict[tuple, dict] = {}
    seconds: dict = {}  # by option: how long its last run took
    for n, _ in rounds:
        began = time.monotonic()
        team = start(n)
        for option in plan[n]:
            others = Meter()
            record = team.train(option, timeout=timeout_s, show=show)
            warning = others.warning(n)
            if compare:
                if (n, option) not in comparisons:
                    comparisons[n, option] = team.run(equivalence.compare, option, timeout=timeout_s, show=False)[0]
                record = {"ladder": comparisons[n, option]} | record
            pending.pop(0)
            seconds[option], began = time.monotonic() - began, time.monotonic()
            number = total - len(pending)
            print(f"{result_line(record)}; run {number} of {total}{_time_left(pending, seconds)}", flush=True)
            if warning and not team.attached_only:  # attached ranks count as other programs
                print(f"  {warning}", flush=True)
            yield record


def _time_left(options: list, seconds: dict) -> str:
    """The estimated time for runs with these options, based on earlier runs, as text for the end of a line."""
    mean = sum(seconds.values()) / len(seconds)
    left_s = sum(seconds.get(option, mean) for option in options)
    return f", about {duration(left_s)} left" if options else ""


def result_line(record: Mapping) -> str:
    """The result of a run, in one line."""
    what = record["what"]
    epochs = record["epochs"]
    ranks = what["world_size"]
    workers = what.get("emulate_workers")
    name = f"{records.name_of(what)}, {plural(ranks, 'rank')}"
    if workers is not None:
        name += f" as {plural(workers, 'worker')}"
    if not epochs:
        return f"{name}: stopped in the first epoch"
    last = epochs[-1]
    line = (
        f"{name}: {last['samples_per_s']:,.0f} samples/s in the last epoch, test accuracy "
        f"{last['test_accuracy']:.2%}, weights identical on all ranks"
    )
    if training.diverged(last):
        line += "; diverged"
    if record["stopped"]:
        line += "; stopped"
    return line
