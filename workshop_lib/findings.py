"""The findings of `doctor`, `preflight` and `examine`, as text and as data."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

# From best to worst. "wrong": a correct script would not do what was seen. "look": somebody who knows the script has to
# decide. Each check says its own level; book/examine.md says the same to a reader.
LEVELS = ("ok", "look", "wrong")
# The exit codes of `preflight` and `examine`, by the worst level. The doctor exits with 1 if anything is wrong.
EXIT_CODES = {"ok": 0, "look": 2, "wrong": 3}
COLORS = {"ok": "green", "look": "yellow", "wrong": "red"}
WIDTH = 100
MARGIN = " " * 7
Sections = Mapping[str, tuple[str, str]]  # a notebook and a heading in it, by a short name


@dataclass(frozen=True)
class Finding:
    """The result of one check. why, remedy and section are empty where there is nothing to change."""

    level: str  # one of LEVELS
    check: str
    seen: str
    why: str = ""
    remedy: str = ""
    section: str = ""  # the short name of the section that explains it
    ranks: tuple[int, ...] = ()
    step: int | None = None


def worst(findings: Sequence[Finding]) -> str:
    return max((finding.level for finding in findings), key=LEVELS.index, default="ok")


def paragraphs(findings: Sequence[Finding], sections: Sections | None = None) -> str:
    """The findings as text: a paragraph for each that needs attention, then one line for each that does not."""
    parts = [_paragraph(finding, sections or {}) for finding in findings if finding.level != "ok"]
    parts.append("\n".join(_line("ok", f"{each.check}: {each.seen}") for each in findings if each.level == "ok"))
    return "\n\n".join(part for part in parts if part)


def as_text(findings: Sequence[Finding], sections: Sections | None = None) -> str:
    """The findings as text, and how many there are of each level."""
    counts = {level: sum(each.level == level for each in findings) for level in LEVELS}
    last = f"{counts['wrong']} wrong, {counts['look']} to look at, {counts['ok']} ok"
    return f"{paragraphs(findings, sections)}\n\n{last}"


def show(findings: Sequence[Finding], sections: Sections | None = None) -> None:
    """Print the findings, with the levels in color."""
    text = Text(as_text(findings, sections))
    for level, color in COLORS.items():
        text.highlight_regex(rf"(?m)^{level}\b", color)
    Console(soft_wrap=True).print(text)


def as_data(findings: Sequence[Finding], sections: Sections | None = None) -> list[dict[str, Any]]:
    """The findings for JSON, each with the notebook and the heading of its section."""
    rows = []
    for finding in findings:
        notebook, heading = (sections or {}).get(finding.section, ("", ""))
        section = {"notebook": notebook, "heading": heading} if notebook else None
        rows.append(asdict(finding) | {"section": section})
    return rows


def _paragraph(finding: Finding, sections: Sections) -> str:
    seen, *more = finding.seen.splitlines()
    lines = [_line(finding.level, f"{finding.check}: {seen}"), *(f"{MARGIN}  {line.strip()}" for line in more)]
    if finding.why:
        lines.append(_line("", f"why: {finding.why}"))
    if finding.remedy:
        lines.append(f"{MARGIN}→ {finding.remedy}")  # not wrapped, because it may be a command to copy
    if finding.section:
        notebook, heading = sections[finding.section]
        lines.append(_line("", f"more: {notebook}, “{heading}”"))
    return "\n".join(lines)


def _line(level: str, text: str) -> str:
    return textwrap.fill(
        f"{level:<6} {text}", WIDTH, subsequent_indent=MARGIN, break_on_hyphens=False, break_long_words=False
    )
