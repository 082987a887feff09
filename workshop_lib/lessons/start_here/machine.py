"""Shows in 00_start_here what the doctor found: one line if this machine is ready, with the details folded up."""

import html
from dataclasses import dataclass

from workshop_lib.cli import doctor
from workshop_lib.words import plural


@dataclass(frozen=True)
class Examination:
    """What the doctor found. It shows warnings and failures with their remedies, and folds up what is fine."""

    findings: list[doctor.Finding]

    @property
    def headline(self) -> str:
        statuses = [finding.status for finding in self.findings]
        if "fail" in statuses:
            return "Something is missing: follow the arrows below the lines that begin with 'fail'."
        warnings = statuses.count("warn")
        return "Ready." if not warnings else f"Ready, with {plural(warnings, 'warning')}."

    def _lines(self, fine: bool) -> list[str]:
        chosen = [finding for finding in self.findings if (finding.status == "ok") == fine]
        return [
            f"{each.status:4}  {each.name}: {each.found}" + (f"\n      → {each.remedy}" if each.remedy else "")
            for each in chosen
        ]

    def __repr__(self) -> str:
        return "\n".join([self.headline, *self._lines(fine=False)])

    def _repr_html_(self) -> str:
        fine = self._lines(fine=True)
        folded = "\n".join(html.escape(line) for line in fine)
        summary = f"{plural(len(fine), 'check')} passed"
        details = f"<details><summary>{summary}</summary><pre>{folded}</pre></details>"
        return f"<pre>{html.escape(repr(self))}</pre>{details}"


def examined() -> Examination:
    """Examine this machine. Takes a few seconds."""
    return Examination(doctor.examine())
