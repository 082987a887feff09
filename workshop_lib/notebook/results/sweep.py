"""Run the same training on several numbers of ranks, one job at a time."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from workshop_lib import training
from workshop_lib.errors import InputError
from workshop_lib.machine import catalogue
from workshop_lib.machine.cores import usable_cores
from workshop_lib.machine.load import Meter
from workshop_lib.notebook.results import records
from workshop_lib.training import equivalence
from workshop_lib.words import duration, plural


class MeasuredRun(NamedTuple):
    """A run of a sweep that has ended. `warning` says so if other programs used its cores."""

    record: dict
    number: int  # from 1
    total: int
    later_s: list[float]  # the expected times of the runs that are left, in order
    warning: str

    @property
    def left_s(self) -> float:
        """The expected time until the end of the sweep."""
        return sum(self.later_s)


class SweepText:
    """Shows a sweep as text: a line for each run, with its result and the time left.

    runs_show: whether a run shows its own progress. The sweep ends after a run during which `stop_requested` became
    true.
    """

    def __init__(self, runs_show: bool = True):
        self.runs_show = runs_show
        self.stop_requested = False

    def begin(self, number: int, total: int, n: int) -> Any:
        """A run on n ranks begins, the first having the number 1; returns the `show` of Ranks.train."""
        return self.runs_show

    def measured(self, run: MeasuredRun) -> None:
        """A run has ended."""
        left = f", about {duration(run.left_s)} left" if run.number < run.total else ""
        print(f"{result_line(run.record)}; run {run.number} of {run.total}{left}", flush=True)
        if run.warning:
            print(f"  {run.warning}", flush=True)

    def end(self) -> None:
        """The sweep has ended, in whatever way."""


def sweep(
    start: Callable,
    rank_counts: list[int],
    options: list | Callable[[int], list],
    repeats: int = 1,
    timeout_s: float = 3600.0,
    compare: bool = False,
    restart: bool = False,
    view: Any = None,
) -> Iterator[dict]:
    """Yield a run record for each number of ranks, repeat and TrainOptions, as each run ends.

    `start(n)` returns a team of n ranks. `options` is a list of TrainOptions, or a function that returns such a list
    for n ranks, as in weak scaling, where the samples grow with the ranks. Each repeat goes through all options
    before the next repeat begins, so that a slow minute of the machine affects all of them. With `restart`, each
    repeat also goes through all numbers of ranks. That starts the ranks anew each time, but keeps a slow quarter of an
    hour from distorting the efficiency. Runs never overlap, because they would share the cores they are measured on.

    Each run shows its own progress and prints a line with the estimated time for the rest, and a warning if other
    programs used the cores meanwhile. A `view`, an object like SweepText, shows the sweep instead; the run during which
    it asks to stop is the last, and isn't yielded. `compare` adds to the records how far each of the options is from
    one process (training/equivalence.py). Raises InputError if `repeats` is less than 1.
    """
    view = view or SweepText()
    if repeats < 1:
        raise InputError(f"repeats is {repeats}; it must be at least 1.")
    rounds = [(n, repeat) for n in rank_counts for repeat in range(repeats)]
    if restart:
        rounds.sort(key=lambda each: each[1])
    plan = {n: options(n) if callable(options) else options for n in rank_counts}
    pending = [n for n, _ in rounds for _ in plan[n]]
    total = len(pending)
    comparisons: dict[tuple, dict] = {}
    seconds: dict[int, list[float]] = {}  # by number of ranks: how long each run took, without the start of its ranks
    starts_s: list[float] = []
    try:
        for n, _ in rounds:
            began = time.monotonic()
            team = start(n)
            starts_s.append(time.monotonic() - began)
            for option in plan[n]:
                began = time.monotonic()
                number = total - len(pending) + 1
                others = Meter()
                record = team.train(option, timeout=timeout_s, show=view.begin(number, total, n))
                if view.stop_requested:
                    return
                # Attached ranks would count as other programs. Emulated time is the same whatever else runs.
                warning = "" if team.attached_only or record["what"]["machine"] else others.warning(n)
                if compare:
                    if (n, option) not in comparisons:
                        comparisons[n, option] = team.run(equivalence.compare, option, timeout=timeout_s, show=False)[0]
                    record = {"ladder": comparisons[n, option]} | record
                pending.pop(0)
                seconds.setdefault(n, []).append(time.monotonic() - began)
                emulated = bool(record["what"]["machine"])
                start_s = statistics.mean(starts_s) * (len(rounds) - len(starts_s)) / max(1, len(pending))
                later_s = [start_s + expected_s(seconds, later, emulated) for later in pending]
                view.measured(MeasuredRun(record, number, total, later_s, warning))
                yield record
    finally:
        view.end()


def expected_s(seconds: Mapping[int, list[float]], n: int, emulated: bool) -> float:
    """The expected time of a run on n started ranks, from the times of earlier runs by their number of ranks.

    Other numbers of ranks are expected to take as long as the nearest that has run. Ranks that emulate a machine
    take longer the more of them share a core, because each computes for a device of its own.
    """
    nearest = min(seconds, key=lambda known: abs(known - n))
    expected = statistics.mean(seconds[nearest])
    if emulated:
        cores = usable_cores()
        expected *= max(n, cores) / max(nearest, cores)
    return expected


def result_line(record: Mapping) -> str:
    """The result of a run, in one line."""
    what = record["what"]
    epochs = record["epochs"]
    ranks = what["world_size"]
    workers = what.get("emulate_workers")
    name = f"{records.name_of(what)}, {plural(ranks, 'rank')}"
    if what.get("machine"):
        name += f" emulated on {catalogue.label(what['machine'])}"
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
