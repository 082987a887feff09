"""The command line, called in this process."""

from typer.testing import CliRunner

from workshop_lib import cli


def workshop(*arguments):
    """What `workshop ARGUMENTS` printed, and its exit code."""
    return CliRunner().invoke(cli.app, list(map(str, arguments)))
