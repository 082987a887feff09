"""Run the same training on several numbers of ranks, one job at a time."""

import time
from collections.abc import Callable, Iterator, Mapping

from workshop_lib import training
from workshop_lib.errors import InputError
from workshop_lib.results import records
from workshop_lib.training import equivalence
from workshop_lib.training.load import Meter


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
    Each run prints a line with the time that the rest will take, and one that says so if other programs had the
    cores meanwhile; `show` adds the run's own progress. `compare`
    adds to the records how far each of the options is from one process (training/equivalence.py).
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
    seconds: dict = {}  # that the last run with each of the options took
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
            if warning and not team.attached_only:  # ranks that another process started count as others
                print(f"  {warning}", flush=True)
            yield record


def _time_left(options: list, seconds: dict) -> str:
    """What runs with these options will take, judged by what earlier ones took, as the end of a line."""
    mean = sum(seconds.values()) / len(seconds)
    left_s = sum(seconds.get(option, mean) for option in options)
    left = f"{left_s / 60:.0f} min" if left_s >= 90 else f"{left_s:.0f} s"
    return f", about {left} left" if options else ""


def result_line(record: Mapping) -> str:
    """The result of a run, in one line."""
    what, epochs = record["what"], record["epochs"]
    ranks, workers = what["world_size"], what.get("emulate_workers")
    name = f"{records.name_of(what)}, {ranks} rank{'s' * (ranks > 1)}"
    if workers is not None:
        name += f" as {workers} worker{'s' * (workers > 1)}"
    if not epochs:
        return f"{name}: stopped in the first epoch"
    last = epochs[-1]
    how = "; diverged" * training.diverged(last) + "; stopped" * record["stopped"]
    return (
        f"{name}: {last['samples_per_s']:,.0f} samples/s in the last epoch, test accuracy "
        f"{last['test_accuracy']:.2%}, weights identical on all ranks{how}"
    )
