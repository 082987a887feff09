"""Are the ranks' weights equal, before and after each step, and if not, since when, where and why?"""

import math
from collections.abc import Iterator

from workshop_lib.examine.findings import found, ok
from workshop_lib.examine.observations import RankLog, Run
from workshop_lib.examine.records import DdpRecord, LoadRecord, ModelRecord, ShardRecord
from workshop_lib.findings import Finding
from workshop_lib.words import plural

NAMES_SHOWN = 3
AVERAGE = ("all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor")
SMALLEST_TYPE = 2  # bytes of a parameter


def named_parameters(names: list[str]) -> str:
    """These names, or the first ones and how many more there are."""
    short = [name.removeprefix("module.").removeprefix("_orig_mod.") for name in names[:NAMES_SHOWN]]
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(short) + more


def differing(names: list[str], digests: list) -> list[str]:
    """The names at whose place the ranks' digests differ."""
    rows = zip(names, *digests, strict=False)
    return [row[0] for row in rows if len(set(row[1:])) > 1]


def equal(run: Run) -> Iterator[Finding]:
    if run.size == 1:
        return
    if run.is_pipeline:
        yield ok("weights", "each rank has its own layers of one model, as in a pipeline")
        return
    if not run.same_model:
        own = [run.named_shapes(rank) for rank in range(run.size)]
        unshared = {each[0] for one in own for each in one if any(each not in other for other in own)}
        which = f": {named_parameters(sorted(unshared))}" if unshared else ", or have them in different orders"
        seen = f"the ranks' models have different parameters{which}"
        yield found("different-parameters", seen)
        return
    shared_out = [each.shared_out for each in run.ranks[0].model.parameters]
    if not run.is_data_parallel or all(shared_out):
        return
    names = [each.name for each in run.ranks[0].model.parameters]
    weights = {step: [log.steps[step].weights for log in run.ranks] for step in _compared(run)}
    different = {step: odd for step, each in weights.items() if (odd := differing(names, each))}
    ends = [log.end.weights for log in run.ranks]
    ends = ends if all(end is not None and len(end) == len(names) for end in ends) else [None] * run.size
    if not different:
        if all(end is not None for end in ends) and any(end != ends[0] for end in ends):
            seen = f"the final weights differ between the ranks, in {named_parameters(differing(names, ends))}"
            yield found("final-weights", seen=seen)
            return
        if not weights:
            return
        seen = f"bit-identical on {run.size} ranks in {plural(len(_compared(run)), 'step')}"
        yield ok("weights", f"the weights are {seen}")
        return
    first = min(different)
    again = [f"before step {step}" for step in _compared(run) if step > first and step not in different]
    again += ["at the end"] if all(ends) and all(end == ends[0] for end in ends) else []
    averages = _averages_now_and_then(run)
    if again and averages:
        yield ok("weights", f"the ranks train alone, and average their weights: equal again {again[0]}")
        return
    name, cause = _cause(run, first)
    equal_before = max((step for step in weights if step < first), default=first - 1)
    when = "before the first step" if first == 1 else f"after step {first - 1}"
    if equal_before < first - 1:  # the weights of long runs aren't compared in each step
        when = f"since one of the steps {equal_before} to {first - 1}"
    seen = f"{when}, the ranks' weights differ in {named_parameters(different[first])}: {cause}"
    finding = found(name, seen, _odd_ranks(run, first), max(first - 1, 0))
    if again or averages:
        equal_again = f"They're equal again {again[0]}" if again else "Some steps send as much as the whole model"
        yield found("alone-for-a-while", seen, finding.ranks, first - 1, equal_again=equal_again, remedy=finding.remedy)
        return
    yield finding


def _averages_now_and_then(run: Run) -> bool:
    """Whether the script sends as much as the whole model in some of its steps, but not in most."""
    log = run.ranks[0]
    elements = sum(math.prod(each.shape) for each in log.model.parameters)
    sends = []
    for collectives in [*(each.collectives for each in log.steps.values()), log.end.collectives]:
        sizes = [calls.bytes for name, calls in collectives.items() if name.split()[0] in AVERAGE]
        sends.append(sum(sizes) >= SMALLEST_TYPE * elements)
    return 0 < sum(sends) < len(sends) / 2


