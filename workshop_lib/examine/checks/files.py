"""Which ranks write and read which files?"""

from collections.abc import Iterator

from workshop_lib.examine.observations import Run
from workshop_lib.findings import Finding
from workshop_lib.ranks.faults.rank_errors import named
from workshop_lib.words import plural


def written(run: Run) -> Iterator[Finding]:
    """Do several ranks write files of the same name?"""
    writers: dict[str, dict[int, dict]] = {}
    for rank, log in enumerate(run.ranks):
        for record in log.of_kind("save", "write"):
            if record["path"] and record.get("mode") != "replace":
                writers.setdefault(record["path"], {}).setdefault(rank, record)
    found: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for path, records in writers.items():
        is_checkpoint = any(each["path"] == path for log in run.ranks for each in log.of_kind("save"))
        if len(records) > 1:
            found.setdefault(("wrong" if is_checkpoint else "look", tuple(sorted(records))), []).append(path)
    for (level, ranks), paths in found.items():
        first = writers[paths[0]][ranks[0]]
        more = f" and {plural(len(paths) - 1, 'other file')}" if len(paths) > 1 else ""
        yield Finding(
            level,
            "files",
            f"{named(ranks)} write {paths[0]}{more} ({first['line'] or 'in a library'})",
            "If they write at the same time, the file may be broken, and a crash leaves half of it.",
            "Write on rank 0 only, to a temporary name that you then rename, or put the rank into the name.",
            "save",
            ranks,
            first["step"],
        )
    if writers and not found:
        yield Finding("ok", "files", "no two ranks wrote a file of the same name")


def shares(run: Run) -> Iterator[Finding]:
    """Is a checkpoint of sharded parameters whole?"""
    saves = [(rank, each) for rank, log in enumerate(run.ranks) for each in log.of_kind("save") if each["shares"]]
    ranks = tuple(sorted({rank for rank, _ in saves}))
    if saves and len(ranks) < run.size:
        record = saves[0][1]
        yield Finding(
            "wrong",
            "checkpoint",
            f"{named(ranks)} alone saves {record['path']} ({record['line']}), with {record['shares']} tensors of "
            "which it holds only a part",
            "The other ranks' parts are in no file, so nothing can resume from it.",
            "Save with torch.distributed.checkpoint on all ranks, or get_model_state_dict(full_state_dict=True) first.",
            "sharded file",
            ranks,
            record["step"],
        )


def resumed(run: Run) -> Iterator[Finding]:
    """Does every rank resume?"""
    if run.size == 1 or not run.is_data_parallel:
        return
    # What the model loads need not be loaded everywhere: DDP sends rank 0's weights, and weights.equal compares them.
    loaded = [[each for each in log.of_kind("load") if each["step"] == 0] for log in run.ranks]
    ranks = [rank for rank, each in enumerate(loaded) if any(record["what"] == "optimizer" for record in each)]
    if ranks and len(ranks) < run.size:
        missed = tuple(rank for rank in range(run.size) if rank not in ranks)
        line = next(record["line"] for record in loaded[ranks[0]] if record["what"] == "optimizer")
        yield Finding(
            "wrong",
            "resume",
            f"{named(ranks)} loaded the optimizer's state at {line}, and {named(missed)} didn't",
            "The ranks continue from different states, so their weights drift apart.",
            "Let rank 0 decide whether to resume and broadcast that, then load on every rank.",
            "resume",
            missed,
            0,
        )
        return
    files = [each for log in loaded for each in log if each["what"] == "file" and each.get("optimizer")]
    if files and not ranks and any(each["what"] == "model" for log in loaded for each in log):
        yield Finding(
            "look",
            "resume",
            f"{files[0]['line']} reads a checkpoint with an optimizer's state, and only the network's part is loaded",
            "If the run should go on, it begins with an optimizer that knows nothing, at the first rate and epoch.",
            "Load the optimizer, the scheduler and the epoch as well, unless you only start from the network.",
            "resume",
            step=0,
        )
        return
    if any(loaded) and all(loaded):
        yield Finding("ok", "resume", "every rank loaded the same kinds of state")
