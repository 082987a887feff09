"""Are the ranks' weights equal, before and after each step, and if not, since when, where and why?"""

import math
from collections.abc import Iterator

from workshop_lib.examine.observations import RankLog, Run
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
        yield Finding("ok", "weights", "each rank has its own layers of one model, as in a pipeline")
        return
    if not run.same_model:
        own = [run.named_shapes(rank) for rank in range(run.size)]
        unshared = {each[0] for one in own for each in one if any(each not in other for other in own)}
        which = f": {named_parameters(sorted(unshared))}" if unshared else ", or have them in different orders"
        seen = f"the ranks' models have different parameters{which}"
        why = "That's right for pipelines only. Averaged gradients need the same parameters on every rank."
        yield Finding("look", "weights", seen, why, "Build the same model on every rank.", "same start")
        return
    shared_out = [each[3] for each in run.ranks[0].model["parameters"]]
    if not run.is_data_parallel or all(shared_out):
        return
    names = [each[0] for each in run.ranks[0].model["parameters"]]
    weights = {step: [log.steps[step]["weights"] for log in run.ranks] for step in _compared(run)}
    different = {step: odd for step, each in weights.items() if (odd := differing(names, each))}
    ends = [log.first("end").get("weights") for log in run.ranks]
    ends = ends if all(end is not None and len(end) == len(names) for end in ends) else [None] * run.size
    if not different:
        if all(end is not None for end in ends) and any(end != ends[0] for end in ends):
            seen = f"the final weights differ between the ranks, in {named_parameters(differing(names, ends))}"
            yield Finding("wrong", "weights", seen, "The ranks no longer have one model.", "", "equal")
            return
        if not weights:
            return
        seen = f"bit-identical on {run.size} ranks in {plural(len(_compared(run)), 'step')}"
        yield Finding("ok", "weights", f"the weights are {seen}")
        return
    first = min(different)
    again = [f"before step {step}" for step in _compared(run) if step > first and step not in different]
    again += ["at the end"] if all(ends) and all(end == ends[0] for end in ends) else []
    averages = _averages_now_and_then(run)
    if again and averages:
        yield Finding("ok", "weights", f"the ranks train alone, and average their weights: equal again {again[0]}")
        return
    cause, change, section = _cause(run, first)
    equal_before = max((step for step in weights if step < first), default=first - 1)
    when = "before the first step" if first == 1 else f"after step {first - 1}"
    if equal_before < first - 1:  # the weights of long trainings aren't compared in each step
        when = f"since one of the steps {equal_before} to {first - 1}"
    seen = f"{when}, the ranks' weights differ in {named_parameters(different[first])}: {cause}"
    if again or averages:
        equal_again = f"They're equal again {again[0]}" if again else "Some steps send as much as the whole model"
        why = f"{equal_again}, as in local SGD, so this may be on purpose."
        yield Finding("look", "weights", seen, why, change, section, _odd_ranks(run, first), first - 1)
        return
    why = "From there on, the ranks' models differ. Nothing in the loss tells you."
    yield Finding("wrong", "weights", seen, why, change, section, _odd_ranks(run, first), max(first - 1, 0))


def _averages_now_and_then(run: Run) -> bool:
    """Whether the script sends as much as the whole model in some of its steps, but not in most."""
    log = run.ranks[0]
    elements = sum(math.prod(shape) for _, shape, *_ in log.model["parameters"])
    sends = []
    for record in [*log.steps.values(), log.first("end")]:
        sizes = [size for name, (_, size, _) in record.get("collectives", {}).items() if name.split()[0] in AVERAGE]
        sends.append(sum(sizes) >= SMALLEST_TYPE * elements)
    return 0 < sum(sends) < len(sends) / 2


def _compared(run: Run) -> list[int]:
    """The steps in which every rank wrote down its weights, and those of the same model."""
    number = run.ranks[0].model["model"]
    found = []
    for step in run.common_steps:
        records = [log.steps[step] for log in run.ranks]
        if all(record.get("weights") is not None and record["weights_model"] == number for record in records):
            found.append(step)
    return found


def _odd_ranks(run: Run, step: int) -> tuple[int, ...]:
    """The ranks that are not with the majority; all of them if there is none."""
    values = [str(log.steps[step]["weights"]) for log in run.ranks]
    usual = max(values, key=values.count)
    if values.count(usual) * 2 <= len(values):
        return tuple(range(run.size))
    return tuple(rank for rank, value in enumerate(values) if value != usual)


