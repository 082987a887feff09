"""A pre-flight check of ranks that run already, as 10_compute_nodes and `workshop preflight` make it."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from workshop_lib.lessons.compute_nodes.preflight.checks import PreflightLine, check
from workshop_lib.lessons.compute_nodes.preflight.reports import PreflightReport
from workshop_lib.ranks.cluster import Ranks

COLORS = {"ok": "green", "look": "yellow", "wrong": "red"}
TIMEOUT_S = 300.0


def report_of(team: Ranks, folder: Path, device: str = "auto") -> PreflightReport:
    """Have all ranks measure, and return their report. Checkpoints are tried in `folder`."""
    return team.run(_measure, str(folder.absolute()), device, timeout=TIMEOUT_S, show=False)[0]


def _measure(folder: str, device: str) -> PreflightReport:
    from workshop_lib.lessons.compute_nodes.preflight.measure import measure  # imports PyTorch, on the ranks only

    return measure(folder, device)


def look_at(team: Ranks, folder: Path) -> None:
    """Show what a pre-flight check says about these ranks."""
    show(check(report_of(team, folder)))


def show(lines: list[PreflightLine]) -> None:
    table = Table("", "", "seen", box=None)
    for line in lines:
        text = line.seen + (f"\n→ {line.remedy}" if line.remedy else "")
        table.add_row(f"[{COLORS[line.level]}]{line.level}[/]", line.check, text)
    Console(soft_wrap=True).print(table)
