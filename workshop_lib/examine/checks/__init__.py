"""The table of checks. Each takes the observations of one run, and yields findings.

A check with nothing to look at yields nothing. One that looked and found no fault yields an "ok" that says what it saw.
"""

from collections.abc import Callable, Iterator

from workshop_lib.examine.checks import data, ending, evaluation, files, gradients, machine, randomness, speed, weights
from workshop_lib.examine.findings import found
from workshop_lib.examine.observations import Run
from workshop_lib.findings import LEVELS, Finding

CHECKS: tuple[Callable[[Run], Iterator[Finding]], ...] = (
    ending.ended,
    ending.joined,
    ending.unseen,
    weights.equal,
    weights.shards_from_one_model,
    weights.outside,
    weights.trainable,
    weights.in_the_optimizer,
    data.batches,
    data.sampler,
    data.coverage,
    data.order,
    data.unequal_parts,
    gradients.zeroed,
    gradients.size,
    gradients.against_one,
    gradients.rate,
    gradients.clipping,
    gradients.accumulation,
    gradients.wasted,
    gradients.left_over,
    gradients.unused,
    evaluation.combined,
    evaluation.mode,
    evaluation.other_models,
    evaluation.padding,
    evaluation.buffers,
    randomness.in_forward,
    randomness.in_loading,
    files.written,
    files.shares,
    files.resumed,
    machine.threads,
    machine.devices,
    speed.stragglers,
    speed.facts,
)
BEFORE_TRAINING = (ending.ended, ending.joined, ending.unseen, files.written, machine.devices)
WITHOUT_GROUP = (ending.ended, ending.joined)  # everything else follows from the group that's missing


def examine(run: Run) -> list[Finding]:
    """All findings, the worst first."""
    checks: tuple[Callable[[Run], Iterator[Finding]], ...] = BEFORE_TRAINING
    if run.trains:
        checks = CHECKS if run.joined else WITHOUT_GROUP
    findings = [finding for check in checks for finding in _findings(check, run)]
    return sorted(findings, key=lambda finding: -LEVELS.index(finding.level))


def _findings(check: Callable[[Run], Iterator[Finding]], run: Run) -> list[Finding]:
    """What a check finds. If it fails, the report has that and everything else."""
    try:
        return list(check(run))
    except Exception as error:
        seen = (
            f"the check {check.__module__.rsplit('.', 1)[-1]}.{check.__name__} failed: {type(error).__name__}: {error}"
        )
        return [found("check-failed", seen=seen)]