def _cause(run: Run, first: int) -> tuple[str, str, str]:
    """Why the weights differ before step `first`: cause, remedy and section."""
    logs = run.ranks
    ddp = [log.first("ddp") for log in logs]
    if first == 1:
        if all(ddp) and all(each["after"] == ddp[0]["after"] for each in ddp):
            return (
                "they were equal when DDP wrapped the model, so something changed them afterwards",
                "Load or initialize the weights before DistributedDataParallel, which sends rank 0's to all ranks.",
                "same start",
            )
        return (
            "the ranks start from different weights",
            "Wrap the model in DistributedDataParallel, or broadcast rank 0's weights before the first step.",
            "same start",
        )
    step = max(each for each in run.common_steps if each < first)
    records = [log.steps[step] for log in logs]
    if len({bool(record.get("skipped")) for record in records}) > 1:
        rank = next(rank for rank, record in enumerate(records) if record.get("skipped"))
        cause = f"rank {rank} skipped the step because its own gradients overflowed, and the other ranks took it"
        return cause, "Average the gradients before GradScaler.unscale_ and step look for overflow.", "averaging"
    rates = [str([each["lr"] for each in record.get("optimizers", [])]) for record in records]
    if len(set(rates)) > 1:
        cause = f"the learning rates differ: {', '.join(rate.strip('[]') for rate in rates)}"
        return cause, "Compute the learning rate from values that all ranks have.", "rate"
    if not all("gradients" in record for record in records):
        # Not every step's gradients are written down. Later ones do as well: averaged ones are equal in each step.
        step = first
        records = [log.steps[step] for log in logs]
    missing = [record.get("gradients_of", []) for record in records]
    if any(each != missing[0] for each in missing):
        odd = sorted(set.union(*map(set, missing)) - set.intersection(*map(set, missing)))
        cause = f"{named_parameters(odd)} got a gradient on some ranks only"
        return cause, "Use and freeze the same parameters on every rank.", "branches"
    gradients = [record.get("gradients") for record in records]
    if any(each != gradients[0] for each in gradients):
        return _not_averaged(run, step, gradients, missing[0])
    loads = [[each["line"] for each in log.of_kind("load") if each["what"] == "optimizer"] for log in logs]
    if len({bool(each) for each in loads}) > 1:
        rank = next(rank for rank, each in enumerate(loads) if not each)
        cause = f"the gradients are equal, but rank {rank} didn't load the optimizer's state"
        return cause, "Load the checkpoint on every rank, or broadcast what rank 0 loaded.", "resume"
    cause = "the gradients are equal, so the optimizers differ, or the script changed weights itself"
    return cause, "Look for code that changes weights or the optimizer on some ranks only.", "same start"


def _not_averaged(run: Run, step: int, gradients: list, names: list[str]) -> tuple[str, str, str]:
    forwards = [log.forwards(step) for log in run.ranks]
    wrapped = all(log.first("ddp") for log in run.ranks)
    if wrapped and all(forward.get("around_ddp") for each in forwards for forward in each):
        cause = "the gradients aren't averaged, because the script calls the model itself and not its DDP wrapper"
        return cause, "Call the wrapper in training: ddp(x), not ddp.module(x) or model(x).", "ddp"
    last = [log.steps[step]["backwards"][-1] for log in run.ranks if log.steps[step]["backwards"]]
    if wrapped and not any(sync for *_, sync in last):
        cause = "the gradients aren't averaged, because the step's last forward pass was inside no_sync()"
        return cause, "Leave no_sync() before the forward pass of the last micro-batch.", "accumulate"
    if wrapped and all(isinstance(each, list) and len(each) == len(names) for each in gradients):
        odd = differing(names, gradients)
        if len(odd) < len(names):
            cause = f"DDP doesn't average the gradients of {named_parameters(odd)}"
            return cause, "Unfreeze them before you wrap the model, or wrap it again after you unfreeze them.", "ddp"
    if wrapped:
        cause = "the gradients differ between the ranks when the optimizer steps"
        return cause, "Change gradients in the same way on all ranks, and only after the averaging.", "averaging"
    if run.calls("all_reduce", "all_gather", "all_gather_into_tensor"):
        cause = "the gradients differ between the ranks when the optimizer steps, although the script calls collectives"
        return cause, "Average the gradient of every parameter after the last backward pass of a step.", "averaging"
    cause = "nothing averages the gradients, because the model isn't wrapped"
    return cause, "Wrap the model in torch.nn.parallel.DistributedDataParallel, or use fully_shard.", "averaging"


