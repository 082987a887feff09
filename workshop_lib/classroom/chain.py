"""A chain of JSON lines: each line has a digest of each of its fields, and the digest of the line before it.

This reveals every line that was changed, removed, added or moved. It proves that the lines belong together, but not
who wrote them: somebody who rewrites all of them can make them consistent again.
"""

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

OWN = ("digests", "sha256")  # fields that have no digest of their own
FIRST = ""  # stands for the digest of a line before the first one


def digest(value: Any) -> str:
    """The SHA-256 of a value, as JSON with its keys in order."""
    try:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:  # nested deeper than any line that this module writes
        return ""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def chained(rows: Iterable[dict]) -> Iterator[dict]:
    """Each row with its line's number, the digest of the line before it, and its own digests."""
    previous = FIRST
    for number, row in enumerate(rows, 1):
        line = {"line": number, **row, "previous": previous}
        digests = {field: digest(value) for field, value in line.items()}
        previous = digest(digests)
        yield line | {"digests": digests, "sha256": previous}


def read(text: str) -> tuple[list[dict], list[str]]:
    """The lines that can be read, and a sentence on each line that cannot."""
    lines = []
    problems = []
    for number, row in enumerate(text.splitlines(), 1):
        try:
            line = json.loads(row)
        except (ValueError, RecursionError):
            line = None
        if isinstance(line, dict):
            lines.append(line)
        else:
            problems.append(f"line {number} of the file is no JSON object: it was damaged.")
    return lines, problems


def problems(lines: list[dict], names: list[str]) -> Iterator[str]:
    """A sentence on everything that was changed. `names` says what each line should be about."""
    for line in lines:
        for field in _changed(line):
            yield f"{_about(line, names)}: its {field} changed after the record was written."
    numbers = [line.get("line") for line in lines]
    for number, name in enumerate(names, 1):
        if (times := numbers.count(number)) != 1:
            yield f"line {number} ({name}) {'is missing' if not times else f'is there {times} times'}."
    known = [number for number in numbers if isinstance(number, int)]
    for before, after in itertools.pairwise(known):
        if after < before:
            yield f"line {after} stands below line {before}: lines were moved."
    if known == list(range(1, len(names) + 1)):
        for above, line in itertools.pairwise([{"sha256": FIRST}, *lines]):
            if line.get("previous") != above.get("sha256"):
                yield f"{_about(line, names)} doesn't follow the line above it: one of them is from another record."


def _changed(line: dict) -> list[str]:
    """The names of the fields that do not match their digests."""
    kept = line.get("digests")
    if not isinstance(kept, dict):
        return ["digests"]
    fields = {field: value for field, value in line.items() if field not in OWN}
    changed = [field for field in {**fields, **kept} if field not in fields or kept.get(field) != digest(fields[field])]
    return changed or (["digests"] if digest(kept) != line.get("sha256") else [])


def _about(line: dict, names: list[str]) -> str:
    number = line.get("line")
    if isinstance(number, int) and 0 < number <= len(names):
        return f"line {number} ({names[number - 1]})"
    return f"line {number!r}"
