"""The command line: `python -m workshop_lib …`, also installed as `workshop`."""

from workshop_lib.cli.commands import app, main

__all__ = ["app", "main"]
