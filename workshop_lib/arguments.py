"""How the commands read what was typed.

Each command has a function that declares its arguments on a Parser, with argparse's `add_argument`.
"""

import argparse
import inspect
import sys
import typing
from collections.abc import Callable

from workshop_lib.errors import InputError

WRONG_USAGE = 2  # exit code
BIND = "none"  # how a command binds ranks to cores, unless something else was typed


class Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults, but not those that say nothing."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=30)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False or action.default in ("", []):
            return action.help
        return super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """A parser that answers a mistake in one sentence."""

    wrong_usage = WRONG_USAGE

    def __init__(self, **named):
        super().__init__(formatter_class=Help, allow_abbrev=False, **named)

    def runs(self, command: Callable[..., int | None]) -> None:
        """Have this command called with all arguments by name, and returning the exit code. Its docstring is the help.

        A command that has an argument `rest` gets what the parser doesn't know as a list.
        """
        self.description = inspect.getdoc(command)
        self.set_defaults(command_to_run=command)

    def call(self, typed: list[str]) -> int | None:
        """Call the command with what was typed after its name."""
        known, rest = self.parse_known_args(typed)
        values = vars(known)
        if "rest" in values:
            values["rest"] = rest
        elif rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        command = values.pop("command_to_run")
        return command(**values)

    def error(self, message: str) -> typing.NoReturn:
        print(f"workshop: {message} (see {self.prog} --help)", file=sys.stderr, flush=True)
        raise SystemExit(self.wrong_usage)


def first_paragraph(text: str | None) -> str:
    """Return the first paragraph of a docstring or of a description."""
    return (text or "").partition("\n\n")[0]


def whole_numbers(option: str, text: str, at_least: int = 1) -> list[int]:
    """The numbers in a text such as "1,2,4". Raises InputError, naming the option."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [at_least - 1]
    if min(numbers) < at_least:
        raise InputError(f"{option} {text!r}: give whole numbers of at least {at_least}, as in 1,2.")
    return numbers
