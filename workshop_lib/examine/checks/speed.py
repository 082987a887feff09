"""Where the time goes, and which rank the others wait for."""

from collections.abc import Iterator
from statistics import median

from workshop_lib.examine.findings import found, ok
from workshop_lib.examine.observations import RankLog, Run
from workshop_lib.examine.records import StepRecord
from workshop_lib.findings import Finding
from workshop_lib.words import plural

WARM_UP = 2  # first steps, which allocate and compile
FEWEST_STEPS = 4
LATE_SHARE = 0.25  # of a step's time that other ranks wait, from which on it's worth a look
LATE_S = 0.02  # less than that may be the work of other programs
USUALLY = 0.9


def measured(run: Run) -> list[int]:
    """The steps whose times count: all but the first ones and those that something else follows."""
    steps = [step for step in run.common_steps if step > WARM_UP and step + 1 in run.ranks[0].steps]
    return [step for step in steps if all(_is_timed(log.steps[step]) for log in run.ranks)]


def _is_timed(step: StepRecord) -> bool:
    """Whether the step has an end, as it has with an optimizer, and passes to compare."""
    return step.end_s is not None and bool(step.backwards)


def meets(run: Run, steps: list[int]) -> bool:
    """Whether the ranks wait for each other in each of these steps."""
    for log in run.ranks:
        wrapped = log.model.ddp or log.model.fsdp
        if not wrapped and not all(log.steps[step].collectives for step in steps):
            return False
    return run.size > 1


def step_s(log: RankLog, step: int) -> float:
    """Seconds from the start of a step's loading to the end of its optimizer."""
    record = log.steps[step]
    assert record.end_s is not None
    return record.end_s - record.time + record.data_s


def waits_s(run: Run, step: int) -> list[float]:
    """How long each rank waits in a step: until the last rank begins the backward pass that sends the gradients."""
    begins_s = [log.steps[step].backwards[-1].begin_s for log in run.ranks]
    return [max(begins_s) - each for each in begins_s]


def stragglers(run: Run) -> Iterator[Finding]:
    steps = measured(run)
    if len(steps) < FEWEST_STEPS or not meets(run, steps):
        return
    waits = {step: waits_s(run, step) for step in steps}
    typical_s = median(step_s(log, step) for log in run.ranks for step in steps)
    last = [each.index(min(each)) for each in waits.values()]
    late = max(set(last), key=last.count)
    lost_s = median(max(each) for each in waits.values())
    if last.count(late) < USUALLY * len(last) or lost_s < max(LATE_SHARE * typical_s, LATE_S):
        seen = f"the ranks wait {lost_s / typical_s:.0%} of a step for each other"
        yield ok("straggler", seen)
        return
    parts = {
        "loading data": [_loading_s(log, steps) for log in run.ranks],
        "the forward pass": [median(sum(f.seconds for f in log.forwards(step)) for step in steps) for log in run.ranks],
    }
    more_s = {what: values[late] - median(values[:late] + values[late + 1 :]) for what, values in parts.items()}
    reason = max(more_s, key=lambda what: more_s[what])
    known = more_s[reason] > lost_s / 3
    because = f", {more_s[reason] * 1e3:.0f} ms of them for {reason}" if known else ", in code around the model"
    yield found(
        "straggler",
        f"in {last.count(late)} of {len(steps)} steps, the ranks waited for rank {late}, usually {lost_s * 1e3:.0f} ms"
        f"{because}; a step takes {typical_s * 1e3:.0f} ms",
        ranks=(late,),
        step=steps[0],
    )


def _loading_s(log: RankLog, steps: list[int]) -> float:
    return median(log.steps[step].data_s for step in steps)


def facts(run: Run) -> Iterator[Finding]:
    """The batch, the learning rate, and the speed."""
    log = run.ranks[0]
    steps = run.common_steps
    batch = [sum(forward.size for each in run.ranks for forward in each.forwards(step)) for step in steps]
    per_rank = median(forward.size for step in steps for forward in log.forwards(step))
    micro = max(len(log.forwards(step)) for step in steps)
    rates = [each.lr[0] for step in run.common_steps for each in log.steps[step].optimizers[:1] if each.lr]
    if batch and rates:
        accumulated = f" x {micro} micro-batches" if micro > 1 else ""
        seen = f"{per_rank:g} samples per rank{accumulated}"
        if run.is_data_parallel:
            seen += f" x {plural(run.size, 'rank')}: a global batch of {median(batch):g}"
        rate = f"{min(rates):.3g}" if min(rates) == max(rates) else f"{min(rates):.3g} to {max(rates):.3g}"
        yield found("batch", f"{seen}, learning rate {rate}")
    if len(steps := measured(run)) >= FEWEST_STEPS and run.is_data_parallel:
        took_s = median(step_s(each, step) for each in run.ranks for step in steps)
        speed = median(batch) / took_s
        called_s = median(_called_s(each, step) for each in run.ranks for step in steps)
        shares = {
            "loading": median(_loading_s(each, steps) for each in run.ranks),
            "in collectives that the script calls": called_s,
        }
        listed = ", ".join(f"{seconds / took_s:.0%} {what}" for what, seconds in shares.items())
        yield found("speed", f"{speed:,.0f} samples/s; of a step: {listed}")


def _called_s(log: RankLog, step: int) -> float:
    """Seconds in collectives outside of the model: those in its passes are mostly a library's, such as FSDP's."""
    collectives = log.steps[step].collectives.items()
    return sum(calls.seconds for name, calls in collectives if name.endswith(" between"))
