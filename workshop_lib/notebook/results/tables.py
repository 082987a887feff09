"""The look that all tables of this library share."""

from rich import box
from rich.table import Table


def rich_table(*headings: str, caption: str | None = None) -> Table:
    """An empty table whose first column is aligned on the left and the others on the right."""
    empty = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, caption=caption, caption_justify="left")
    for number, heading in enumerate(headings):
        empty.add_column(heading, justify="right" if number else "left", no_wrap=not number, overflow="fold")
    return empty
