"""The command line: `python -m workshop_lib …`, also installed as `workshop`."""

from workshop_lib.cli.commands import call, main

__all__ = ["call", "main"]
