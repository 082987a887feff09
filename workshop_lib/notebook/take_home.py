"""Shows the take-home scripts (notebooks/scripts) in a notebook, as the changes from one script to the next, and starts
them."""

import difflib
import re

from IPython.display import Markdown

from workshop_lib.notebook import profile
from workshop_lib.paths import BUILD, MNIST, SCRIPTS
from workshop_lib.ranks import scripts


def diff(before: str, after: str) -> Markdown:
    """The lines that differ between two scripts, given by file name, without the unchanged lines around them."""
    old, new = ((SCRIPTS / name).read_text(encoding="utf-8").splitlines() for name in (before, after))
    lines = difflib.unified_diff(old, new, before, after, lineterm="", n=0)
    return Markdown("\n".join(["```diff", *(line for line in lines if not line.startswith("@@")), "```"]))


def marked(script: str, pattern: str) -> Markdown:
    """The script with this file name; lines in which the regular expression `pattern` is found are marked as added."""
    lines = (SCRIPTS / script).read_text(encoding="utf-8").splitlines()
    shown = [f"{'+' if re.search(pattern, line) else ' '} {line}" for line in lines]
    return Markdown("\n".join(["```diff", *shown, "```"]))


def train(script: str) -> None:
    """Train one epoch with a script that `torchrun` starts, on as many processes as the notebook has ranks."""
    sizes = profile.current()
    out = BUILD / "scripts" / script.removesuffix(".py")
    out.parent.mkdir(parents=True, exist_ok=True)
    launch = ["torchrun", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", sizes.ranks]
    options = ["--data", MNIST, "--images", sizes.sweep_samples or 60_000, "--epochs", 1, "--out", out]
    scripts.run(*launch, SCRIPTS / script, *options, timeout_s=sizes.timeout_s)
