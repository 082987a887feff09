"""How the commands read what was typed, and the options that several of them share.

Each command has a function that declares its arguments on a Parser, with argparse's `add_argument`.
"""

import argparse
import inspect
import typing
from collections.abc import Callable, Collection
from dataclasses import fields

from workshop_lib.cli.terminal import show_error
from workshop_lib.errors import InputError
from workshop_lib.training.options import TrainOptions

WRONG_USAGE = 2  # exit code
METAVARS = {int: "N", float: "X", str: "NAME"}
# How a command starts ranks and waits for them, unless something else was typed.
THREADS = 1
BIND = "none"
TIMEOUT_S = 3600.0


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
        show_error(f"{message} (see {self.prog} --help)")
        raise SystemExit(self.wrong_usage)


def add_train_options(parser: Parser, without: Collection[str] = ()) -> None:
    """Add an option for each field of TrainOptions, except for `without`."""
    parser.usage = "%(prog)s [options]"
    group = parser.add_argument_group("options of the training")
    for each in fields(TrainOptions):
        if each.name in without:
            continue
        rule = each.metadata["rule"]
        flag = f"--{each.name.replace('_', '-')}"
        choices = f": {', '.join(map(str, rule.choices))}" if rule.choices else ""
        text = f"{rule.help}{choices}."
        kind, *_ = typing.get_args(each.type) or (each.type,)  # `int | None` gives int and NoneType
        if kind is not bool:
            metavar = METAVARS[kind] if rule.choices or kind is not str else "PATH"
            group.add_argument(flag, type=kind, default=each.default, metavar=metavar, help=text)
        elif each.default is not False:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=each.default, help=text)
        else:
            group.add_argument(flag, action="store_true", help=text)


def add_rank_options(parser: Parser) -> None:
    """Add the options of ranks that a command starts. The command gets those that were typed, and no others."""
    options: list[tuple] = [
        ("threads", int, THREADS, "Threads per rank."),
        ("bind", str, BIND, "Bind ranks to cores: none or core."),
        ("timeout", float, TIMEOUT_S, "End ranks that hang after this many seconds."),
    ]
    for name, kind, default, text in options:
        text = f"{text} (default: {default})"
        parser.add_argument(f"--{name}", type=kind, default=argparse.SUPPRESS, metavar=METAVARS[kind], help=text)


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
