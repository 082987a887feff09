"""The command line, called in this process."""

import contextlib
import io
from typing import NamedTuple

import pytest

from workshop_lib import cli


class Ended(NamedTuple):
    """How a command ended. `output` is what it printed to stdout and stderr."""

    exit_code: int
    output: str
    exception: Exception | None = None


def workshop(*arguments, **environment) -> Ended:
    """Call `workshop ARGUMENTS`, with these variables besides those of this process."""
    printed = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        for name, value in environment.items():
            patch.setenv(name, value)
        try:
            return Ended(cli.call(list(map(str, arguments))) or 0, printed.getvalue())
        except SystemExit as ended:
            return Ended(ended.code, printed.getvalue())
        except Exception as error:
            return Ended(1, printed.getvalue(), error)
