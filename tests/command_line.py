"""The command line, called in this process."""

from typer.testing import CliRunner

from workshop_lib import cli


def workshop(*arguments, **environment):
    """What `workshop ARGUMENTS` printed, and its exit code; with these variables besides those of this process."""
    return CliRunner().invoke(cli.app, list(map(str, arguments)), env=environment)
