"""Fits the constants of a cost model to measured times, and predicts step times from them, for 08c_forecasting.

Every model here is linear in its constants. They are fitted by least squares of the *relative* error, so that a latency
of microseconds counts as much as a transfer of milliseconds, and no constant comes out negative. Seconds are medians
over the rounds of benchmark.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from workshop_lib.errors import InputError
from workshop_lib.forecast import published
from workshop_lib.forecast.forecast import PUNCTUAL

if TYPE_CHECKING:  # importing it at run time would start MPI in the notebook's process
    from workshop_lib.forecast.benchmark import MessageRow

StepRow = Mapping[str, Any]  # stands for benchmark.StepRow

# (width, batch per rank) of the networks whose steps are measured, to fit the model and to test it.
FITTED = tuple((width, batch) for width in (64, 256, 1024) for batch in (16, 64, 256))
HELD_OUT = tuple((width, batch) for width in (96, 128, 192, 384, 512, 768) for batch in (32, 128))


def relative_least_squares(terms: Mapping[str, Any], measured_s: Sequence[float]) -> dict[str, float]:
    """Fit seconds = sum of constant x term over these `terms`, each with one value per measurement.

    Returns the constants, which minimize the sum of ((fitted - measured) / measured)². A constant that would be
    negative is 0. Raises InputError unless there are more measurements than constants, and when the measurements cannot
    tell the constants apart.
    """
    seconds = np.asarray(measured_s, dtype=float)
    if len(seconds) <= len(terms):
        raise InputError(
            f"{len(seconds)} measurements for {len(terms)} constants ({', '.join(terms)}): measure at least "
            f"{len(terms) + 1} different settings."
        )
    rows = {name: np.asarray(values, dtype=float) / seconds for name, values in terms.items()}
    kept = list(terms)
    while True:
        design = np.stack([rows[name] for name in kept], axis=1)
        # Columns are scaled to length 1, because a term in bytes is a million times larger than a number of messages.
        lengths = np.linalg.norm(design, axis=0)
        scaled, _, rank, _ = np.linalg.lstsq(design / lengths, np.ones(len(seconds)))
        if rank < len(kept):
            raise InputError(
                f"these measurements cannot tell {', '.join(kept)} apart: vary sizes, batches or ranks more."
            )
        if scaled.min() >= 0:
            break
        kept.pop(int(scaled.argmin()))
    return dict.fromkeys(terms, 0.0) | dict(zip(kept, (scaled / lengths).tolist(), strict=True))


def message_time(rows: Iterable["MessageRow"], way: str = "ping-pong") -> dict[str, float]:
    """Fit `alpha_s` and `beta_s_per_byte` of a message, or of a whole allreduce in this way on these ranks.

    The model is alpha_s + beta_s_per_byte x bytes (Hockney 1994). Raises InputError for the same reasons as
    `relative_least_squares`.
    """
    chosen = [row for row in rows if row["way"] == way]
    nbytes = [row["message_bytes"] for row in chosen]
    terms = {"alpha_s": [1.0] * len(chosen), "beta_s_per_byte": nbytes}
    return relative_least_squares(terms, [row["median_s"] for row in chosen])


def compute_time(rows: Iterable[StepRow]) -> dict[str, float]:
    """Fit the seconds of computing a step to its batch B and the network's parameters P.

    The model is s_per_step + s_per_parameter P + (s_per_sample + s_per_product P) B. `s_per_step` is the cost of any
    step. `s_per_parameter` is what each parameter adds to a step, in which its gradient is cleared and divided, and the
    parameter updated. `s_per_sample` is the cost of a sample in any network, and `s_per_product` that of its arithmetic
    with one parameter. Raises InputError for the same reasons as `relative_least_squares`.
    """
    rows = list(rows)
    parameters, batch = (np.array([row[name] for row in rows], float) for name in ("parameters", "batch"))
    return relative_least_squares(compute_terms(parameters, batch), [median(row["compute_s"]) for row in rows])


def compute_terms(parameters, batch) -> dict:
    """The factors of the constants of `compute_time`, by the constants' names."""
    return {
        "s_per_step": 1.0 + 0 * batch,
        "s_per_parameter": parameters,
        "s_per_sample": batch,
        "s_per_product": parameters * batch,
    }


def predicted(rows: Iterable[StepRow], compute: Mapping[str, float], message: Mapping[str, float]) -> pd.DataFrame:
    """A table of predicted step times beside measured ones (benchmark.py), with one row per setting.

    `message` has alpha_s and beta_s_per_byte of the allreduce. A blocking allreduce doesn't overlap, so `predicted_s`
    is the sum of computing and allreduce. `error` is predicted / measured - 1.
    """
    lines = []
    for row in rows:
        terms = compute_terms(row["parameters"], row["batch"])
        computing_s = sum(compute[name] * term for name, term in terms.items())
        allreduce_s_ = message["alpha_s"] + message["beta_s_per_byte"] * row["message_bytes"]
        measured_s = median(row["step_s"])
        lines.append(
            {name: row[name] for name in ("width", "batch", "ranks")}
            | {"allreduce_s": allreduce_s_, "predicted_s": computing_s + allreduce_s_, "measured_s": measured_s}
            | {"measured_min_s": min(row["step_s"]), "measured_max_s": max(row["step_s"])}
            | {"repeats": len(row["step_s"]), "error": (computing_s + allreduce_s_) / measured_s - 1}
        )
    return pd.DataFrame(lines)


def published_steps(tables: Iterable[str]) -> list[dict[str, Any]]:
    """The published efficiencies of these tables, each with the seconds of its step as forecast if no device is late.

    Efficiencies are relative to one device. The few that are relative to more devices are left out.
    """
    rows = []
    for entry in published.EVERYTHING:
        if entry.table in tables and entry.baseline == 1:
            for point in published.forecast_of(entry, entry.efficiency, PUNCTUAL):
                row = {"devices": point.devices, "computing_s": point.compute_s, "messages_s": point.data_s}
                rows.append(row | {"step_s": point.step_s, "published": entry.efficiency[point.devices]})
    return rows


def measure_steps(
    team, settings: Sequence[tuple[int, int]] = FITTED + HELD_OUT, repeats: int = 5, timeout_s: float = 300.0
) -> list[StepRow]:
    """Measure training steps for these (width, batch per rank) on the team's ranks: rows of benchmark.py's `steps`.

    All ranks compute at the same time, as in training. They share caches, memory bandwidth and the processor's power
    budget, so each is slower than it would be alone.
    """

    def measure() -> list:
        from workshop_lib.forecast import benchmark  # imported on the ranks: here it would start MPI

        return benchmark.steps(settings, repeats)

    return team.run(measure, timeout=timeout_s, show=False)[0]


def measure_communication(
    team, sizes_bytes: Sequence[int], repeats: int = 7, timeout_s: float = 300.0
) -> list["MessageRow"]:
    """Measure messages and allreduces on the team's ranks: rows of benchmark.py's `communication`."""

    def measure() -> list:
        from workshop_lib.forecast import benchmark

        return benchmark.communication(sizes_bytes, repeats)

    return team.run(measure, timeout=timeout_s, show=False)[0]
