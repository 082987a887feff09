"""A pre-flight check of ranks that run already, as 10_compute_nodes and `workshop preflight` make it."""

from pathlib import Path

from workshop_lib.findings import show
from workshop_lib.preflight.checks import check
from workshop_lib.preflight.reports import PreflightReport
from workshop_lib.ranks.launch.cluster import Ranks

TIMEOUT_S = 300.0


def report_of(team: Ranks, folder: Path, device: str = "auto") -> PreflightReport:
    """Have all ranks measure, and return their report. Checkpoints are tried in `folder`."""
    return team.run(_measure, str(folder.absolute()), device, timeout=TIMEOUT_S, show=False)[0]


def _measure(folder: str, device: str) -> PreflightReport:
    from workshop_lib.preflight.measure import measure  # imports PyTorch, on the ranks only

    return measure(folder, device)


def look_at(team: Ranks, folder: Path) -> None:
    """Show what a pre-flight check says about these ranks."""
    show(check(report_of(team, folder)))
