"""Checks of the exercises in 04_horovod_tensorflow."""

import numpy as np

from workshop_lib.notebook.checks import Verdict, judged
from workshop_lib.probes import horovod_keras as probes
from workshop_lib.probes.compare import close

LIMIT_S = 30.0  # TensorFlow turns functions into graphs, which takes seconds
FLOAT32 = 1e-4  # rounding of float32 over some steps


def averaging(optimizer) -> Verdict:
    """`averaging(optimizer)` returns one like it that uses the mean of all ranks' gradients."""
    stuck = "some rank waits for an allreduce that another one never starts: all ranks must average, always."
    return judged(optimizer, probes.averaging, _judge_averaging, timeout=LIMIT_S, stuck=stuck, ready=probes.join)


def train(function) -> Verdict:
    """`train(model, images, labels, …)` trains one model on all ranks together."""
    stuck = (
        "some rank waits for the others, which are elsewhere. All must take the same number of steps, and "
        "all must call every allreduce and broadcast, not rank 0 alone."
    )
    return judged(function, probes.train, _judge_train, timeout=LIMIT_S, stuck=stuck, ready=probes.join)


def _judge_averaging(facts: list[list[dict]]):
    *stepped, fitted = ([of_rank[case] for of_rank in facts] for case in range(len(facts[0])))
    first = stepped[0][0]
    hint = f"it returned {first['type']}. Did you forget `return`, or return the class instead of an object?"
    yield "it returns an optimizer", all(row["optimizer"] for rows in stepped for row in rows), hint
    hint = "given an Adam, it must return an Adam: derive your class from `type(optimizer)`."
    yield "of the kind that it was given", all(row["is_kind"] for rows in stepped for row in rows), hint
    lost = next(
        (
            (name, value, row["got_settings"].get(name))
            for rows in stepped
            for row in rows
            for name, value in row["settings"].items()
            if row["got_settings"].get(name) != value
        ),
        None,
    )
    hint = (
        "" if lost is None else f"`{lost[0]}` was {lost[1]:g} and is {lost[2]}: `from_config` takes over all of them."
    )
    yield "with its settings", lost is None, hint
    for rows, what in zip(stepped, ("SGD with momentum", "Adam", "SGD with clipped gradients"), strict=True):
        same = all(np.array_equal(row["got"], rows[0]["got"]) for row in rows)
        yield f"{what}: the ranks agree after {probes.STEPS} steps", same, _apart_hint(rows)
        right = close(rows[0]["got"], rows[0]["expected"], FLOAT32)
        yield (f"{what}: as one process with the mean of the gradients", right, "" if right else _step_hint(rows[0]))
    mean = (fitted[0]["size"] - 1) / 2
    weights = ", ".join(f"{row['weight']:g}" for row in fitted)
    hint = (
        f"a step that should give {mean:g} gave {weights} by rank: "
        "`fit` and `apply_gradients` both end in `apply`, which is the method to replace."
    )
    yield "model.fit averages too", all(close(row["weight"], mean, 1e-5) for row in fitted), hint


def _apart_hint(rows: list[dict]) -> str:
    if all(close(row["got"], row["alone"], FLOAT32) for row in rows):
        return (
            "every rank took its own step. Either nothing was averaged (is the method that you replaced the "
            "one that is called?), or it was averaged after the weights had changed: average first, then "
            "`super().apply`."
        )
    return (
        "the weights differ by rank, though something was sent. Does each rank add a step of its own, before "
        "or after the averaged one? Average first, then call `super().apply` once."
    )


def _step_hint(row: dict) -> str:
    size = row["size"]
    if close(row["got"], row["summed"], FLOAT32):
        return f"they are {size} times too large, a sum: `op=hvd.Average`, or divide by `hvd.size()`."
    if row["clipped_first"] is not None and close(row["got"], row["clipped_first"], FLOAT32):
        return "each rank clipped its own gradients before they were averaged: average first, clip the mean."
    if close(row["got"], row["weights_averaged"], FLOAT32):
        return (
            "each rank stepped with its own gradients, and then the weights were averaged. That is another "
            "algorithm, and not the same for Adam: average the gradients, before the weights change."
        )
    ratio = np.linalg.norm(row["got"]) / np.linalg.norm(row["expected"])
    return f"the weights' norm is {ratio:.3g} times the right one. Is `super().apply` called once, with a mean?"


def _judge_train(facts: list[dict]):
    first, size = facts[0], facts[0]["size"]
    hint = "no step was seen: train with `model.fit`, on every rank."
    yield "every rank trains", all(row["steps"] for row in facts), hint
    yield from _judge_shards(facts)
    agree_at_start = all(close(row["began"], first["start"], 1e-7) for row in facts)
    yield "all ranks begin with rank 0's weights", agree_at_start, _start_hint(facts)
    same = all(np.array_equal(row["trained"], first["trained"]) for row in facts)
    hint = (
        "they began alike and came apart: nothing averages the gradients. Keras's optimizers do not, and "
        "under Keras 3 that of `horovod.tensorflow.keras` does not either: use `keras3.DistributedOptimizer`."
    )
    yield "the ranks agree after training", same, hint
    right = close(first["trained"], first["expected"], FLOAT32)
    hint = "" if right else _value_hint(first)
    yield (f"the weights are those of one process with all samples and {size} times the learning rate", right, hint)
    yield from _judge_files(facts)
    yield from _judge_accuracy(facts)


