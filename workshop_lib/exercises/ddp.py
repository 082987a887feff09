"""Checks of the exercises in 05_ddp."""

import numpy as np

from workshop_lib.notebook.checks import Verdict, judged, shown
from workshop_lib.probes import ddp as probes
from workshop_lib.probes.compare import close


def accumulate(function) -> Verdict:
    """`accumulate(model, micro_batches, loss_function)` leaves all micro-batches' averaged gradients."""
    stuck = (
        "a rank waits for an allreduce that another one never starts. All ranks must enter `no_sync` for the "
        "same micro-batches, whatever their rank."
    )
    return judged(function, probes.accumulate, _judge_accumulate, stuck=stuck, ready=probes.join)


def average_hook(function) -> Verdict:
    """`average_hook(process_group, bucket)` returns a future of the bucket's mean over the group."""
    stuck = (
        "either some rank never starts its allreduce (all of them must, for every bucket), or the future "
        "that the hook returned is never completed."
    )
    return judged(function, probes.average_hook, _judge_hook, stuck=stuck, ready=probes.join)


def shard_of(function) -> Verdict:
    """`shard_of(n, epoch, rank, size)` returns the samples that `rank` takes in this epoch."""
    stuck = "the function does not end."
    return judged(function, probes.shard_of, _judge_shards, stuck=stuck, ready=probes.join)


def _judge_accumulate(facts: list[list[dict]]):
    several, single = ([of_rank[case] for of_rank in facts] for case in range(2))
    k = several[0]["k"]
    hint = "no backward has run. For each micro-batch: forward, loss, `backward()`."
    yield "every parameter has a gradient", all(row["gradient"] is not None for row in several), hint
    same = all(np.array_equal(row["gradient"], several[0]["gradient"]) for row in several)
    yield "the ranks hold the same gradients", same, _unequal_hint(several)
    wrong = not close(several[0]["gradient"], several[0]["expected"])
    hint = _value_hint(several[0]) if wrong else ""
    yield "they are those of the mean loss over all micro-batches of all ranks", not wrong, hint
    rounds = max(row["allreduces"] for row in several)
    yield f"{k} micro-batches take one round of allreduces", rounds == 1, _rounds_hint(several[0], rounds)
    yield from _judge_memory(several[0])
    right = all(
        row["gradient"] is not None and close(row["gradient"], row["expected"]) and row["allreduces"] == 1
        for row in single
    )
    hint = (
        "with one micro-batch the first is also the last: which one communicates must follow from "
        "`len(micro_batches)`, as must the number to divide by."
    )
    yield "also when there is only one micro-batch", right, hint


def _unequal_hint(rows: list[dict]) -> str:
    row = rows[0]
    forwards = [synced for kind, synced, _ in row["events"] if kind == "forward"]
    if any(r["allreduces"] for r in rows):
        return (
            "an allreduce took place, but gradients were added after it on each rank alone: the *last* "
            "micro-batch is the one that must communicate."
        )
    if forwards and not forwards[-1] and row["events"][-1][1]:
        return (
            "nothing was averaged. The last backward ran outside `no_sync`, but its forward ran inside, and "
            "it is the forward that prepares DDP to communicate: keep both together."
        )
    if all(forwards):
        return "nothing was averaged, although nothing ran inside `no_sync`: call `model`, not `model.module`."
    return "nothing was averaged: all of it ran inside `no_sync`. The last micro-batch must run outside."


def _value_hint(row: dict) -> str:
    got, k, size = row["gradient"], row["k"], row["size"]
    if close(got, row["expected"] * k):
        return f"they are {k} times too large, the sum over micro-batches: divide each loss by their number."
    if close(got, row["last"]) or close(got, row["last"] / k):
        return (
            "only the last micro-batch is in them: something empties the gradients in between. Call "
            "`zero_grad` once before the loop, or leave it to the caller."
        )
    for factor, what in ((k, "the number of micro-batches"), (size, "the number of ranks")):
        if close(got, row["expected"] / factor):
            return (
                f"they are too small by {factor}, {what}: something is divided twice. DDP itself takes the "
                "mean over ranks."
            )
    if not np.any(got):
        return "they are all zero: were they emptied after the last backward?"
    ratio = np.linalg.norm(got) / np.linalg.norm(row["expected"])
    return f"their norm is {ratio:.3g} times the right one. Does every micro-batch get one backward?"