def _compared(run: Run) -> list[int]:
    """The steps in which every rank wrote down its weights, and those of the same model."""
    number = run.ranks[0].model.model
    compared = []
    for step in run.common_steps:
        records = [log.steps[step] for log in run.ranks]
        if all(record.weights is not None and record.weights_model == number for record in records):
            compared.append(step)
    return compared


def _odd_ranks(run: Run, step: int) -> tuple[int, ...]:
    """The ranks that are not with the majority; all of them if there is none."""
    values = [str(log.steps[step].weights) for log in run.ranks]
    usual = max(values, key=values.count)
    if values.count(usual) * 2 <= len(values):
        return tuple(range(run.size))
    return tuple(rank for rank, value in enumerate(values) if value != usual)


def _cause(run: Run, first: int) -> tuple[str, str]:
    """The finding's name and the cause in words, for weights that differ before step `first`."""
    logs = run.ranks
    if first == 1:
        after = [ddp.after for log in logs if (ddp := log.first(DdpRecord)) is not None]
        if len(after) == run.size and all(each == after[0] for each in after):
            cause = "they were equal when DDP wrapped the model, so something changed them afterwards"
            return "changed-after-wrapping", cause
        return "different-start", "the ranks start from different weights"
    step = max(each for each in run.common_steps if each < first)
    records = [log.steps[step] for log in logs]
    if len({bool(record.skipped) for record in records}) > 1:
        rank = next(rank for rank, record in enumerate(records) if record.skipped)
        cause = f"rank {rank} skipped the step because its own gradients overflowed, and the other ranks took it"
        return "overflow-on-some-ranks", cause
    rates = [str([each.lr for each in record.optimizers]) for record in records]
    if len(set(rates)) > 1:
        return "different-rates", f"the learning rates differ: {', '.join(rate.strip('[]') for rate in rates)}"
    if not all(record.gradients is not None for record in records):
        # Not every step's gradients are written down. Later ones do as well: averaged ones are equal in each step.
        step = first
        records = [log.steps[step] for log in logs]
    missing = [record.gradients_of for record in records]
    if any(each != missing[0] for each in missing):
        odd = sorted({name for names in missing for name in names if any(name not in each for each in missing)})
        return "gradient-on-some-ranks", f"{named_parameters(odd)} got a gradient on some ranks only"
    gradients = [record.gradients for record in records]
    if any(each != gradients[0] for each in gradients):
        return _not_averaged(run, step, gradients, missing[0])
    loads = [[each.line for each in log.of(LoadRecord) if each.what == "optimizer"] for log in logs]
    if len({bool(each) for each in loads}) > 1:
        rank = next(rank for rank, each in enumerate(loads) if not each)
        return "loaded-on-some-ranks", f"the gradients are equal, but rank {rank} didn't load the optimizer's state"
    cause = "the gradients are equal, so the optimizers differ, or the script changed weights itself"
    return "changed-on-some-ranks", cause


def _not_averaged(run: Run, step: int, gradients: list, names: list[str]) -> tuple[str, str]:
    forwards = [log.forwards(step) for log in run.ranks]
    wrapped = all(log.first(DdpRecord) for log in run.ranks)
    if wrapped and all(forward.around_ddp for each in forwards for forward in each):
        cause = "the gradients aren't averaged, because the script calls the model itself and not its DDP wrapper"
        return "around-the-wrapper", cause
    last = [log.steps[step].backwards[-1] for log in run.ranks if log.steps[step].backwards]
    if wrapped and not any(each.sync for each in last):
        cause = "the gradients aren't averaged, because the step's last forward pass was inside no_sync()"
        return "last-in-no-sync", cause
    if wrapped and all(isinstance(each, list) and len(each) == len(names) for each in gradients):
        odd = differing(names, gradients)
        if len(odd) < len(names):
            return "not-wrapped-when-frozen", f"DDP doesn't average the gradients of {named_parameters(odd)}"
    if wrapped:
        return "gradients-changed", "the gradients differ between the ranks when the optimizer steps"
    if run.calls("all_reduce", "all_gather", "all_gather_into_tensor"):
        cause = "the gradients differ between the ranks when the optimizer steps, although the script calls collectives"
        return "not-all-averaged", cause
    return "nothing-averaged", "nothing averages the gradients, because the model isn't wrapped"