def shards_from_one_model(run: Run) -> Iterator[Finding]:
    shards = [log.of_kind("shard") for log in run.ranks]
    if not all(shards) or run.size == 1:
        return
    for each in zip(*shards, strict=False):
        odd = differing(each[0]["names"], [one["before"] for one in each])
        if odd:
            yield Finding(
                "look",
                "shards",
                f"the ranks' weights differed when fully_shard shared them out, in {named_parameters(odd)}",
                "Each rank keeps its part of its own weights, so you train a model that no rank built.",
                "Seed every rank equally before you build the model, or broadcast rank 0's weights.",
                "fsdp",
            )
            return
    yield Finding("ok", "shards", "all ranks had the same weights when fully_shard shared them out")


def outside(run: Run) -> Iterator[Finding]:
    """Do parameters that the trained model lacks, such as those of a criterion, stay equal?"""
    if run.size == 1 or not run.is_data_parallel:
        return
    yield from _second_model(run)
    for step in run.common_steps:
        own = [log.steps[step].get("outside", []) for log in run.ranks]
        names = [[name for name, _ in each] for each in own]
        if any(each != names[0] for each in names):
            continue
        odd = differing(names[0], [[digest for _, digest in each] for each in own])
        if odd:
            yield Finding(
                "wrong",
                "weights",
                f"after step {step}, the ranks' weights differ in {named_parameters(odd)}, which the optimizer updates "
                "and the wrapped model doesn't hold",
                "Nothing averages their gradients, or nothing made them start equal, so every rank has its own.",
                "Put them into the module that you wrap, or wrap their module as well.",
                "ddp",
                step=step,
            )
            return


def _second_model(run: Run) -> Iterator[Finding]:
    """Does another model that the script trains in steps of its own stay equal?"""
    main = run.ranks[0].model["model"]
    for step in sorted(set.intersection(*(set(log.steps) for log in run.ranks))):
        records = [log.steps[step] for log in run.ranks]
        numbers = {record.get("weights_model", main) for record in records}
        if len(numbers) > 1 or main in numbers or len({str(record["weights"]) for record in records}) == 1:
            continue
        [model] = [each for each in run.ranks[0].of_kind("model") if each["model"] in numbers]
        odd = differing([each[0] for each in model["parameters"]], [record["weights"] for record in records])
        yield Finding(
            "wrong",
            "weights",
            f"before step {step}, the ranks' weights differ in {named_parameters(odd)} of a second model",
            "Nothing averages its gradients, or nothing made it start equal, so every rank has its own.",
            "Wrap each model that you train.",
            "ddp",
            step=step - 1,
        )
        return


def trainable(run: Run) -> Iterator[Finding]:
    if not run.same_model or not run.is_data_parallel:
        return
    rows = zip(*(log.model["parameters"] for log in run.ranks), strict=True)
    odd = [row[0][0] for row in rows if len({each[2] for each in row}) > 1]
    if odd:
        yield Finding(
            "wrong",
            "frozen",
            f"{named_parameters(odd)} is trained on some ranks and frozen on others",
            "A frozen parameter has no gradient to average, so the ranks' weights drift apart or the ranks hang.",
            "Freeze the same parameters on every rank.",
            "branches",
        )


def in_the_optimizer(run: Run) -> Iterator[Finding]:
    log: RankLog = run.ranks[0]
    records = [record for record in log.steps.values() if "stepped_names" in record]
    if not records or len(log.of_kind("model")) > 1:
        return
    stepped = {name for record in records for name in record["stepped_names"]}
    trained = [name for name, _, trains, _ in log.model["parameters"] if trains]
    left_out = [name for name in trained if name not in stepped]
    if trained and len(left_out) == len(trained):
        own = [record.get("own") or record.get("weights") for record in log.steps.values()]
        known = [each for each in own if each]
        if len(known) < 2 or any(each != known[0] for each in known):
            return  # something else updates them, such as DeepSpeed's flat optimizer
        yield Finding(
            "wrong",
            "optimizer",
            "the optimizer holds none of the model's parameters",
            "It updates tensors that no forward pass uses, so the model doesn't learn.",
            "Create the optimizer after the model is wrapped, moved and sharded, from that model's parameters().",
            "fsdp" if log.model["fsdp"] else "ddp",
            step=1,
        )
    elif left_out:
        seen = f"no optimizer updates {named_parameters(left_out)}, although it requires gradients"
        change = "Give it to the optimizer, or freeze it before you wrap the model."
        yield Finding("look", "optimizer", seen, "Its gradient is computed and sent for nothing.", change, "ddp")