def _rounds_hint(row: dict, rounds: int) -> str:
    forwards = [synced for kind, synced, _ in row["events"] if kind == "forward"]
    backwards = [synced for kind, synced, _ in row["events"] if kind == "backward"]
    told = f"it took {rounds} rounds. "
    if all(forwards) and not all(backwards):
        return told + (
            "Backward runs inside `no_sync`, but forward does not, and it is the forward that prepares DDP "
            "to communicate: put both inside the context."
        )
    if all(forwards):
        return told + "Run all micro-batches but the last inside `with model.no_sync():`."
    return told + "Only the last micro-batch may run outside `no_sync`."


def _judge_memory(row: dict):
    """Micro-batches are there because all samples together do not fit into memory."""
    most = max(samples for _, _, samples in row["events"])
    hint = f"a forward got {most} samples, a micro-batch has {row['samples']}: one at a time saves memory."
    yield "no forward sees more than one micro-batch", most == row["samples"], hint
    order = [kind for kind, _, _ in row["events"]]
    hint = (
        f"the order was {', '.join(order)}: activations of several micro-batches were kept at once. Call "
        "`backward()` on each loss before the next forward."
    )
    yield "each backward comes before the next forward", order == ["forward", "backward"] * row["k"], hint


def _judge_hook(facts: list[list[dict]]):
    together, alone = ([of_rank[case] for of_rank in facts] for case in range(2))
    types = {call["type"] for row in together for call in row["calls"]}
    yield "it returns a future for every bucket", types <= {"Future"}, _type_hint(types - {"Future"})
    held = {call["holds"] for row in together for call in row["calls"]}
    yield "the future holds a tensor", held == {"Tensor"}, _held_hint(held - {"Tensor"})
    wrong = next((rank for rank, row in enumerate(together) if not close(row["gradient"], row["expected"])), None)
    hint = "" if wrong is None else _average_hint(wrong, together)
    yield "DDP ends with the mean of all ranks' gradients, on every rank", wrong is None, hint
    same = all(np.array_equal(row["gradient"], together[0]["gradient"]) for row in together)
    hint = "they differ in their last bits: let one allreduce give all ranks the same sum, divided alike."
    yield "the ranks hold identical gradients", same, hint
    wrong = next((rank for rank, row in enumerate(alone) if not close(row["gradient"], row["expected"])), None)
    hint = "" if wrong is None else _group_hint(alone[wrong])
    yield "also in a process group of one rank", wrong is None, hint
    quickest = min(call["seconds"] for call in together[0]["calls"])
    hint = (
        f"it waited for its allreduce, {quickest:.2g} s at the least, while rank 1 was late: nothing "
        "overlaps with backward then. Pass `async_op=True` and return the future without waiting for it."
    )
    yield "it returns at once, while the bucket is under way", quickest < together[0]["late_s"] / 2, hint


def _type_hint(types: set[str]) -> str:
    if "Work" in types or any(name.endswith("Work") for name in types):
        return "it returned the handle of the allreduce: its `get_future()` gives the future."
    if "NoneType" in types:
        return "it returned nothing (None): `return` the future."
    if "Tensor" in types or "list" in types:
        return (
            f"it returned a {'/'.join(sorted(types))}, which must be there at once. A future is a promise of "
            "a tensor: `all_reduce(..., async_op=True).get_future()` gives one."
        )
    return f"it returned {', '.join(sorted(types))}."


def _held_hint(held: set[str]) -> str:
    if "list" in held:
        return (
            "it holds a list with one tensor in it, as the future of every allreduce does. `future.then(f)` "
            "makes a future of what `f(future)` returns: take the tensor out of `value()` there."
        )
    names = ", ".join(sorted(map(str, held)))
    return f"it holds {names}: does the function in `then` return the tensor?"


def _average_hint(rank: int, rows: list[dict]) -> str:
    row = rows[rank]
    got, size = row["gradient"], row["size"]
    if close(got, row["expected"] * size):
        return "the values are the sum, not the mean: divide by the number of ranks, `process_group.size()`."
    if close(got, row["own"]) or close(got, row["own"] / size):
        return (
            f"rank {rank} ended with gradients of its own samples alone: either there was no allreduce, or "
            "the future was complete before the allreduce was."
        )
    if close(got, row["expected"] / size):
        return f"the values are {size} times too small: the number of ranks was divided by twice."
    ratio = np.linalg.norm(got) / np.linalg.norm(row["expected"])
    if np.allclose(got, row["expected"], rtol=1e-2, atol=1e-3):
        return "the values are nearly right: was something rounded on the way, as to half precision?"
    if np.allclose(got, row["expected"] * ratio):
        return f"the values are {ratio:.3g} times the mean: divide by `process_group.size()`, once."
    return (
        f"rank {rank}'s gradients are neither the mean nor the sum of all ranks'. Is every bucket averaged, "
        "and all of its buffer?"
    )


