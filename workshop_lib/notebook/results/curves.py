"""From run records to curves: throughput, speed-up and efficiency with their spread, and accuracy against workers."""

import math
from collections.abc import Iterable

import pandas as pd
from rich.table import Table

from workshop_lib.machine import catalogue, load
from workshop_lib.notebook.results import records
from workshop_lib.notebook.results.records import RecordError
from workshop_lib.notebook.results.tables import rich_table
from workshop_lib.training import KINDS, equivalence, options
from workshop_lib.training.record import cores_in_words

SPEEDS = ["first_epoch_s", "first_epoch_samples_per_s", "samples_per_s"]
OUTCOMES = ["test_accuracy", "seconds_to_99", "ladder_difference", "samples_per_rank", "state_bytes"]

# Columns, with their headings, that are shown if any record has a value for them.
MORE_COLUMNS = {"state_bytes": "KB of\nstate", "ladder_difference": "param.\ndiffer-\nence"}

# What the points of a figure must have in common: a curve over two machines or settings means nothing.
SAME_MACHINE = ["machine", "stands_for", "device", "cpu_model", "threads_per_rank", "bind"]
SAME_RESULT = options.must_be_same(options.RESULT)

# Training accuracy in % by ranks, read off the scaling figure of the Theta hands-on: Horovod's PyTorch MNIST example on
# 128 nodes, 32 epochs, learning rate 0.01 times the ranks, no warm-up.
PUBLISHED = {8: 96, 16: 96, 32: 96, 64: 93, 128: 11, 256: 11}

NOTHING = "no finished training run among these records: nothing to draw or compare."


def to_frame(runs: Iterable[dict]) -> pd.DataFrame:
    """A table with one row per training run, and the columns of `_row` and `repeat`. Other records are left out.

    `first_epoch_only` says that `samples_per_s` covers the first epoch, because the run has no other. `repeat` counts
    the runs of the same backend, world size and batch size from 0; each stage of ZeRO counts as a backend of its own.
    `bind` is "core" if `binding` names cores.

    Raises RecordError naming a missing field, or if there is no training run.
    """
    rows = [_row(record, number) for number, record in enumerate(runs, 1) if record.get("kind") == "train"]
    if not rows:
        raise RecordError(NOTHING)
    frame = pd.DataFrame(rows)
    frame["repeat"] = frame.groupby(["backend", "world_size", "batch_size"]).cumcount()
    return frame.astype(dict.fromkeys(SPEEDS + OUTCOMES, float))


def _row(record: dict, number: int) -> dict:
    records.check(record, f"training record {number}")
    what = record["what"]
    where = record["where"]
    epochs = record["epochs"]
    first = epochs[0] if epochs else {"seconds": None, "samples_per_s": None}
    return {
        "backend": records.name_of(what),
        **{name: what[name] for name in ("world_size", "batch_size", "global_batch")},
        **{name: what.get(name) for name in ("machine", "stands_for", "threads_per_rank", "binding")},
        **{name: what[name] for name in SAME_RESULT},
        "data_dir": what["data_dir"] or "MNIST",
        # `binding` names cores, which differ between numbers of ranks. `bind` does not.
        "bind": "none" if what.get("binding", "none") == "none" else "core",
        "samples_per_rank": what["train_samples"] / what["world_size"] if what["train_samples"] else None,
        "oversubscribed": what["oversubscribed"],
        "stopped": bool(record.get("stopped", False)),
        "first_epoch_s": first["seconds"],
        "first_epoch_samples_per_s": first["samples_per_s"],
        "first_epoch_only": len(epochs) == 1,
        "samples_per_s": samples_per_s(record),
        "test_accuracy": epochs[-1]["test_accuracy"] if epochs else None,
        "seconds_to_99": record["seconds_to_99"],
        "ranks_identical": bool(record["ranks_identical"]),
        "state_bytes": _state_bytes(record.get("memory")),
        "ladder_difference": record.get("ladder", {}).get("largest_relative_difference"),
        **{name: where.get(name) for name in ("device", "cpu_model")},
        "cores": cores_in_words(where) if "cores" in where else None,
    }


