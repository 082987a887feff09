"""The table of findings, and how a check makes one of them."""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from workshop_lib.findings import Finding

TABLE: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("findings.toml").read_text())


def found(name: str, seen: str, ranks: Sequence[int] = (), step: int | None = None, **words: object) -> Finding:
    """The finding of this name in the table. words: what stands in braces in its reason and its remedy."""
    row = TABLE[name]
    why = row.get("why", "").format(**words)
    remedy = row.get("remedy", "").format(**words)
    return Finding(row["level"], row["check"], seen, why, remedy, row.get("section", ""), tuple(ranks), step)


def ok(check: str, seen: str) -> Finding:
    """What a check saw that found no fault."""
    return Finding("ok", check, seen)
