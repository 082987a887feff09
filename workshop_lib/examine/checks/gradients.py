"""What happens to gradients between the backward pass and the optimizer."""

import itertools
import math
from collections.abc import Iterator

from workshop_lib.examine.checks.weights import named_parameters
from workshop_lib.examine.findings import found, ok
from workshop_lib.examine.observations import Run
from workshop_lib.examine.records import DdpRecord, ModelRecord, StepRecord, UnseenRecord
from workshop_lib.findings import Finding
from workshop_lib.words import plural

FEWEST_STEPS = 2
FEWEST_WITH_RATE = 5  # steps
TOLERANCE = 0.01
ROUNDING = 1e-5
HALVED = ("mse_loss", "l1_loss")
AGAINST_ONE = 0.01  # beyond rounding, also in bf16
NO_RATE = 1e-6  # of the largest rate
IDLE_SHARE = 0.2


def clipping(run: Run) -> Iterator[Finding]:
    """Are gradients clipped after they are averaged, by one norm on all ranks?"""
    if run.size == 1 or not run.is_data_parallel:
        return
    if run.ranks[0].model.fsdp:
        yield from _clipped_shares(run)
        return
    clipped = [step for step in run.common_steps if all(log.steps[step].clips for log in run.ranks)]
    for step in clipped:
        clips = [log.steps[step].clips[0] for log in run.ranks]
        norms = [clip.norm for clip in clips]
        line = clips[0].line
        if all(clip.scaled for clip in clips):
            yield found(
                "clipped-while-scaled",
                f"in step {step}, {line} clips gradients that GradScaler's factor still multiplies",
                step=step,
            )
            return
        gradients = [log.steps[step].gradients for log in run.ranks]
        known = all(norm is not None and math.isfinite(norm) for norm in norms) and all(gradients)
        averaged_later = known and all(each == gradients[0] for each in gradients)
        if averaged_later and max(norms) - min(norms) > 1e-4 * max(norms):
            shown = ", ".join(f"{norm:.3g}" for norm in norms)
            yield found(
                "clipped-before-average",
                f"in step {step}, {line} clips gradients of norm {shown}, and they are averaged afterwards",
                step=step,
            )
            return
    if clipped:
        yield ok("clipping", f"all ranks clipped the same gradients in {plural(len(clipped), 'step')}")


def _clipped_shares(run: Run) -> Iterator[Finding]:
    """Does each rank clip its shares of the gradients by a norm of its own?"""
    for step in run.common_steps:
        factors = [scale for log in run.ranks if (scale := log.steps[step].share_scale) is not None]
        if factors and max(factors) - min(factors) > TOLERANCE * max(factors):
            shown = ", ".join(f"{factor:.3g}" for factor in factors)
            yield found(
                "shares-clipped", f"in step {step}, ranks multiply their shares of the gradients by {shown}", step=step
            )
            return


def zeroed(run: Run) -> Iterator[Finding]:
    """Does each step begin with new gradients?"""
    steps = [step for step in run.common_steps if all(log.steps[step].kept is not None for log in run.ranks)]
    if len(steps) >= FEWEST_STEPS and all(log.steps[step].kept for log in run.ranks for step in steps):
        yield found(
            "never-zeroed",
            f"from step {steps[0]} on, each backward pass adds to the gradients that the optimizer has just used",
            step=steps[0],
        )


def accumulation(run: Run) -> Iterator[Finding]:
    """Do micro-batches communicate only once per step, and is it the last one that does?"""
    log = run.ranks[0]
    if run.size == 1 or not (log.model.ddp or log.model.fsdp):
        return
    for step in run.common_steps if log.model.fsdp else []:
        sent = [each.sync for each in log.steps[step].backwards]
        if not sent or sent[-1] or log.is_by_closure(step):
            continue
        late = len(list(itertools.takewhile(lambda sync: not sync, reversed(sent))))
        yield found(
            "sent-too-early",
            f"of {len(sent)} micro-batches, FSDP hasn't sent the gradients of the last {late} when the optimizer steps",
            step=step,
        )
        return
    for step in run.common_steps:
        forwards = log.forwards(step)
        sent = [each.sync for each in log.steps[step].backwards]
        backwards = len(sent)
        begins_anew = log.model.ddp and log.steps[step].anew > 1  # as SAM does, which accumulates nothing
        if backwards < 2 or len(forwards) != backwards or log.is_by_closure(step) or begins_anew:
            continue
        synchronized = sum(sent)
        if synchronized > 1:
            yield found(
                "sent-in-each-micro-batch",
                f"a step has {backwards} micro-batches, and the gradients were sent after {synchronized} of them",
                step=step,
            )
        else:
            seen = f"a step has {backwards} micro-batches, and gradients are sent once"
            yield ok("accumulation", seen)
        return


