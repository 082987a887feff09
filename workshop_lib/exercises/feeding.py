"""Checks of the exercises in 09_feeding_the_ranks."""

from workshop_lib.notebook.checks import Verdict, judged
from workshop_lib.probes import feeding as probes

MOST_AHEAD = 2  # one that is ready, and one that is being read


def my_bytes(function) -> Verdict:
    """`my_bytes(rows, row_bytes, header_bytes, rank, size)` returns the offset and bytes of a rank's rows."""
    return judged(function, probes.my_bytes, _judge_bytes, stuck="the function does not end.")


def prefetch(function) -> Verdict:
    """`prefetch(read, n)` hands out read(0) … read(n - 1), and reads the next one meanwhile."""
    stuck = (
        "the loop over the batches waits for one that never comes. Does the thread end after an error in "
        "`read`, or after the last batch, without telling? `future.result()` tells both."
    )
    return judged(function, probes.prefetch, _judge_prefetch, stuck=stuck)


def _judge_bytes(facts: list[dict]):
    found = facts[0]
    for case, parts in found.items():
        wrong = [part for part in parts if not _is_pair(part)]
        if wrong:
            yield "it returns two whole numbers", False, _pair_hint(case, wrong[0])
    yield "it returns two whole numbers", True, ""
    for text, hint_of in (
        ("the header is nobody's", _header),
        ("each part begins and ends between two rows", _whole_rows),
        ("every row is read once, also where the ranks do not divide the rows", _cover),
        ("no rank reads two rows more than another", _balance),
    ):
        hints = [f"{_told(case)}{hint}" for case, parts in found.items() if (hint := hint_of(case, parts))]
        yield text, not hints, hints[0] if hints else ""


def _told(case: tuple) -> str:
    rows, row_bytes, header_bytes, size = case
    ranks = f"{size} rank{'s' * (size > 1)}"
    return f"{rows:,} rows of {row_bytes} bytes after a header of {header_bytes}, {ranks}: "


def _is_pair(part) -> bool:
    return isinstance(part, tuple) and len(part) == 2 and all(isinstance(number, int) for number in part)


def _pair_hint(case: tuple, part) -> str:
    if part is None:
        return "it returned nothing: `return` the offset and the number of bytes."
    if isinstance(part, tuple | list) and len(part) == 2:
        return f"{_told(case)}it returned {part!r}: `//` divides whole numbers, `/` makes a fraction."
    return f"{_told(case)}it returned {part!r}; (offset, bytes) is asked for."


def _header(case: tuple, parts: list) -> str:
    rows, row_bytes, header_bytes, size = case
    first = min(offset for offset, _ in parts)
    if header_bytes and first == 0:
        return "rank 0 begins at 0, where the header is: no image, but 16 bytes of a false one for everybody."
    if first != header_bytes:
        return f"the first part begins at {first}, the first row at {header_bytes}."
    return ""


