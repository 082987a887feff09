"""The command line, called in this process."""

from click.testing import Result
from typer.testing import CliRunner

from workshop_lib import cli


def workshop(*arguments) -> Result:
    return CliRunner().invoke(cli.app, list(map(str, arguments)))
