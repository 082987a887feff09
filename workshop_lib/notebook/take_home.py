"""Shows the take-home scripts (notebooks/scripts) in a notebook, as the changes from one script to the next, and starts
them."""

import difflib
import html
import re
import shutil

from workshop_lib.notebook import profile
from workshop_lib.paths import BUILD, MNIST, SCRIPTS
from workshop_lib.ranks.launch import scripts

CONTEXT = 2  # unchanged lines around each change
BACKGROUNDS = {"+": "rgba(0, 158, 115, 0.25)", "-": "rgba(213, 94, 0, 0.25)"}  # green and red on light and on dark


class MarkedLines:
    """Lines that begin with "+", "-" or a space, shown with a green, a red or no background."""

    def __init__(self, lines: list[str]):
        self.lines = lines

    @property
    def changes(self) -> list[str]:
        """The lines that begin with "+" or "-", without the two that name the scripts."""
        return [line for line in self.lines if line[:1] in BACKGROUNDS and line[:3] not in ("---", "+++")]

    def __repr__(self) -> str:
        return "\n".join(self.lines)

    def _repr_html_(self) -> str:
        return f'<pre style="line-height: 1.35">{"".join(map(_row, self.lines))}</pre>'


def _row(line: str) -> str:
    background = BACKGROUNDS.get(line[:1], "transparent")
    return f'<span style="display: block; background: {background}">{html.escape(line) or " "}</span>'


def diff(before: str, after: str) -> MarkedLines:
    """The lines that differ between two scripts, given by file name, with a few unchanged lines around them."""
    old, new = ((SCRIPTS / name).read_text(encoding="utf-8").splitlines() for name in (before, after))
    changed = difflib.unified_diff(old, new, before, after, lineterm="", n=CONTEXT)
    return MarkedLines(["⋯" if line.startswith("@@") else line for line in changed])


def marked(script: str, pattern: str, context: int | None = None) -> MarkedLines:
    """The script with this file name; lines in which the regular expression `pattern` is found are marked as added.

    context: show only this many lines around each marked line, instead of the whole script.
    """
    lines = (SCRIPTS / script).read_text(encoding="utf-8").splitlines()
    found = [at for at, line in enumerate(lines) if re.search(pattern, line)]
    shown = []
    last = -1
    for at, line in enumerate(lines):
        if context is not None and not any(abs(at - each) <= context for each in found):
            continue
        if at > last + 1:
            shown.append("⋯")
        shown.append(f"{'+' if at in found else ' '} {line}")
        last = at
    return MarkedLines(shown)


def train(script: str) -> None:
    """Train one epoch with a script that `torchrun` starts, with a process for each rank on this host."""
    sizes = profile.current()
    out = BUILD / "scripts" / script.removesuffix(".py")
    shutil.rmtree(out.parent, ignore_errors=True)  # a script that finds its last checkpoint there would go on from it
    out.parent.mkdir(parents=True)
    launch = ["torchrun", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", sizes.ranks_here]
    options = ["--data", MNIST, "--images", sizes.sweep_samples or 60_000, "--epochs", 1, "--out", out]
    scripts.run(*launch, SCRIPTS / script, *options, timeout_s=sizes.timeout_s)