def _whole_rows(case: tuple, parts: list) -> str:
    rows, row_bytes, header_bytes, size = case
    for rank, (offset, nbytes) in enumerate(parts):
        count = (rows * (rank + 1) // size) - rows * rank // size
        if nbytes == count > 0 and row_bytes > 1:
            return f"rank {rank} reads {nbytes} bytes; that is the number of its rows: times `row_bytes`."
        if nbytes % row_bytes == header_bytes % row_bytes and nbytes % row_bytes:
            return f"rank {rank} reads {nbytes} bytes, the header counted in: that is only in the offset."
        if (offset - header_bytes) % row_bytes or nbytes % row_bytes:
            return (
                f"rank {rank} begins at {offset} and reads {nbytes} bytes, so a row is torn in two. Share "
                "out rows first, and turn them into bytes then."
            )
    return ""


def _cover(case: tuple, parts: list) -> str:
    """Why these parts are not all rows, each once; empty when they are."""
    rows, row_bytes, header_bytes, size = case
    taken = []
    for rank, (offset, nbytes) in enumerate(parts):
        first, count = (offset - header_bytes) // row_bytes, nbytes // row_bytes
        if count < 0:
            return f"rank {rank} is to read {nbytes} bytes."
        if rank and nbytes and parts[0][1] and offset == parts[0][0]:
            return f"rank {rank} begins at {offset}, as rank 0 does."
        if count and first + count > rows:
            end = header_bytes + rows * row_bytes
            return (
                f"rank {rank} reads to {offset + nbytes}, and the file ends at {end}. Is the second number a "
                "count of bytes, rather than where they end? And does the last rank take fewer?"
            )
        taken += range(first, first + count)
    missing, twice = rows - len(set(taken)), len(taken) - len(set(taken))
    if twice:
        return f"{twice} rows are read by more than one rank."
    if missing:
        return f"{missing} rows are read by nobody: {rows} // {size} leaves some over."
    return ""


def _balance(case: tuple, parts: list) -> str:
    counts = [nbytes // case[1] for _, nbytes in parts]
    if max(counts) - min(counts) <= 1:
        return ""
    return (
        f"the ranks read {counts} rows, and all wait for the slowest: let the rows that are left over go to "
        "as many ranks, one each, as `rows * rank // size` does."
    )


def _judge_prefetch(facts: list[dict]):
    found = facts[0]
    several, failing = found["several"], found["failing"]
    yield "it hands out batches", several["kind"] is None, _kind_hint(several)
    right = list(range(probes.BATCHES))
    in_order = several["got"] == right and not several["error"] and not several["outside"]
    yield "all batches come, each once and in order", in_order, _order_hint(several, right)
    hint = f"`read` was called for {sorted(set(several['reads']))}, {len(several['reads'])} times."
    yield "each is read once", sorted(several["reads"]) == right, hint
    most = max(several["ahead"])
    hint = (
        f"while the consumer had one batch, {most} more were read or begun. A whole data set may not fit "
        "into memory, and to have the next batch ready, one read ahead is enough."
    )
    yield "it reads only a little ahead", most <= MOST_AHEAD, hint
    yield "the next batch is read while this one is used", all(several["overlapped"]), _overlap_hint(several)
    short = found["one"]["got"] == [0] and found["none"]["got"] == []
    short = short and not any(found[case]["error"] or found[case]["outside"] for case in ("one", "none"))
    hint = f"for n = 1 it gave {_outcome(found['one'])}, for n = 0 {_outcome(found['none'])}."
    yield "also for a single batch, and for none", short, hint
    known = "cannot be read" in (failing["error"] or "")
    hint = (
        f"`read({probes.FAILS_AT})` raised an error, and the consumer got {_outcome(failing)}: its training "
        "would go on with a part of the data, and nobody would know. `future.result()` raises it again."
    )
    yield "an error while reading reaches the consumer", known, hint


def _outcome(fact: dict) -> str:
    error = f" and then {fact['error']}" if fact["error"] else ", without an error" * bool(fact["got"])
    return f"{fact['got']}{error}"


def _kind_hint(fact: dict) -> str:
    if fact["kind"] == "None":
        return "it returned nothing: hand the batches out with `yield`, one at a time."
    if fact["kind"] == "a Future":
        return "it hands out a Future, the promise of a batch: `result()` waits for the batch itself."
    return f"it gave {fact['kind']}; hand out what `read` returns, with `yield`."


def _order_hint(fact: dict, right: list) -> str:
    got = fact["got"]
    if fact["outside"]:
        return f"it asked for batch {fact['outside'][0]}, and the last one is {right[-1]}."
    if fact["error"]:
        return f"after {got} it ended with {fact['error']}."
    if got == right[:-1]:
        return "the last batch is missing: when the loop ends, one is still coming."
    if got == right[1:]:
        return "batch 0 is missing: the first one has to be asked for before the loop."
    if len(got) > len(set(got)):
        return f"it handed out {got}: some come twice. Wait for the one before asking for the next?"
    if sorted(got) == right:
        return f"they came as {got}: hand them out in order, whichever was read first."
    return f"it handed out {got} instead of {right}."


def _overlap_hint(fact: dict) -> str:
    if fact["same_thread"]:
        return (
            "the reading is done by the thread that also computes, which can do one thing at a time: give it "
            "to another, with `helper.submit(read, i)`."
        )
    return (
        "the next read begins only when the next batch is asked for. A generator stands still at `yield` "
        "while its batch is used: submit the next read before, and call `result()` on it only after."
    )
