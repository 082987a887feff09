"""How the run ended: did a rank fail, or wait for another one, and did the ranks join at all?"""

from collections.abc import Iterator

from workshop_lib.examine.findings import found, ok
from workshop_lib.examine.observations import Run
from workshop_lib.examine.records import CollectiveRecord, ErrorRecord, UnseenRecord
from workshop_lib.findings import Finding
from workshop_lib.ranks.faults.rank_errors import named, where
from workshop_lib.words import plural

TEXT_SHOWN = 200
ABORTED = "what(): "  # begins the text of a C++ exception that nobody caught
# What PyTorch says where a script wants a GPU, and the machine or this build of PyTorch has none.
NO_GPU = (
    "_cuda_setDevice",
    "not compiled with CUDA",
    "no NVIDIA driver",
    "No CUDA GPUs",
    "ProcessGroupNCCL is only",
    "NCCL built in",
)
MISMATCH = "doesn't match expected size"


def ended(run: Run) -> Iterator[Finding]:
    failed = {rank: record for rank, log in enumerate(run.ranks) if (record := log.first(ErrorRecord))}
    positions = [_position(run, rank) for rank in range(run.size)]
    done = [rank for rank, log in enumerate(run.ranks) if log.has_ended]
    # gloo aborts a rank now and then while Python shuts down. That isn't the script's fault.
    how = "ended" if run.how == "failed" and len(done) == run.size else run.how
    if any(error.error == "StartsItsOwnRanks" for error in failed.values()):
        [text, *_] = [error.text for error in failed.values()]
        yield found("own-ranks", f"nothing was watched: {text}")
    elif failed:
        rank = min(failed, key=lambda each: failed[each].time)
        error = failed[rank]
        at = f" at {error.place[0]}, line {error.place[1]}" if error.place else ""
        others = [_position(run, other) for other in range(run.size) if other != rank]
        taken = max((record.step for record in run.ranks[rank].records), default=0)
        seen = "\n".join([f"rank {rank} failed in step {taken}{at}: {shortened(error.text)}", *others])
        yield found(_why_it_failed(run, error.text), seen, (rank,), taken)
    elif how == "failed" and (mismatch := _mismatch(run)):
        yield found(
            "collectives-met",
            "\n".join([f"a rank aborted: {shortened(mismatch)}", *positions]),
            step=min(max(log.steps, default=0) for log in run.ranks) + 1,
        )
    elif how == "failed":
        tail = "\n".join(run.last_lines[-8:])
        yield found("script-failed", f"the script ended with an error:\n{tail}")
    elif how == "stuck":
        steps = [max(log.steps, default=0) for log in run.ranks]
        waiting = tuple(run.stacks)
        seen = "\n".join([f"{named(waiting)} waited for a call that another rank never made:", *positions])
        yield found("stuck", seen, waiting, min(steps), steps=_list(steps))
    elif not run.trains:
        seen = "no step of an optimizer was seen on every rank"
        seen += " before the time was up" if how == "time" else ""
        yield found("no-step", "\n".join([seen, *positions]))
    else:
        took = plural(len(run.common_steps), "step")
        stopped = " until the time was up" if how == "time" else ""
        yield ok("ended", f"{plural(run.size, 'rank')} took {took}{stopped}, and no rank failed")
    steps = [len(log.steps) for log in run.ranks]
    if how == "ended" and run.trains and len(set(steps)) > 1:
        ends = [log.end.weights for log in run.ranks]
        agree = all(ends) and all(end == ends[0] for end in ends)  # as after DDP's Join
        seen = f"the ranks took different numbers of steps: {_list(steps)} on ranks 0 to {run.size - 1}"
        name = "different-steps" if run.is_data_parallel and not agree else "different-steps-joined"
        yield found(name, seen, step=min(steps) + 1)


def unseen(run: Run) -> Iterator[Finding]:
    """What of the script couldn't be looked at?"""
    blind = {each.what: each for log in run.ranks for each in log.of(UnseenRecord)}
    for what, record in blind.items():
        seen = f"couldn't look at {what} ({record.line or 'in a library'}): {record.text}"
        yield found("unseen", seen, step=record.step)


def _mismatch(run: Run) -> str:
    """What gloo said before it aborted a rank because two messages didn't match; empty if that didn't happen."""
    for line in run.last_lines:
        if ABORTED in line and MISMATCH in line:
            return line.partition(ABORTED)[2].strip()
    return ""


def _position(run: Run, rank: int) -> str:
    """Where a rank was in the end, in words."""
    log = run.ranks[rank]
    if run.stacks.get(rank):
        return f"rank {rank}: {where(run.stacks[rank])}"
    if log.has_ended:
        return f"rank {rank} had ended"
    if error := log.first(ErrorRecord):
        return f"rank {rank} failed too: {shortened(error.text)}"
    if calls := log.of(CollectiveRecord):
        return f"rank {rank} had called {calls[-1].name} at {calls[-1].line}, and ended in it or after it"
    return f"rank {rank} ended and left no message"


def shortened(text: str) -> str:
    """The line of an error that gives the reason: the first, and in NCCL's errors the last."""
    lines = text.strip().splitlines() or [""]
    reason = lines[-1] if "NCCL error" in lines[0] else lines[0]
    return reason if len(reason) <= TEXT_SHOWN else f"{reason[:TEXT_SHOWN]}..."


def _why_it_failed(run: Run, text: str) -> str:
    """The name of the finding for a rank that failed with this text."""
    if any(local in line for line in run.last_lines for local in ("--local_rank", "--local-rank")):
        return "failed-local-rank"
    if any(words in text for words in NO_GPU):
        return "failed-without-gpu"
    if "Duplicate GPU" in text:
        return "failed-on-one-gpu"
    if "Expected to have finished reduction" in text:
        return "failed-unused-parameter"
    if any(log.has_ended for log in run.ranks):
        return "failed-after-another-ended"
    return "failed"


def _list(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def joined(run: Run) -> Iterator[Finding]:
    if run.size == 1 or not any(log.steps for log in run.ranks):
        return
    has_group = any(log.group_size for log in run.ranks)
    libraries = sorted({name for log in run.ranks for name in log.model.joined_by})
    if not has_group and libraries:
        seen = f"the script imports {' and '.join(libraries)} and never called init_process_group"
        yield found("joined-by-another-library", seen, size=run.size)
    elif not has_group:
        yield found(
            "no-group",
            f"the script never called init_process_group: it's {run.size} runs that know nothing of each other",
        )
    elif not run.joined:
        sizes = [log.group_size or 1 for log in run.ranks]
        seen = f"the ranks' process groups have {_list(sizes)} ranks, not {run.size}"
        yield found("group-of-other-size", seen=seen)