def wasted(run: Run) -> Iterator[Finding]:
    """Are the gradients of a micro-batch zeroed before the next one adds its own?"""
    log = run.ranks[0]
    if log.model.fsdp:
        return  # it keeps the gradients of micro-batches elsewhere until it sends them
    for step in run.common_steps:
        backwards = len(log.steps[step].backwards)
        parts = [set(forward.samples or []) for forward in log.forwards(step)]
        apart = all(parts) and sum(map(len, parts)) == len(set().union(*parts))  # SAM looks at its samples twice
        if backwards < 2 or len(parts) != backwards or not apart or log.is_by_closure(step):
            continue
        if log.steps[step].anew == backwards:
            seen = f"in step {step}, each of {backwards} micro-batches begins without the gradients of the one before"
            yield found("wasted-micro-batches", seen, step=step)
            return


def left_over(run: Run) -> Iterator[Finding]:
    """Do the micro-batches that an epoch's last step lacked count in the next epoch's first one?"""
    log = run.ranks[0]
    passes = {step: len(log.steps[step].backwards) for step in run.common_steps if not log.is_by_closure(step)}
    epochs = [each for loader in log.training_loaders for each in log.loaders[loader]]
    older = {each.step: each.open_passes for each in epochs if each.open_passes and each.step in passes}
    usual = max((number for step, number in passes.items() if step not in older), default=0)
    longer = [step for step in sorted(older) if passes[step] > usual > 0]
    if longer:
        step = longer[0]
        seen = (
            f"step {step} adds up {passes[step]} micro-batches, {older[step]} of them left over from the epoch before"
        )
        yield found("left-over", f"{seen}; other steps have {usual}", step=step)


def size(run: Run) -> Iterator[Finding]:
    """Is the gradient the mean over all ranks, and not their sum, or the mean divided once more?"""
    if run.size == 1 or not run.is_data_parallel or (run.repeated and not _why_not_against_one(run)):
        return
    known = {step: factors for step in run.common_steps if (factors := _factors(run, step)) is not None}
    if len(known) < FEWEST_STEPS:
        return
    step = min(known)
    micro_batches = float(len(run.ranks[0].steps[step].backwards))
    meant = (1.0, micro_batches)  # with the losses divided by the number of micro-batches, and without

    def is_always(*values: float) -> bool:
        new = [value for value in values if not any(math.isclose(value, each, rel_tol=TOLERANCE) for each in meant)]
        return any(all(math.isclose(each, value, rel_tol=TOLERANCE) for each, _ in known.values()) for value in new)

    # With two ranks, half of a loss may be what is meant, as in half of a squared error.
    certain = run.size > 2 or not all(math.isclose(each, 1 / run.size) for _, each in known.values())
    halved = any(each.name in HALVED for each in run.ranks[0].steps[step].losses)
    if is_always(*(each / run.size for each in meant)):
        if halved and not certain:
            return
        again = "DDP has averaged them" if run.ranks[0].first(DdpRecord) else "they were averaged"
        seen = f"the gradients that the optimizer gets are the mean over all ranks, divided by {run.size}"
        name = "divided-again" if certain else "divided-again-perhaps"
        yield found(name, seen, step=step, again=again, size=run.size)
    elif is_always(*(each * run.size for each in meant)):
        yield found(
            "summed",
            f"the gradients that the optimizer gets are the sum over the ranks: {run.size} times their mean",
            step=step,
        )
    elif any(math.isclose(known[step][0], each, rel_tol=TOLERANCE) for each in meant):
        yield ok("size of gradients", "the optimizer gets the mean over all ranks")


def _factors(run: Run, step: int) -> tuple[float, float] | None:
    """How many times the mean of the ranks' losses the optimizer's gradients belong to, and the loss's part in that.

    None if that isn't known.
    """
    records = [log.steps[step] for log in run.ranks]
    scaled = any(clip.scaled for record in records for clip in record.clips)
    if scaled or run.ranks[0].is_by_closure(step):
        return None
    after = [record.after_backward for record in records if record.after_backward is not None]
    ready = [record.ready for record in records if record.ready is not None]
    if len(after) < run.size or len(ready) < run.size:
        return None
    mean = sum(after) / run.size
    largest = max(map(abs, after))
    if abs(mean) <= TOLERANCE * largest or max(ready) - min(ready) > TOLERANCE * max(map(abs, ready)):
        return None
    factor = ready[0] / mean
    if (weight := _weight(records)) is not None:
        return factor * weight, weight
    averaged_by_ddp = all(log.first(DdpRecord) for log in run.ranks) and len(records[0].backwards) == 1
    return (factor, 1.0) if averaged_by_ddp else None


