"""Shows in 00_start_here what the doctor found: one line if this machine is ready, with the details folded up."""

import html
from dataclasses import dataclass

from workshop_lib.cli import doctor
from workshop_lib.findings import Finding, paragraphs, worst
from workshop_lib.words import plural


@dataclass(frozen=True)
class Examination:
    """What the doctor found. It shows what needs attention with its remedy, and folds up what is fine."""

    findings: list[Finding]

    @property
    def headline(self) -> str:
        if worst(self.findings) == "wrong":
            return "Something is missing: follow the arrows below the lines that begin with 'wrong'."
        to_look_at = sum(finding.level == "look" for finding in self.findings)
        return "Ready." if not to_look_at else f"Ready, with {plural(to_look_at, 'thing')} to look at."

    def __repr__(self) -> str:
        attention = [finding for finding in self.findings if finding.level != "ok"]
        return f"{self.headline}\n{paragraphs(attention)}".rstrip()

    def _repr_html_(self) -> str:
        fine = [finding for finding in self.findings if finding.level == "ok"]
        summary = f"{plural(len(fine), 'check')} passed"
        details = f"<details><summary>{summary}</summary><pre>{html.escape(paragraphs(fine))}</pre></details>"
        return f"<pre>{html.escape(repr(self))}</pre>{details}"


def examined() -> Examination:
    """Examine this machine. Takes a few seconds."""
    return Examination(doctor.examine())
