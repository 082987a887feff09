"""Does every sample train once per epoch, on one rank, in an order that changes?"""

import itertools
import math
from collections.abc import Iterator, Sequence

from workshop_lib.examine.findings import found, ok
from workshop_lib.examine.observations import RankLog, Run
from workshop_lib.examine.records import EpochRecord, LossPart
from workshop_lib.findings import Finding
from workshop_lib.ranks.faults.rank_errors import named
from workshop_lib.words import plural

SAME_SHARE = 0.9  # of the steps in which two ranks have the same batch; the rest may be chance
OVERLAP_SHARE = 0.05  # of the samples; below it, samples may be equal by chance, and padding repeats a few
FEWEST_STEPS = 2
FEWEST_LABELS = 20  # of samples with the same indices on both ranks; fewer may agree by chance
EVEN = 0.01  # of the larger of two numbers that may count as equal
FIRST = 3  # batches of an epoch that are compared with those of the epoch before, at least


def batches(run: Run) -> Iterator[Finding]:
    """Do ranks train on the same samples?"""
    steps = [step for step in run.common_steps if all(log.samples(step) for log in run.ranks)]
    if run.size == 1 or not run.is_data_parallel or len(steps) < FEWEST_STEPS:
        return
    for one, other in itertools.combinations(range(run.size), 2):
        same = [step for step in steps if run.ranks[one].samples(step) == run.ranks[other].samples(step)]
        if len(same) < SAME_SHARE * len(steps):
            continue
        distinct = {tuple(run.ranks[one].samples(step)) for step in steps}
        seen = f"ranks {one} and {other} trained on the same {len(run.ranks[one].samples(same[0]))} samples in "
        seen += f"{len(same)} of {len(steps)} steps, from step {same[0]} on"
        if len(distinct) == 1:
            yield found("one-batch", seen, (one, other), same[0])
        else:
            name = "same-batches" if run.ranks[one].training_loaders else "same-draws"
            yield found(name, f"{seen}{_why_the_same(run, one, other)}", (one, other), same[0])
        return
    share, one, other = max(
        (_overlap(run, one, other, steps), one, other) for one, other in itertools.combinations(range(run.size), 2)
    )
    if share > OVERLAP_SHARE:
        yield found(
            "overlap",
            f"{share:.0%} of the samples that rank {one} saw in one pass, rank {other} saw too",
            ranks=(one, other),
            step=steps[0],
        )
        return
    seen = f"the ranks trained on different samples in each of the {plural(len(steps), 'step')} compared"
    yield ok("batches", seen)


def _why_the_same(run: Run, one: int, other: int) -> str:
    for log in (run.ranks[one], run.ranks[other]):
        for loader in log.training_loaders:
            settings = log.loaders[loader][0]
            if settings.distributed is None:
                return f": the DataLoader has a {settings.sampler}, which knows nothing of ranks"
    return ""


def _index_one_dataset(run: Run, one: int, other: int) -> bool:
    """Whether equal indices are the same sample on both ranks. They aren't if each rank has a dataset of its own."""
    logs = run.ranks[one], run.ranks[other]
    settings = [log.loaders[loader][0] for log in logs for loader in log.training_loaders]
    if settings and all(each.distributed for each in settings):
        return True
    orders = [_first_order(log) for log in logs]
    if not all(orders):
        return False
    if not set(orders[0]) & set(orders[1]):
        return True
    seen = [{digest for step in run.common_steps for digest in log.samples(step)} for log in logs]
    if seen[0] & seen[1]:
        return True
    labels = [_labels(log) for log in logs]
    both = labels[0].keys() & labels[1].keys()
    if len(both) >= FEWEST_LABELS and len({labels[0][index] for index in both}) > 1:
        return all(labels[0][index] == labels[1][index] for index in both)
    return _noise_hides_samples(logs)


def _labels(log: RankLog) -> dict[int, tuple]:
    """The labels of the samples that were loaded first, by index."""
    labels = {}
    for loader in log.training_loaders:
        for epoch in log.loaders[loader]:
            key = loader, epoch.epoch
            for index, label in zip(log.orders.get(key, []), log.labels.get(key, []), strict=False):
                labels[index] = tuple(label)
    return labels


