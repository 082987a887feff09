"""Tables of a sweep's records: 08_scaling_curves fills them in with the functions that learners write."""

from collections.abc import Callable, Iterable, Mapping
from statistics import mean, median

import pandas as pd

from workshop_lib.exercises.judge import own_or_solution
from workshop_lib.machine import catalogue, load

from lessons.scaling_curves.judge import NOTEBOOK

ONE_RANK_ALONE = "No run on more than one rank is done, so there is nothing to compare. Run the sweep's cell again."
BACKENDS = ("mpi", "ddp")


def epoch_seconds(records: Iterable[dict], backend: str) -> dict[int, list[list[float]]]:
    """The seconds of each epoch of each run of a backend: {ranks: [run, …]}."""
    seconds: dict[int, list[list[float]]] = {}
    for record in records:
        if record["what"]["backend"] == backend:
            run = [epoch["seconds"] for epoch in record["epochs"]]
            seconds.setdefault(record["what"]["world_size"], []).append(run)
    return seconds


def speedups_of_runs(records: Iterable[dict], backend: str, ranks: int) -> list[float]:
    """The speed-up of each run on this many ranks, against the median run on 1 rank. Empty if there is none.

    First epochs are left out.
    """
    seconds = {n: [mean(run[1:]) for run in runs] for n, runs in epoch_seconds(records, backend).items()}
    if 1 not in seconds:
        return []
    one_rank_s = median(seconds[1])
    return [one_rank_s / steady_s for steady_s in seconds.get(ranks, [])]


def speedups(records: list[dict], scaling_table: Callable) -> pd.DataFrame | None:
    """The learner's table for each backend, with the spread of the runs; a sentence if nothing can be compared.

    While `scaling_table` is a stub, the notebook's solution takes its place, and a line says so. A star marks more
    ranks than cores.
    """
    function = own_or_solution(scaling_table, NOTEBOOK)
    rows = []
    for backend, ranks in _compared(records):
        speedup, efficiency = function(epoch_seconds(records, backend))[ranks]
        of_runs = speedups_of_runs(records, backend, ranks)
        chosen = _runs(records, backend, ranks)
        rows.append(
            {
                _where(records): backend,
                "ranks": _starred(chosen, ranks),
                "speed-up": f"{speedup:.2f}",
                "efficiency": f"{efficiency:.0%}",
                "samples/s per rank": f"{_per_rank(records, backend, ranks):,.0f}",
                "slowest to fastest": f"{min(of_runs):.2f} to {max(of_runs):.2f}",
            }
        )
        doubt = load.doubt(speedup, ranks, backend, oversubscribed=_share_cores(chosen))
        if doubt and not records[0]["what"]["machine"]:  # emulated time is the same whatever else runs
            print(doubt)
    return _table(rows)


def serial_fractions(seconds: Mapping[str, Mapping[int, float]], serial_fraction: Callable) -> pd.DataFrame | None:
    """Speed-up, efficiency and the learner's serial fraction for the seconds of several curves, {title: {ranks: s}}."""
    function = own_or_solution(serial_fraction, NOTEBOOK)
    rows = []
    for title, times in seconds.items():
        for ranks, time_s in times.items():
            if ranks == 1:
                continue
            speedup = times[1] / time_s
            rows.append(
                {
                    "measured": title,
                    "ranks": ranks,
                    "speed-up": f"{speedup:.2f}",
                    "efficiency": f"{speedup / ranks:.0%}",
                    "serial fraction": f"{function(speedup, ranks):.1%}",
                }
            )
    return _table(rows)


def losses(records: list[dict], serial_fraction: Callable) -> pd.DataFrame | None:
    """The learner's serial fraction of each measured point, next to what was lost and what `Allreduce` took.

    A star marks more ranks than cores. Only the backend `mpi` measures its `Allreduce`; the others have a dash.
    """
    function = own_or_solution(serial_fraction, NOTEBOOK)
    rows = []
    for backend, ranks in _compared(records):
        chosen = _runs(records, backend, ranks)
        speedup = 1 / median(1 / each for each in speedups_of_runs(records, backend, ranks))  # at the median time
        shares = [share for record in chosen if (share := _allreduce_share(record)) is not None]
        rows.append(
            {
                _where(records): backend,
                "ranks": _starred(chosen, ranks),
                "serial fraction": f"{function(speedup, ranks):.1%}",
                "efficiency lost": f"{1 - speedup / ranks:.0%}",
                "samples/s per rank": f"{_per_rank(records, backend, ranks):,.0f}",
                "in Allreduce": f"{median(shares):.0%}" if shares else "–",
            }
        )
    return _table(rows)


def _runs(records: Iterable[dict], backend: str, ranks: int) -> list[dict]:
    return [each for each in records if (each["what"]["backend"], each["what"]["world_size"]) == (backend, ranks)]


def _per_rank(records: Iterable[dict], backend: str, ranks: int) -> float:
    """Samples per second and rank without first epochs: the median over the runs."""
    chosen = _runs(records, backend, ranks)
    return median(mean(epoch["samples_per_s"] for epoch in run["epochs"][1:]) for run in chosen) / ranks


def _compared(records: list[dict]) -> list[tuple[str, int]]:
    """(backend, ranks) of each point that has a run on 1 rank to be compared with; without those on 1 rank."""
    measured = {(record["what"]["backend"], record["what"]["world_size"]) for record in records}
    return [
        (backend, ranks)
        for backend, ranks in sorted(measured, key=lambda point: (BACKENDS.index(point[0]), point[1]))
        if ranks > 1 and (backend, 1) in measured
    ]


def _starred(runs: list[dict], ranks: int) -> str:
    """The number of ranks, with a star if there were more ranks than cores."""
    return f"{ranks}*" if _share_cores(runs) else f"{ranks}"


def _share_cores(runs: list[dict]) -> bool:
    """Whether any of these runs had more ranks than cores."""
    return any(run["what"]["oversubscribed"] for run in runs)


def _allreduce_share(record: dict) -> float | None:
    """The part of a run's time, without its first epoch, that its ranks spent in `Allreduce`; None if not measured."""
    steady = record["epochs"][1:]
    if any(epoch["communication_s"] is None for epoch in steady):
        return None
    return sum(epoch["communication_s"] for epoch in steady) / sum(epoch["seconds"] for epoch in steady)


def _where(records: list[dict]) -> str:
    """The title of the column of backends, which says so if the times are emulated."""
    machine = records[0]["what"]["machine"]
    return f"emulated on {catalogue.label(machine)}" if machine else "backend"


def _table(rows: list[dict]) -> pd.DataFrame | None:
    """The rows as a table. If there are none, as after an early Stop, print a sentence that says so."""
    if not rows:
        print(ONE_RANK_ALONE)
        return None
    first = next(iter(rows[0]))
    return pd.DataFrame(rows).set_index([first, "ranks"])
