"""A run's findings as text, or as an object for JSON."""

import textwrap
from typing import Any

from workshop_lib.examine.findings import SECTIONS, ScriptFinding, worst

WIDTH = 100
MARGIN = " " * 7


def as_text(findings: list[ScriptFinding]) -> str:
    """The findings, one paragraph for each that needs attention and one line for each that doesn't."""
    parts = [_paragraph(finding) for finding in findings if finding.level != "ok"]
    parts += ["\n".join(_line("ok", f"{each.check}: {each.seen}") for each in findings if each.level == "ok")]
    counts = {level: sum(each.level == level for each in findings) for level in ("wrong", "look", "ok")}
    parts.append(f"{counts['wrong']} wrong, {counts['look']} to look at, {counts['ok']} ok")
    return "\n\n".join(part for part in parts if part)


def as_json(findings: list[ScriptFinding], ranks: int) -> dict[str, Any]:
    return {"ranks": ranks, "worst": worst(findings), "findings": [each.as_json() for each in findings]}


def _paragraph(finding: ScriptFinding) -> str:
    seen, *more = finding.seen.splitlines()
    lines = [_line(finding.level, f"{finding.check}: {seen}"), *(f"{MARGIN}  {line.strip()}" for line in more)]
    if finding.why:
        lines.append(_line("", f"why: {finding.why}"))
    if finding.change:
        lines.append(_line("", f"change: {finding.change}"))
    if finding.section:
        notebook, heading = SECTIONS[finding.section]
        lines.append(_line("", f"more: {notebook}, “{heading}”"))
    return "\n".join(lines)


def _line(level: str, text: str) -> str:
    return textwrap.fill(f"{level:<6} {text}", WIDTH, subsequent_indent=MARGIN, break_on_hyphens=False)