def _group_hint(row: dict) -> str:
    got, ranks_ = row["gradient"], row["ranks"]
    if close(got, row["expected"] / ranks_):
        return (
            f"the values were divided by {ranks_}, but this group has one rank: `process_group.size()` "
            "knows, `dist.get_world_size()` without it counts all ranks."
        )
    if close(got, row["of_all"]) or close(got, row["of_all"] * ranks_):
        return "other ranks' gradients are in it: pass `group=process_group` to the allreduce."
    return "the values differ from this rank's own gradients."


def _judge_shards(facts: list[dict]):
    first = facts[0]["first"]
    for (n, size), epochs in first.items():
        for rank, returned in enumerate(epochs[0]):
            fine = isinstance(returned, list | tuple | range) and all(isinstance(i, int) for i in returned)
            if not fine:
                hint = f"for {n} samples, rank {rank} of {size} returned {shown(returned)}."
                yield "it returns a list of whole numbers", False, hint
    yield "it returns a list of whole numbers", True, ""
    agree = all(of_rank[name] == first for of_rank in facts for name in ("first", "again"))
    hint = (
        "asked twice for the same epoch, or on two ranks, it gave different answers. Ranks that shuffle "
        "must draw the same order: seed a generator of its own, as `np.random.default_rng(seed)`, with the "
        "same number everywhere."
    )
    yield "the same question has the same answer, on all ranks", agree, hint
    hint = next((hint for case, epochs in first.items() for parts in epochs if (hint := _cover(case, parts))), "")
    yield "each sample is taken once in each epoch", not hint, hint
    uneven = [
        (case, parts) for case, epochs in first.items() for parts in epochs
        if max(map(len, parts)) - min(map(len, parts)) > 1
    ]  # fmt: skip
    hint = ""
    if uneven:
        (n, size), parts = uneven[0]
        hint = f"{n} samples on {size} ranks: they got {list(map(len, parts))}; all wait for the slowest."
    yield "no rank gets two samples more than another", not uneven, hint
    one, two, three = first[103, 1]
    hint = "the order is that of the files, 0, 1, 2, …: shuffle it, or each batch sees neighbours."
    yield "the samples are shuffled", list(one[0]) != list(range(103)), hint
    differ = len({tuple(parts[0]) for parts in (one, two, three)}) == 3
    hint = (
        "every epoch has the same order, which is what happens to those who forget `set_epoch`: the "
        "generator's seed must depend on the epoch."
    )
    yield "each epoch has another order", differ, hint
    sets = {frozenset(parts[0]) for parts in first[103, 2]}
    hint = "a rank sees the same samples in all epochs: shuffle first, and share out then."
    yield "a rank gets other samples in the next epoch", len(sets) == 3, hint


def _cover(case: tuple[int, int], parts: list) -> str:
    """Why these parts are not a partition of the samples; empty when they are."""
    n, size = case
    taken = [i for part in parts for i in part]
    told = f"{n} samples on {size} rank{'s' * (size > 1)}: "
    if outside := [i for i in taken if not 0 <= i < n]:
        return told + f"there is no sample {outside[0]}; they are numbered from 0 to {n - 1}."
    missing, twice = n - len(set(taken)), len(taken) - len(set(taken))
    if any(len(set(part)) < len(part) for part in parts):
        return told + "a rank takes the same sample twice: a permutation has each number once."
    if twice and missing:
        return told + (
            f"{twice} are taken twice and {missing} by nobody. Has each rank its own order? All must share "
            "out the same permutation, so the seed must not depend on the rank."
        )
    if twice and all(len(part) == n for part in parts):
        return told + "every rank takes all of them: give each only its part."
    if twice:
        return told + (
            f"{twice} are taken twice. Filling up until all ranks have equally many is what "
            "DistributedSampler does; here some ranks may have one less."
        )
    if missing:
        return told + f"{missing} are taken by nobody: {size} does not divide {n}, so some take one more."
    return ""
