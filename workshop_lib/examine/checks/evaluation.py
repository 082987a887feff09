"""Does an evaluation count every sample once, with one model, on all ranks together?"""

from collections.abc import Iterator

from workshop_lib.examine.checks.weights import differing, named_parameters
from workshop_lib.examine.findings import found, ok
from workshop_lib.examine.observations import Run
from workshop_lib.examine.records import DdpRecord, EvaluationRecord
from workshop_lib.findings import Finding

# Collectives that may put results together. A "decision" doesn't: it's a yes or no, such as whether to stop.
JOIN = ("all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "gather", "all_gather_object", "gather_object")


def _together(run: Run) -> Iterator[list[EvaluationRecord]]:
    """Evaluations that every rank took part in, each with the records of all ranks."""
    if run.size > 1 and run.is_data_parallel:
        together = map(list, zip(*(log.evaluations for log in run.ranks), strict=False))
        yield from (each for each in together if not _generates(run, each[0]))


def _samples(evaluation: EvaluationRecord) -> set[int]:
    return {digest for forward in evaluation.forwards for digest in forward.samples or []}


def _is_shared_out(evaluations: list[EvaluationRecord]) -> bool:
    """Whether the ranks evaluated different samples."""
    samples = [_samples(each) for each in evaluations]
    return all(samples) and any(len(each - samples[0]) > len(each) / 2 for each in samples[1:])


def _generates(run: Run, evaluation: EvaluationRecord) -> bool:
    """Whether the model may make data to train on, as a policy does that plays, and a generator."""
    kept = {each.loader for each in evaluation.forwards} - run.ranks[0].training_loaders - {None}
    return not kept and all(each.training for each in evaluation.forwards)


def combined(run: Run) -> Iterator[Finding]:
    """Do ranks that evaluate a part each put their results together?"""
    seen_parts = False
    for evaluations in _together(run):
        if not _is_shared_out(evaluations):
            continue
        seen_parts = True
        calls = [sum(calls.count for name, calls in each.collectives.items() if _joins(name)) for each in evaluations]
        if not any(calls):
            yield found(
                "metric-not-combined",
                f"after step {evaluations[0].step}, each rank evaluated different samples "
                f"({evaluations[0].line}), and no collective put the results together",
                step=evaluations[0].step,
            )
            return
    if seen_parts:
        yield ok("metric", "each rank evaluated a part, and a collective put the results together")
    elif any(True for _ in _together(run)):
        yield ok("metric", "every rank evaluated the same samples, so one rank's number is everyone's")


def mode(run: Run) -> Iterator[Finding]:
    """Does the model evaluate held-back samples as it trains, with dropout and statistics of each batch?"""
    for evaluation in run.ranks[0].evaluations:
        if evaluation.on and not _generates(run, evaluation):
            yield found(
                "evaluated-in-training-mode",
                f"after step {evaluation.step}, {' and '.join(evaluation.on)} evaluates in training mode "
                f"({evaluation.line})",
                step=evaluation.step,
            )
            return


def other_models(run: Run) -> Iterator[Finding]:
    """Are models that ranks evaluate and don't train, such as averaged weights, equal on all ranks?"""
    all_evaluations = [log.of(EvaluationRecord) for log in run.ranks]
    if run.size == 1 or not run.is_data_parallel or len({len(each) for each in all_evaluations}) > 1:
        return
    for evaluations in zip(*all_evaluations, strict=True):
        models = [each.others for each in evaluations]
        odd = [number for number in models[0] if len({str(each.get(number)) for each in models}) > 1]
        if odd:
            joined = any(_joins(name) for each in evaluations for name in each.collectives)
            seen = (
                f"after step {evaluations[0].step}, the ranks evaluate a model with different weights "
                f"({evaluations[0].line}), one that they don't train themselves"
            )
            name = "different-models-combined" if joined else "different-models"
            yield found(name, seen, step=evaluations[0].step)
            return


def _joins(name: str) -> bool:
    kind, phase = name.split()
    return kind in JOIN and phase == "between"


def padding(run: Run) -> Iterator[Finding]:
    """Does a sampler repeat samples to give all ranks equally many?"""
    if run.size == 1:
        return
    log = run.ranks[0]
    for evaluation in log.evaluations:
        for loader in {forward.loader for forward in evaluation.forwards} - {None}:
            if loader in log.training_loaders or loader not in log.loaders:
                continue
            settings = log.loaders[loader][0]
            # The longest order is that of a whole evaluation: some libraries begin with a few batches as a trial.
            of_loader = [[order for key, order in each.orders.items() if key[0] == loader] for each in run.ranks]
            orders = [max(each, key=len, default=[]) for each in of_loader]
            loaded = [index for order in orders for index in order]
            twice = len(loaded) - len(set(loaded))
            if settings.distributed and 0 < twice < run.size:
                yield found(
                    "padding",
                    f"the evaluation's sampler loads {twice} of {settings.samples:,} samples twice, "
                    "so that all ranks have equally many",
                    step=evaluation.step,
                )
                return


def buffers(run: Run) -> Iterator[Finding]:
    """Do all ranks evaluate with the same buffers, such as the statistics of batch normalization?"""
    names = run.ranks[0].model.buffers
    for evaluations in _together(run):
        digests = [each.buffers for each in evaluations]
        if not all(digests):
            continue
        odd = differing(names, digests)
        if odd:
            yield found("different-buffers", f"ranks evaluate with different buffers: {named_parameters(odd)}")
            return
        yield ok("buffers", "all ranks evaluated with the same buffers")
        return
    ends = [log.end.buffers for log in run.ranks]
    ddp = run.ranks[0].first(DdpRecord)
    if run.is_data_parallel and all(ends) and ddp is not None and not ddp.broadcast_buffers:
        odd = differing(names, ends)
        if odd:
            seen = f"at the end, buffers differ between the ranks: {named_parameters(odd)}"
            yield found("different-buffers", seen)
