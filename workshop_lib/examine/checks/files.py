"""Which ranks write and read which files?"""

from collections.abc import Iterator

from workshop_lib.examine.findings import found, ok
from workshop_lib.examine.observations import Run
from workshop_lib.examine.records import LoadRecord, SaveRecord, WriteRecord
from workshop_lib.findings import Finding
from workshop_lib.ranks.faults.rank_errors import named
from workshop_lib.words import plural


def written(run: Run) -> Iterator[Finding]:
    """Do several ranks write files of the same name?"""
    writers: dict[str, dict[int, SaveRecord | WriteRecord]] = {}
    for rank, log in enumerate(run.ranks):
        writes = [each for each in log.of(WriteRecord) if each.mode != "replace"]
        records: list[SaveRecord | WriteRecord] = [*log.of(SaveRecord), *writes]
        for record in records:
            if record.path:
                writers.setdefault(record.path, {}).setdefault(rank, record)
    shared: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for path, of_ranks in writers.items():
        is_checkpoint = any(each.path == path for log in run.ranks for each in log.of(SaveRecord))
        if len(of_ranks) > 1:
            name = "same-checkpoint" if is_checkpoint else "same-file"
            shared.setdefault((name, tuple(sorted(of_ranks))), []).append(path)
    for (name, ranks), paths in shared.items():
        first = writers[paths[0]][ranks[0]]
        more = f" and {plural(len(paths) - 1, 'other file')}" if len(paths) > 1 else ""
        seen = f"{named(ranks)} write {paths[0]}{more} ({first.line or 'in a library'})"
        yield found(name, seen, ranks, first.step)
    if writers and not shared:
        yield ok("files", "no two ranks wrote a file of the same name")


def shares(run: Run) -> Iterator[Finding]:
    """Is a checkpoint of sharded parameters whole?"""
    saves = [(rank, each) for rank, log in enumerate(run.ranks) for each in log.of(SaveRecord) if each.shares]
    ranks = tuple(sorted({rank for rank, _ in saves}))
    if saves and len(ranks) < run.size:
        record = saves[0][1]
        yield found(
            "checkpoint-of-a-share",
            f"{named(ranks)} alone saves {record.path} ({record.line}), with {record.shares} tensors of "
            "which it holds only a part",
            ranks=ranks,
            step=record.step,
        )


def resumed(run: Run) -> Iterator[Finding]:
    """Does every rank resume?"""
    if run.size == 1 or not run.is_data_parallel:
        return
    # What the model loads need not be loaded everywhere: DDP sends rank 0's weights, and weights.equal compares them.
    loaded = [[each for each in log.of(LoadRecord) if each.step == 0] for log in run.ranks]
    ranks = [rank for rank, each in enumerate(loaded) if any(record.what == "optimizer" for record in each)]
    if ranks and len(ranks) < run.size:
        missed = tuple(rank for rank in range(run.size) if rank not in ranks)
        line = next(record.line for record in loaded[ranks[0]] if record.what == "optimizer")
        yield found(
            "resumed-on-some-ranks",
            f"{named(ranks)} loaded the optimizer's state at {line}, and {named(missed)} didn't",
            ranks=missed,
            step=0,
        )
        return
    files = [each for log in loaded for each in log if each.what == "file" and each.optimizer]
    if files and not ranks and any(each.what == "model" for log in loaded for each in log):
        yield found(
            "resumed-without-optimizer",
            f"{files[0].line} reads a checkpoint with an optimizer's state, and only the network is loaded",
            step=0,
        )
        return
    later = [each for each in run.ranks[0].of(LoadRecord) if each.step < max(run.ranks[0].steps)]
    bare = [each for each in later if each.counter and not each.optimizer]
    if bare and {each.what for each in later} == {"file", "model"}:
        seen = f"{bare[0].line} reads a checkpoint with the number of its {bare[0].counter} and no optimizer's state"
        yield found("saved-without-optimizer", f"{seen}, and training goes on from there", step=bare[0].step)
        return
    if any(loaded) and all(loaded):
        yield ok("resume", "every rank loaded the same kinds of state")