def shards_from_one_model(run: Run) -> Iterator[Finding]:
    shards = [log.of(ShardRecord) for log in run.ranks]
    if not all(shards) or run.size == 1:
        return
    for each in zip(*shards, strict=False):
        odd = differing(each[0].names, [one.before for one in each])
        if odd:
            yield found(
                "shards-of-different-models",
                f"the ranks' weights differed when fully_shard shared them out, in {named_parameters(odd)}",
            )
            return
    yield ok("shards", "all ranks had the same weights when fully_shard shared them out")


def outside(run: Run) -> Iterator[Finding]:
    """Do parameters that the trained model lacks, such as those of a criterion, stay equal?"""
    if run.size == 1 or not run.is_data_parallel:
        return
    yield from _second_model(run)
    for step in run.common_steps:
        own = [log.steps[step].outside for log in run.ranks]
        names = [[name for name, _ in each] for each in own]
        if any(each != names[0] for each in names):
            continue
        odd = differing(names[0], [[digest for _, digest in each] for each in own])
        if odd:
            yield found(
                "outside-parameters",
                f"after step {step}, the ranks' weights differ in {named_parameters(odd)}, which the optimizer updates "
                "and the wrapped model doesn't hold",
                step=step,
            )
            return


def _second_model(run: Run) -> Iterator[Finding]:
    """Does another model that the script trains in steps of its own stay equal?"""
    main = run.ranks[0].model.model
    for step in sorted(set.intersection(*(set(log.steps) for log in run.ranks))):
        records = [log.steps[step] for log in run.ranks]
        numbers = {main if record.weights_model is None else record.weights_model for record in records}
        if len(numbers) > 1 or main in numbers or len({str(record.weights) for record in records}) == 1:
            continue
        [model] = [each for each in run.ranks[0].of(ModelRecord) if each.model in numbers]
        odd = differing([each.name for each in model.parameters], [record.weights for record in records])
        yield found(
            "second-model",
            f"before step {step}, the ranks' weights differ in {named_parameters(odd)} of a second model",
            step=step - 1,
        )
        return


def trainable(run: Run) -> Iterator[Finding]:
    if not run.same_model or not run.is_data_parallel:
        return
    rows = zip(*(log.model.parameters for log in run.ranks), strict=True)
    odd = [row[0].name for row in rows if len({each.trains for each in row}) > 1]
    if odd:
        yield found("frozen-on-some-ranks", f"{named_parameters(odd)} is trained on some ranks and frozen on others")


def in_the_optimizer(run: Run) -> Iterator[Finding]:
    log: RankLog = run.ranks[0]
    updated = [step.stepped_names for step in log.steps.values() if step.stepped_names is not None]
    if not updated or len(log.of(ModelRecord)) > 1:
        return
    stepped = set().union(*updated)
    trained = [each.name for each in log.model.parameters if each.trains]
    left_out = [name for name in trained if name not in stepped]
    if trained and len(left_out) == len(trained):
        own = [record.own or record.weights for record in log.steps.values()]
        known = [each for each in own if each]
        if len(known) < 2 or any(each != known[0] for each in known):
            return  # something else updates them, such as DeepSpeed's flat optimizer
        name = "optimizer-of-unsharded" if log.model.fsdp else "optimizer-of-others"
        yield found(name, "the optimizer holds none of the model's parameters", step=1)
    elif left_out:
        seen = f"no optimizer updates {named_parameters(left_out)}, although it requires gradients"
        yield found("left-out-of-optimizer", seen)
