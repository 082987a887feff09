"""From measured times to the constants of a cost model, with their uncertainty, and to predictions.

Every model here is linear in its constants. They are fitted by least squares of the *relative* error, so that
a latency of microseconds counts as much as a transfer of milliseconds; no constant comes out negative.
Seconds are medians of the rounds of benchmark.py and benchmarks.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from workshop_lib.errors import InputError
from workshop_lib.lessons.forecasting.cost_model import allreduce_s, step_bounds_s

if TYPE_CHECKING:  # it would start MPI here
    from workshop_lib.lessons.forecasting.benchmark import MessageRow

StepRow = Mapping[str, Any]  # of benchmarks.py

# (width, batch per rank) of the networks whose steps are measured: to fit the model, and to test it.
FITTED = tuple((width, batch) for width in (64, 256, 1024) for batch in (16, 64, 256))
HELD_OUT = tuple((width, batch) for width in (96, 128, 192, 384, 512, 768) for batch in (32, 128))


@dataclass(frozen=True)
class Fit:
    """The constants of a model, their standard errors and, of each point, fitted seconds / measured - 1."""

    constants: dict[str, float]
    standard_errors: dict[str, float]
    relative_errors: np.ndarray

    def __getitem__(self, name: str) -> float:
        return self.constants[name]

    def text(self, name: str, scale: float = 1.0) -> str:
        """A constant times `scale`, with its standard error, for a table."""
        value, error = scale * self.constants[name], scale * self.standard_errors[name]
        return f"{value:.3g} ± {error:.1g}" if value < 1000 else f"{value:,.0f} ± {error:,.0f}"


def relative_least_squares(terms: Mapping[str, Any], measured_s: Sequence[float]) -> Fit:
    """Fit seconds = sum of constant x term over these `terms`, each with one value per measurement.

    Minimises the sum of ((fitted - measured) / measured)². A constant that would be negative is 0. Standard
    errors are those of linear regression, from the scatter of the relative errors: they hold as far as the
    model does. Raises InputError for seconds that are not above 0, and for fewer measurements than constants
    and one.
    """
    seconds = np.asarray(measured_s, dtype=float)
    if not (np.isfinite(seconds) & (seconds > 0)).all():
        raise InputError(f"measured seconds must be above 0: {seconds[~(seconds > 0)]}")
    if len(seconds) <= len(terms):
        raise InputError(
            f"{len(seconds)} measurements for {len(terms)} constants ({', '.join(terms)}): measure at least "
            f"{len(terms) + 1} different settings."
        )
    rows = {name: np.asarray(values, dtype=float) / seconds for name, values in terms.items()}
    kept = list(terms)
    while True:
        design = np.stack([rows[name] for name in kept], axis=1)
        # Scaled to length 1, since a term in bytes is a million times one that counts messages.
        lengths = np.linalg.norm(design, axis=0)
        scaled, _, rank, _ = np.linalg.lstsq(design / lengths, np.ones(len(seconds)))
        if rank < len(kept):
            raise InputError(
                f"these measurements cannot tell {', '.join(kept)} apart: vary sizes, batches or ranks more."
            )
        if scaled.min() >= 0:
            break
        kept.pop(int(scaled.argmin()))
    errors = design / lengths @ scaled - 1
    variance = errors @ errors / (len(seconds) - len(kept))
    spread = np.sqrt(variance * np.diag(np.linalg.inv((design / lengths).T @ (design / lengths))))
    zeros = dict.fromkeys(terms, 0.0)
    return Fit(
        zeros | dict(zip(kept, (scaled / lengths).tolist(), strict=True)),
        zeros | dict(zip(kept, (spread / lengths).tolist(), strict=True)),
        errors,
    )


def message_time(rows: Iterable["MessageRow"], way: str = "ping-pong") -> Fit:
    """`latency_s` and `s_per_byte` of a message, or of an allreduce in this way on these ranks, taken whole.

    The model is latency_s + s_per_byte x bytes (Hockney 1994). Raises InputError as `relative_least_squares`.
    """
    chosen = [row for row in rows if row["way"] == way]
    nbytes = [row["message_bytes"] for row in chosen]
    terms = {"latency_s": [1.0] * len(chosen), "s_per_byte": nbytes}
    return relative_least_squares(terms, [row["median_s"] for row in chosen])


def link(rows: Iterable["MessageRow"], ways: Sequence[str]) -> Fit:
    """`latency_s`, `s_per_byte` and `reduce_s_per_byte` that explain a ping-pong and allreduces together.

    They are the alpha, beta and gamma of `cost_model.allreduce_s`, whose algorithms name the `ways`. The
    ping-pong tells alpha and beta, and what the allreduces take beyond them is gamma: summing, and also what
    it costs that both ranks send and receive at once. Raises InputError as `relative_least_squares`.
    """
    chosen = [row for row in rows if row["way"] in ("ping-pong", *ways)]
    # The cost is linear in the three constants, so its value at a unit is what that constant is multiplied with.
    units = zip(("latency_s", "s_per_byte", "reduce_s_per_byte"), np.eye(3).tolist(), strict=True)
    terms = {name: [_message_s(row, *unit) for row in chosen] for name, unit in units}
    return relative_least_squares(terms, [row["median_s"] for row in chosen])


def _message_s(row: "MessageRow", latency_s: float, s_per_byte: float, reduce_s_per_byte: float) -> float:
    if row["way"] == "ping-pong":
        return latency_s + s_per_byte * row["message_bytes"]
    return allreduce_s(row["way"], row["ranks"], row["message_bytes"], latency_s, s_per_byte, reduce_s_per_byte)


def compute_time(rows: Iterable[StepRow]) -> Fit:
    """Seconds of computing a step against batch B and parameters P: t0 + t0' P + (t1 + t1' P) B.

    `a_step_s` (t0) is what any step costs, `a_parameter_s` (t0') what a parameter adds, whose gradient is
    cleared and divided and which is updated once a step, `a_sample_s` (t1) what a sample costs in any
    network, and `a_product_s` (t1') its arithmetic with a parameter. For one network this is t = t0 + t1 B.
    """
    rows = list(rows)
    parameters, batch = (np.array([row[name] for row in rows], float) for name in ("parameters", "batch"))
    return relative_least_squares(compute_terms(parameters, batch), [median(row["compute_s"]) for row in rows])


def compute_terms(parameters, batch) -> dict:
    """What the constants of `compute_time` are multiplied with."""
    return {
        "a_step_s": 1.0 + 0 * batch,
        "a_parameter_s": parameters,
        "a_sample_s": batch,
        "a_product_s": parameters * batch,
    }


def compute_s(fit: Fit, parameters: float, batch: float) -> float:
    """Seconds of computing a step, by a fit of `compute_time`."""
    terms = compute_terms(float(parameters), float(batch))
    return sum(fit[name] * term for name, term in terms.items())


def predicted(rows: Iterable[StepRow], compute: Fit, message: Fit) -> pd.DataFrame:
    """Step times predicted beside those measured (benchmarks.py), one row per setting.

    `low_s` and `high_s` are those of full overlap and of none, max(compute, allreduce) and their sum; a
    blocking allreduce does not overlap, so `predicted_s` is the sum. `error` is predicted / measured - 1.
    """
    lines = []
    for row in rows:
        computing_s = compute_s(compute, row["parameters"], row["batch"])
        allreduce_s_ = message["latency_s"] + message["s_per_byte"] * row["message_bytes"]
        low_s, high_s = step_bounds_s(computing_s, allreduce_s_)
        measured_s = median(row["step_s"])
        lines.append(
            {name: row[name] for name in ("width", "batch", "ranks", "parameters")}
            | {"compute_s": computing_s, "allreduce_s": allreduce_s_, "low_s": low_s, "high_s": high_s}
            | {"predicted_s": high_s, "measured_s": measured_s, "measured_min_s": min(row["step_s"])}
            | {"measured_max_s": max(row["step_s"]), "repeats": len(row["step_s"])}
            | {"error": high_s / measured_s - 1}
        )
    return pd.DataFrame(lines)


@dataclass(frozen=True)
class HeldOut:
    """A tested prediction: the fits, and the table of `predicted` for the steps they use and for the others."""

    compute: Fit
    message: Fit
    fitted: pd.DataFrame
    others: pd.DataFrame

    @property
    def errors(self) -> pd.Series:
        """|predicted / measured - 1| of the held-out settings."""
        return self.others["error"].abs()


def held_out(
    steps: Iterable[StepRow], messages: Iterable["MessageRow"], fitted: Iterable[tuple[int, int]] = FITTED
) -> HeldOut:
    """Fit with the `steps` whose (width, batch) is in `fitted`, and predict all of them.

    `steps` and `messages` are rows of `measure_steps` and of an allreduce benchmark on the same number of ranks; of the
    latter, MPI's own that are about as long as the gradients are used. Raises InputError when no step is left
    to predict, and as `relative_least_squares`.
    """
    steps, fitted = list(steps), set(fitted)
    used = [(row["width"], row["batch"]) in fitted for row in steps]
    if all(used):
        raise InputError("the fit uses every step that was measured: nothing is held out to be predicted.")
    sent = [row["message_bytes"] for row in steps]
    near = [row for row in messages if min(sent) / 4 <= row["message_bytes"] <= 4 * max(sent)]
    compute = compute_time(row for row, use in zip(steps, used, strict=True) if use)
    message = message_time(near, "MPI")
    table = predicted(steps, compute, message)
    return HeldOut(compute, message, table[used], table[[not use for use in used]])


def measure_steps(
    team,
    settings: Iterable[tuple[int, int]] = FITTED + HELD_OUT,
    repeats: int = 5,
    timeout_s: float = 300.0,
    alone: bool = False,
) -> list[StepRow]:
    """Rows of benchmarks.py's `steps` for these (width, batch per rank), measured on these ranks.

    All ranks compute at the same time, as in training: they share caches, the memory's bandwidth and the
    processor's power budget, so that each is slower than it would be `alone`.
    """
    return _on_ranks(team, "steps", timeout_s, list(settings), repeats, alone=alone)


def measure_communication(
    team, sizes_bytes: Iterable[int], repeats: int = 7, timeout_s: float = 300.0
) -> list["MessageRow"]:
    """Rows of benchmarks.py's `communication`, measured on these ranks."""
    return _on_ranks(team, "communication", timeout_s, list(sizes_bytes), repeats)


def _on_ranks(team, name: str, timeout_s: float, *args, **kwargs) -> list:
    """What this function of benchmarks.py returns on rank 0, when all ranks call it."""

    def measure() -> list:
        from workshop_lib.lessons.forecasting import benchmarks  # on the rank: here it would start MPI

        return getattr(benchmarks, name)(*args, **kwargs)

    return team.run(measure, timeout=timeout_s, show=False)[0]