def _different_labels(run: Run) -> str:
    """How many samples of the same index have different labels on ranks 0 and 1; empty if it may be chance."""
    labels = [_labels(log) for log in run.ranks[:2]]
    both = labels[0].keys() & labels[1].keys()
    differ = sum(labels[0][index] != labels[1][index] for index in both)
    return f"{differ} of {len(both)}" if len(both) >= FEWEST_LABELS and differ > OVERLAP_SHARE * len(both) else ""


def _noise_hides_samples(logs: tuple[RankLog, RankLog]) -> bool:
    """Whether loading changes samples randomly, so that they differ even if the ranks load the same ones."""
    settings = [log.loaders[loader][0] for log in logs for loader in log.training_loaders]
    random = all(any(step.drew_data for step in log.steps.values()) for log in logs)
    return random and not any(each.dataset == "Subset" for each in settings)


def _first_order(log: RankLog) -> list[int]:
    for loader in sorted(log.training_loaders):
        for epoch in (*log.passes(loader), *log.loaders[loader]):
            if order := log.orders.get((loader, epoch.epoch)):
                return order
    return []


def _overlap(run: Run, one: int, other: int, steps: list[int]) -> float:
    """The share of the samples of a first pass over the data that two ranks have in common."""
    logs = run.ranks[one], run.ranks[other]
    if _index_one_dataset(run, one, other):
        seen = [set(_first_order(log)) for log in logs]
    else:
        seen = [set(), set()]
        for step in steps:
            batch = [set(log.samples(step)) for log in logs]
            again = max(len(old & new) / len(new) for old, new in zip(seen, batch, strict=True))
            if OVERLAP_SHARE < again < 0.5:
                return 0.0  # each batch is drawn from all samples, so two ranks share some by chance
            if again >= 0.5:
                break  # a second pass has begun
            seen = [old | new for old, new in zip(seen, batch, strict=True)]
    smaller = min(map(len, seen))
    return len(seen[0] & seen[1]) / smaller if smaller else 0.0


def _trained_with(log: RankLog) -> Iterator[tuple[int, list[EpochRecord]]]:
    for loader in sorted(log.training_loaders):
        yield loader, log.loaders[loader]


def sampler(run: Run) -> Iterator[Finding]:
    """Are the settings of every DistributedSampler those of this process group?"""
    if not run.is_data_parallel or run.size == 1:
        return
    for loader, epochs in _trained_with(run.ranks[0]):
        parts = {log.loaders[loader][0].subset for log in run.ranks if loader in log.loaders}
        if len(parts) > 1 and epochs[0].distributed:
            yield found(
                "split-per-rank",
                "the ranks train on different subsets of the data, and a DistributedSampler shares each one out",
                step=1,
            )
            return
    seeds: dict[int, set[int]] = {}
    for rank, log in enumerate(run.ranks):
        for loader, epochs in _trained_with(log):
            settings = epochs[0].distributed
            if settings is None:
                continue
            seeds.setdefault(loader, set()).add(settings.seed)
            if settings.num_replicas != run.size or settings.rank != rank:
                yield found(
                    "sampler-of-another-rank",
                    f"on rank {rank} of {run.size}, the DistributedSampler is rank {settings.rank} of "
                    f"{settings.num_replicas}",
                    ranks=(rank,),
                    step=1,
                )
    if seeds and (differ := _different_labels(run)):
        seen = f"a DistributedSampler shares out the data, but {differ} samples of one index differ between the ranks"
        yield found("shared-out-twice", seen, step=1)
    if any(len(each) > 1 for each in seeds.values()):
        yield found(
            "sampler-seeds",
            f"the DistributedSampler has a different seed on each rank: {max(map(sorted, seeds.values()), key=len)}",
            step=1,
        )


def coverage(run: Run) -> Iterator[Finding]:
    """Does an epoch hold every sample once?"""
    if not run.is_data_parallel:
        return
    for loader, epochs in _trained_with(run.ranks[0]):
        whole = [each.epoch for each in run.ranks[0].passes(loader, whole=True)]
        orders = [log.orders.get((loader, whole[0]), []) for log in run.ranks] if whole else []
        total = epochs[0].samples
        if not total or not epochs[0].batches or not orders or not all(orders):
            continue
        if not all(_index_one_dataset(run, 0, other) for other in range(1, run.size)):
            continue
        loaded = [index for order in orders for index in order]
        lost = total - len(set(loaded))
        twice = len(loaded) - len(set(loaded))
        global_batch = math.ceil(len(orders[0]) / epochs[0].batches) * run.size
        if lost >= global_batch or twice > global_batch:
            yield found(
                "coverage", f"the first epoch left out {lost:,} of {total:,} samples, and loaded {twice:,} again"
            )
            return
        seen = f"an epoch loaded {len(set(loaded)):,} of {total:,} samples, {twice:,} of them twice"
        yield ok("coverage", seen)


