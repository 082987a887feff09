"""The plain scripts to take home (notebooks/scripts), shown in a notebook as what changes from one to the next."""

import difflib

from IPython.display import Markdown

from workshop_lib.paths import SCRIPTS


def diff(before: str, after: str) -> Markdown:
    """The lines that change from one script to another, by file name, without those around them."""
    old, new = ((SCRIPTS / name).read_text(encoding="utf-8").splitlines() for name in (before, after))
    lines = difflib.unified_diff(old, new, before, after, lineterm="", n=0)
    return Markdown("\n".join(["```diff", *(line for line in lines if not line.startswith("@@")), "```"]))
