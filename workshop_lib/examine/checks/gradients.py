"""What happens to gradients between the backward pass and the optimizer."""

import math
from collections.abc import Iterator

from workshop_lib.cli.findings import Finding
from workshop_lib.examine.checks.weights import named_parameters
from workshop_lib.examine.observations import Run
from workshop_lib.words import plural


def clipping(run: Run) -> Iterator[Finding]:
    """Are gradients clipped after they are averaged?"""
    if run.size == 1 or not run.is_data_parallel or run.ranks[0].model["fsdp"]:
        return
    clipped = [step for step in run.common_steps if all(log.steps[step]["clips"] for log in run.ranks)]
    for step in clipped:
        norms, lines = zip(*(log.steps[step]["clips"][0] for log in run.ranks), strict=True)
        gradients = [log.steps[step].get("gradients") for log in run.ranks]
        known = all(norm is not None and math.isfinite(norm) for norm in norms) and all(gradients)
        averaged_later = known and all(each == gradients[0] for each in gradients)
        if averaged_later and max(norms) - min(norms) > 1e-4 * max(norms):
            yield Finding(
                "wrong",
                "clipping",
                f"in step {step}, {lines[0]} clips gradients of norm {', '.join(f'{norm:.3g}' for norm in norms)}, "
                "and they are averaged afterwards",
                "Each rank scales its gradient by a different factor, so the average points in a different direction.",
                "Average first, then clip: all ranks then see one norm.",
                "averaging",
                step=step,
            )
            return
    if clipped:
        yield Finding("ok", "clipping", f"all ranks clipped the same gradients in {plural(len(clipped), 'step')}")


def accumulation(run: Run) -> Iterator[Finding]:
    """Do micro-batches communicate only once per step?"""
    log = run.ranks[0]
    if run.size == 1 or not (log.model["ddp"] or log.model["fsdp"]):
        return
    for step in run.common_steps:
        forwards = log.forwards(step)
        backwards = len(log.steps[step]["backwards"])
        if backwards < 2 or len(forwards) != backwards:
            continue
        synchronized = sum(forward["sync"] for forward in forwards)
        if synchronized > 1:
            yield Finding(
                "look",
                "accumulation",
                f"a step has {backwards} micro-batches, and the gradients were sent after {synchronized} of them",
                "One allreduce per step is enough. The others send sums that the next micro-batch changes.",
                "Run all micro-batches but the last inside ddp.no_sync() (FSDP2: set_requires_gradient_sync(False)).",
                "accumulate",
                step=step,
            )
        else:
            seen = f"a step has {backwards} micro-batches, and gradients are sent once"
            yield Finding("ok", "accumulation", seen)
        return


def unused(run: Run) -> Iterator[Finding]:
    """Does every parameter get a gradient?"""
    log = run.ranks[0]
    records = [record for record in log.steps.values() if "without_gradient" in record]
    if not records or len(log.of_kind("model")) > 1:
        return
    never = set.intersection(*(set(record["without_gradient"]) for record in records))
    if never:
        names = named_parameters([name for name in records[0]["without_gradient"] if name in never])
        yield Finding(
            "look",
            "unused",
            f"{names} never got a gradient in {plural(len(records), 'step')}",
            "The parameter doesn't learn. DDP fails in the second step, or searches for it in every step.",
            "Remove it, freeze it before you wrap the model, or check that the forward pass uses it.",
            "branches",
        )
    searches = log.first("ddp").get("find_unused")
    if searches and not any(record["without_gradient"] for record in records):
        yield Finding(
            "look",
            "unused",
            f"find_unused_parameters=True, but every parameter got a gradient in {plural(len(records), 'step')}",
            "DDP walks through the whole graph in every step to find parameters that aren't used.",
            "Leave find_unused_parameters out.",
            "branches",
        )
    if not never and not searches:
        yield Finding("ok", "unused", "every parameter got a gradient")