def _state_bytes(memory: dict | None) -> int | None:
    """Bytes of parameters, gradients and optimizer state together, on the rank that holds most; None if unknown."""
    kinds = [(memory or {}).get(f"{kind}_bytes") or [None] for kind in KINDS]
    ranks = list(zip(*kinds, strict=True))
    return None if any(None in rank for rank in ranks) else max(map(sum, ranks))


def samples_per_s(record: dict) -> float | None:
    """A run's speed after its first epoch, which pays for start-up (page faults, thread pools, connections).

    In a run of one epoch, the speed of that epoch; None without a full epoch.
    """
    epochs = record["epochs"][1:] or record["epochs"]
    if not epochs:
        return None
    samples = sum(epoch["seconds"] * epoch["samples_per_s"] for epoch in epochs)
    return samples / sum(epoch["seconds"] for epoch in epochs)


def throughput(frame: pd.DataFrame, same: str = "batch_size", work: str = "train_samples") -> pd.DataFrame:
    """Median, lowest and highest samples/s over the repeats, per backend, `same` and world_size.

    `same` is what the points of one curve have in common: "batch_size" (per rank) or "global_batch". `work` is
    the amount of work that is fixed: "train_samples", or "samples_per_rank" in weak scaling. Stopped runs and
    runs without a full epoch are left out.

    Raises RecordError if the runs differ in machine, data, settings or work.
    """
    runs = _finished(frame)
    if runs.empty:
        raise RecordError(NOTHING)
    require_same(runs, [*SAME_MACHINE, *options.must_be_same(options.SPEED), work])
    groups = runs.groupby(["backend", same, "world_size"], sort=True)
    return groups.agg(
        samples_per_s=("samples_per_s", lambda speeds: 1 / (1 / speeds).median()),  # the median time, as in tables
        samples_per_s_min=("samples_per_s", "min"),
        samples_per_s_max=("samples_per_s", "max"),
        first_epoch_samples_per_s=("first_epoch_samples_per_s", "median"),
        repeats=("repeat", "count"),
        oversubscribed=("oversubscribed", "any"),
        first_epoch_only=("first_epoch_only", "any"),
    ).reset_index()