def _judge_shards(facts: list[dict]):
    size, samples = facts[0]["size"], facts[0]["samples"]
    seen = [[round(x * samples) for batch in row["steps"] for x in batch] for row in facts]
    counts = np.bincount(np.concatenate(seen), minlength=samples)
    right = len(counts) == samples and bool(np.all(counts == probes.EPOCHS))
    hint = "" if right else _shard_hint(facts, seen, counts)
    yield "each sample is trained on once an epoch, by one rank", right, hint
    most = max(len(batch) for row in facts for batch in row["steps"])
    steps = max(len(row["steps"]) for row in facts)
    hint = (
        f"`batch_size`, {probes.SAMPLES}, is that of one rank, and a step took {most} samples. The learning "
        f"rate is scaled because the global batch is {size} times as large."
    )
    yield "each rank takes batches of `batch_size`", (most, steps) == (probes.SAMPLES, probes.EPOCHS), hint


def _shard_hint(facts: list[dict], seen: list[list[int]], counts: np.ndarray) -> str:
    if any({"local_rank", "local_size"} & set(row["asked"]) for row in facts):
        return (
            "the check pretends that each rank has a host of its own, and then ranks take the same samples: "
            "`local_rank()` counts on one host, to choose a GPU. Share out by `rank()` and `size()`."
        )
    if all(set(ids) == set(range(len(counts))) for ids in seen):
        return "every rank trains on all samples: give it its part, such as `images[hvd.rank()::hvd.size()]`."
    if np.any(counts == 0):
        return f"{np.sum(counts == 0)} of {len(counts)} samples are used by nobody. Do all ranks take one part?"
    return "some samples are used more often than others: the parts overlap."


def _start_hint(facts: list[dict]) -> str:
    if all(np.array_equal(row["began"], facts[-1]["began"]) for row in facts):
        return "all ranks begin alike, but not with rank 0's weights: is `root_rank` 0?"
    later = [row["second"] for row in facts]
    if all(w is not None and np.array_equal(w, later[0]) for w in later):
        return (
            "the ranks differ in the first step and agree in the second: broadcast before the first step "
            "(`on_train_begin`), not after it."
        )
    return (
        "each begins with weights of its own, and averaged gradients do not bring them together: "
        "`keras3.BroadcastVariables()` among the callbacks, or `hvd.broadcast_variables` before `fit`."
    )


def _value_hint(row: dict) -> str:
    size = row["size"]
    if close(row["trained"], row["unscaled"], FLOAT32):
        return (
            f"they are those of the learning rate as it was. The global batch is {size} times as large: "
            f"multiply the learning rate by `hvd.size()`."
        )
    if close(row["trained"], row["root"], FLOAT32):
        return "the learning rate grew with the root of the ranks; this exercise asks for `lr * hvd.size()`."
    if close(row["trained"], row["summed"], FLOAT32):
        return f"the steps are {size} times too large: scaled twice, or summed where the mean is meant."
    return "the ranks agree, but on other weights. Is it SGD with momentum 0.9, the same loss, `epochs` epochs?"


def _judge_files(facts: list[dict]):
    hint = "rank 0 wrote no file: `model.save(path)`."
    yield "rank 0 saves", bool(facts[0]["files"]), hint
    others = [rank for rank, row in enumerate(facts) if row["files"] and rank]
    hint = (
        f"rank {', '.join(map(str, others))} saved as well: on one file system all write into one file. "
        "`if hvd.rank() == 0:`."
    )
    yield "no other rank does", not others, hint
    saved = facts[0]["saved"]
    right = saved is not None and np.allclose(np.sort(saved), np.sort(facts[0]["trained"]))
    hint = "the file does not hold the trained weights: save with `model.save(path)`, after training."
    yield "the file holds the trained weights", right, hint


def _judge_accuracy(facts: list[dict]):
    returned, right = [row["returned"] for row in facts], facts[0]["accuracy"]
    numbers = all(isinstance(value, float) for value in returned)
    yield ("it returns a number", numbers, f"it returned {returned[0]} on rank 0: return the accuracy, on all ranks.")
    exact = all(abs(value - right) < 1e-6 for value in returned)
    hint = "" if exact else _accuracy_hint(facts, returned)
    yield "on every rank, the accuracy over all test samples, each counted once", exact, hint


def _accuracy_hint(facts: list[dict], returned: list[float]) -> str:
    def all_near(name):
        return all(abs(value - row[name]) < 1e-6 for value, row in zip(returned, facts, strict=True))

    values = ", ".join(f"{value:.4g}" for value in returned)
    told = f"it returned {values} by rank, not {facts[0]['accuracy']:.4g}: "
    if all_near("own_accuracy"):
        return told + "each rank reports its own part. Add up the right ones and the samples over all ranks."
    if all_near("mean_accuracy"):
        return told + "the mean of the ranks' accuracies, but their parts differ in size. Add counts, then divide."
    if len(set(returned)) > 1:
        return told + "the ranks do not agree: every one must take part in the sum, and return its outcome."
    if all_near("right"):
        return told + "that is a count. Divide it by the number of test samples."
    return told + "which sums does it divide?"