def order(run: Run) -> Iterator[Finding]:
    """Does the order change from epoch to epoch?"""
    for rank, log in enumerate(run.ranks):
        compared = False
        for loader in sorted(log.training_loaders):
            for number, (before, after) in enumerate(itertools.pairwise(log.passes(loader)), 2):
                old = log.orders.get((loader, before.epoch), [])
                new = log.orders.get((loader, after.epoch), [])
                short = min(len(old), len(new))
                if short < 2 * FIRST:
                    continue
                compared = True
                if old[:short] != new[:short]:
                    continue
                shuffles = after.distributed is not None and after.distributed.shuffle
                seen = f"on {named((rank,))}, epoch {number} loads the samples in the order of epoch {number - 1}"
                yield found("no-set-epoch" if shuffles else "not-shuffled", seen, (rank,), after.step + 1)
                return
        if compared and rank == run.size - 1:
            yield ok("order", "each epoch has an order of its own")
    if not any(_first_order(log) for log in run.ranks):
        yield from _order_of_batches(run)


def _order_of_batches(run: Run) -> Iterator[Finding]:
    """The same where no loader has indices, judged by the batches themselves."""
    log = run.ranks[0]
    rows = [tuple(log.samples(step)) for step in sorted(log.steps)]
    if not rows or not rows[0] or rows[0] not in rows[1:]:
        return
    period = rows.index(rows[0], 1)
    repeats = [a == b for a, b in zip(rows, rows[period:], strict=False)]
    if period >= FIRST and len(repeats) >= FIRST and all(repeats):
        seen = f"from step {period + 1} on, rank 0's batches repeat those from step 1 on"
        yield found("batches-repeat", seen, (0,))


def unequal_parts(run: Run) -> Iterator[Finding]:
    """Does an average of averages weigh samples differently?"""
    if not run.is_data_parallel:
        return
    known = {step: unequal for step in run.common_steps if (unequal := _unequal_losses(run, step)) is not None}
    first = next(((step, unequal) for step, unequal in known.items() if unequal), None)
    if first is not None:
        step, unequal = first
        yield found("parts-of-losses", f"in step {step}, {unequal}", step=step)
        return
    for step in run.common_steps:
        if step in known:
            continue
        sums = [sum(forward.size for forward in log.forwards(step)) for log in run.ranks]
        if len(set(sums)) > 1:
            yield found("parts-of-ranks", f"in step {step}, the ranks had {_numbers(sums)} samples", step=step)
            return


def _unequal_losses(run: Run, step: int) -> str | None:
    """How samples count differently in a step's losses; empty if they count equally, None if that isn't known."""
    losses = [log.steps[step].losses for log in run.ranks]
    lines = [[each.line for each in loss] for loss in losses]
    if not lines[0] or any(each != lines[0] for each in lines):
        return None
    if any(each.weight is None or not each.count for loss in losses for each in loss):
        return None
    if any(log.is_by_closure(step) for log in run.ranks):
        return None
    for calls in zip(*losses, strict=True):  # the same call on all ranks
        if unequal := _count_differently(calls):
            return f"{calls[0].line} takes, on the ranks, {unequal}"
    whole = len(losses[0]) == len(run.ranks[0].forwards(step)) and len(set(lines[0])) == 1
    unequal = _count_differently(losses[0]) if whole else ""
    return f"{lines[0][0]} takes, in the micro-batches of rank 0, {unequal}" if unequal else ""


def _count_differently(losses: Sequence[LossPart]) -> str:
    """How samples count differently in these losses; empty if they don't."""
    counts = [each.count for each in losses]
    reductions = {each.reduction for each in losses}
    weights = [each.weight for each in losses]
    even = max(weights) - min(weights) <= EVEN * max(weights)
    if reductions == {"mean"} and even and max(counts) - min(counts) > EVEN * max(counts):
        return f"means over {_numbers(counts)} samples or tokens, and each mean counts the same"
    if reductions == {"sum"} and not even:
        return f"sums over {_numbers(counts)} samples or tokens, and divides them by different numbers"
    return ""


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(f"{value:,}" for value in values)