def _finished(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs that nobody stopped and that have at least one full epoch."""
    return frame[~frame["stopped"] & frame["samples_per_s"].notna()]


def require_same(runs: pd.DataFrame, names: list[str]) -> None:
    """Raise RecordError naming the first of these columns in which the runs differ, and its values."""
    for name in names:
        values = sorted("not given" if pd.isna(value) else str(value) for value in runs[name].unique())
        if len(values) > 1:
            raise RecordError(
                f"these records mix runs with {name} = {' and '.join(values)}; "
                "compare runs of one machine and one setting, each from its own file."
            )


def strong_scaling(frame: pd.DataFrame, same: str = "batch_size") -> pd.DataFrame:
    """The table of `throughput`, plus `speedup` and `efficiency` (1 = perfect), each with _min and _max.

    The baseline of both is the median of the same backend and batch on 1 rank. Their _min and _max show the
    spread of the N-rank repeats alone.

    Raises RecordError if a curve has no 1-rank run.
    """
    return _against_one_rank(throughput(frame, same), same)


def weak_scaling(frame: pd.DataFrame) -> pd.DataFrame:
    """The table of `strong_scaling` for runs whose samples grow with the ranks, plus `epoch_s` (with _min and _max)
    and `first_epoch_s`.

    N ranks do N times the work of one rank, so `speedup`, the ratio of the throughputs, is the scaled speed-up
    (Gustafson 1988), and `efficiency` is (seconds on 1 rank) / (seconds on N ranks).

    Raises RecordError if a curve has no 1-rank run, or if the samples per rank differ.
    """
    runs = _finished(frame)
    if runs["samples_per_rank"].isna().any():
        raise RecordError("weak scaling needs runs with `train_samples`: samples per rank × ranks.")
    points = _against_one_rank(throughput(runs, work="samples_per_rank"), "batch_size")
    samples = points["world_size"] * runs["samples_per_rank"].iloc[0]
    speeds = {"": "samples_per_s", "_min": "samples_per_s_max", "_max": "samples_per_s_min"}
    seconds = {f"epoch_s{end}": samples / points[speed] for end, speed in speeds.items()}
    return points.assign(**seconds, first_epoch_s=samples / points["first_epoch_samples_per_s"])


def _against_one_rank(points: pd.DataFrame, same: str) -> pd.DataFrame:
    single = points[points["world_size"] == 1].set_index(["backend", same])["samples_per_s"]
    keys = pd.MultiIndex.from_frame(points[["backend", same]])
    for backend, batch in keys.unique():
        if (backend, batch) not in single.index:
            raise RecordError(
                f"no 1-rank run of {backend} with {same} {batch}, so there is no baseline for its "
                f"speed-up; run `workshop sweep` with 1 among its ranks for {backend}."
            )
    baseline = single.reindex(keys).to_numpy()
    points = points.copy()
    for end in ("", "_min", "_max"):
        points[f"speedup{end}"] = points[f"samples_per_s{end}"] / baseline
        points[f"efficiency{end}"] = points[f"speedup{end}"] / points["world_size"]
    return points


def recipe(what: dict) -> str:
    """How a run sets the learning rate for its workers, in words: "linear, 5 warm-up epochs"."""
    parts = [] if what["optimizer"] == "sgd" else [what["optimizer"].upper()]
    parts.append({"none": f"rate {what['lr']:g}", "sqrt": "square root", "linear": "linear"}[what["lr_scaling"]])
    if what["warmup_epochs"]:
        kind = "constant " if what["warmup"] == "constant" else ""
        parts.append(f"{what['warmup_epochs']:g} {kind}warm-up epochs")
    return ", ".join(parts)


def accuracies(runs: Iterable[dict]) -> pd.DataFrame:
    """A table with one row per run: recipe, workers, seed, and the last epoch's test_accuracy and train_accuracy in %.

    Raises RecordError if runs differ in more than the recipe, if runs of one recipe differ in more than the workers
    and the seed, or if no run has ended.
    """
    ended = [record for record in runs if record.get("kind") == "train" and record["epochs"] and not record["stopped"]]
    if not ended:
        raise RecordError(NOTHING)
    whats = [record["what"] for record in ended]
    chosen = pd.DataFrame(whats)
    require_same(chosen, options.must_be_same(options.WORKERS))
    for _, of_recipe in chosen.groupby([recipe(what) for what in whats]):
        require_same(of_recipe, options.must_be_same(options.RECIPE))
    return pd.DataFrame([_accuracy(what, record["epochs"][-1]) for what, record in zip(whats, ended, strict=True)])


def _accuracy(what: dict, last: dict) -> dict:
    return {
        "recipe": recipe(what),
        "workers": what["emulate_workers"] or what["world_size"],
        "seed": what["seed"],
        "test_accuracy": 100 * last["test_accuracy"],
        "train_accuracy": 100 * last["train_accuracy"],
    }


def summary(runs: Iterable[dict]) -> Table:
    """A rich table of what a sweep with one batch size measured, with one row per backend and number of ranks.

    Numbers are medians over the repeats; efficiency is a dash if there is no 1-rank run. Two columns appear
    only if a record has values for them: the bytes of state on the rank that holds most (`record["memory"]`), and
    the largest parameter difference (`record["ladder"]["largest_relative_difference"]`).
    """
    frame = to_frame(runs)
    points = throughput(frame).set_index(["backend", "world_size"])
    more = {name: heading for name, heading in MORE_COLUMNS.items() if frame[name].notna().any()}
    headings = ["samples/s\n(spread)", "effi-\nciency", "test\naccuracy", "s to\n99 %", "ranks\nequal", *more.values()]
    table = rich_table("backend", "ranks", *headings, caption=_caption(frame, points, more))
    for key, group in _finished(frame).groupby(["backend", "world_size"], sort=True):
        backend, ranks = key
        point = points.loc[key]
        efficiency = point["samples_per_s"] / points["samples_per_s"].get((backend, 1), math.nan) / ranks
        mark = "*" if point["oversubscribed"] else ""
        cells = [backend, f"{ranks}{mark}", _spread(point), _number(100 * efficiency, "{:.0f} %"), *_outcome(group)]
        extra = {
            "state_bytes": _number(group["state_bytes"].max() / 1e3, "{:,.0f}"),
            "ladder_difference": _number(group["ladder_difference"].max(), "{:.1e}"),
        }
        table.add_row(*cells, *(extra[name] for name in more))
    return table


def _outcome(runs: pd.DataFrame) -> list[str]:
    """Accuracy, seconds to 99 % and whether ranks agreed, over the repeats of one configuration."""
    reached = runs["seconds_to_99"].notna().sum()
    seconds = _number(runs["seconds_to_99"].median(), "{:.1f}")
    if 0 < reached < len(runs):
        seconds += f" ({reached}/{len(runs)})"
    accuracy = _number(100 * runs["test_accuracy"].median(), "{:.2f} %")
    return [accuracy, seconds, "yes" if runs["ranks_identical"].all() else "NO"]


def _spread(point: pd.Series) -> str:
    middle, low, high = (point[f"samples_per_s{end}"] for end in ("", "_min", "_max"))
    mark = "†" if point["first_epoch_only"] else ""
    if point["repeats"] == 1:
        return f"{middle:,.0f}{mark}"
    return f"{middle:,.0f} ({100 * (high - low) / middle:.0f} %){mark}"


def _number(value: float, form: str) -> str:
    return "–" if pd.isna(value) else form.format(value)


def emulated_on(frame: pd.DataFrame) -> str:
    """Where runs were emulated, for titles and captions: "emulated on polaris". Empty if their times were measured."""
    names = [name for name in frame["machine"].unique() if name]
    models = [f", as {name}" for name in frame["stands_for"].unique() if name]
    return f"emulated on {' and '.join(map(catalogue.label, names))}{''.join(models)}" if names else ""


def doubts(points: pd.DataFrame) -> list[str]:
    """A sentence for each point of `throughput` whose speed-up against 1 rank is almost certainly wrong."""
    found = []
    one_rank = points[points["world_size"] == 1].set_index("backend")["samples_per_s"]
    for _, point in points[points["world_size"] > 1].iterrows():
        speedup = point["samples_per_s"] / one_rank.get(point["backend"], math.nan)
        found.append(load.doubt(speedup, point["world_size"], point["backend"], bool(point["oversubscribed"])))
    return [sentence for sentence in found if sentence]


def _caption(frame: pd.DataFrame, points: pd.DataFrame, more: dict[str, str]) -> str:
    notes = [
        *([f"{emulated_on(frame)}: no time was measured"] if emulated_on(frame) else []),
        "samples/s: median of the repeats, first epochs left out",
        "spread: slowest to fastest repeat, of the median",
        f"efficiency: against 1 rank of the same backend and batch ({frame['batch_size'].iloc[0]} a rank)",
    ]
    if "state_bytes" in more:
        notes.append("state: parameters, gradients and optimizer state; deepspeed-N: stage N of ZeRO")
    if "ladder_difference" in more:
        notes.append(f"parameter difference: after {equivalence.STEPS} steps, to one process with the global batch")
    if not emulated_on(frame):  # emulated time is the same whatever else runs
        notes += doubts(points.reset_index())
    if points["oversubscribed"].any():
        shared = frame.loc[frame["oversubscribed"], "cores"].dropna()
        on = f" ({', '.join(shared.unique())})" if len(shared) else ""
        notes.append(f"* more ranks than cores{on}")
    if points["first_epoch_only"].any():
        notes.append("† some runs have one epoch only: start-up included")
    return "\n".join(notes)