def _weight(records: list[StepRecord]) -> float | None:
    """How many times the mean over its samples one loss counts, on the average of the ranks; None if it isn't alone."""
    losses = [record.losses for record in records]
    parts = [part for loss in losses for part in loss]
    if len({part.line for part in parts}) != 1 or any(part.weight is None for part in parts):
        return None
    if any(len(loss) != len(record.backwards) for loss, record in zip(losses, records, strict=True)):
        return None
    for loss, record in zip(losses, records, strict=True):
        counted = sum(part.weight * part.value for part in loss)
        if not math.isclose(counted, sum(record.roots), rel_tol=ROUNDING):
            return None  # something is added to the loss
    counted_per_sample = [part.weight * (part.count if part.reduction == "sum" else 1) for part in parts]
    return sum(counted_per_sample) / len(records)


def against_one(run: Run) -> Iterator[Finding]:
    """Is the first step's gradient that of one process with all samples as one batch?"""
    if run.repeated is None or run.size == 1 or not run.is_data_parallel:
        return
    why_not = _why_not_against_one(run)
    if why_not:
        yield found("not-comparable-with-one", f"the first step can't be compared with one process: {why_not}")
        return
    assert run.against_one is not None
    factor, share = run.against_one
    if share > AGAINST_ONE:
        yield found(
            "unlike-one",
            f"the first step's gradient differs by {share:.0%} from that of one process with the same samples",
            step=1,
        )
    elif abs(factor - 1) > AGAINST_ONE:
        is_certain = any(math.isclose(factor, each, rel_tol=TOLERANCE) for each in (run.size, 1 / run.size))
        seen = f"the first step's gradient is {factor:.3g} times that of one process with the same samples"
        yield found("times-size-of-one" if is_certain else "times-one", seen, step=1)
    else:
        differ = abs(factor - 1) + share
        yield ok("against one", f"one process with the same samples has the same gradient, up to {differ:.0e}")


def _why_not_against_one(run: Run) -> str:
    """Why the comparison would say nothing; empty if it says something."""
    assert run.repeated is not None
    logs = [*run.ranks, *run.repeated.ranks]
    if any(log.model.normalizes for log in logs):
        return "batch normalization depends on each rank's own batch"
    if any(forward.drew for log in logs for step in log.steps for forward in log.forwards(step)):
        return "the forward pass draws random numbers, as dropout does"
    unseen = [each.text for log in logs for each in log.of(UnseenRecord) if each.what == "the first step"]
    if unseen:
        return unseen[0]
    return (
        "" if run.against_one else "its batches don't come from a DataLoader, or it didn't get through the step alone"
    )


def rate(run: Run) -> Iterator[Finding]:
    """Does the learning rate reach 0 long before the end?"""
    steps = run.common_steps
    rates = [max(each) for step in steps if (each := _rates(run, step))]
    if len(steps) < FEWEST_WITH_RATE or len(rates) < len(steps) or not max(rates):
        return
    idle = len(list(itertools.takewhile(lambda each: each <= NO_RATE * max(rates), reversed(rates))))
    if idle > IDLE_SHARE * len(rates):
        yield found(
            "rate-zero", f"the learning rate is 0 in the last {idle} of {plural(len(rates), 'step')}", step=steps[-idle]
        )


def _rates(run: Run, step: int) -> list[float]:
    """The learning rates of all groups of parameters on rank 0."""
    return [rate for each in run.ranks[0].steps[step].optimizers for rate in each.lr]


def unused(run: Run) -> Iterator[Finding]:
    """Does every parameter get a gradient?"""
    log = run.ranks[0]
    without = [step.without_gradient for step in log.steps.values() if step.without_gradient is not None]
    if not without or len(log.of(ModelRecord)) > 1:
        return
    never = set.intersection(*map(set, without))
    if never:
        names = named_parameters([name for name in without[0] if name in never])
        yield found("unused", f"{names} never got a gradient in {plural(len(without), 'step')}")
    else:
        yield ok("unused", "every parameter got a gradient")
