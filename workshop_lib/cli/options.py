"""Command-line options made from the fields of TrainOptions, and options that several commands share."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated

import typer

from workshop_lib.errors import InputError
from workshop_lib.training.options import TrainOptions

Threads = Annotated[int, typer.Option(help="Threads per rank.")]
Bind = Annotated[str, typer.Option(help="Bind ranks to cores: none or core.")]
Timeout = Annotated[float, typer.Option(help="Seconds after which ranks that hang are ended.")]


def takes_train_options(*without: str) -> Callable:
    """Give a command an option for each field of TrainOptions, except for `without`.

    The command gets their values as one dict, in its first parameter, `chosen`, followed by its own parameters. The
    decorated function's signature lists every option as a parameter, because Typer reads signatures.
    """
    generated = [_parameter(field) for field in fields(TrainOptions) if field.name not in without]

    def decorate(command: Callable) -> Callable:
        def called(**values):
            return command({each.name: values.pop(each.name) for each in generated}, **values)

        _, *own = inspect.signature(command).parameters.values()
        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in [*own, *generated]]
        called.__name__ = command.__name__
        called.__doc__ = command.__doc__
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        return called

    return decorate


def _parameter(field) -> inspect.Parameter:
    rule = field.metadata["rule"]
    name = field.name
    choices = f": {', '.join(map(str, rule.choices))}" if rule.choices else ""
    # A flag that is off by default gets no --no-... form.
    flags = [f"--{name.replace('_', '-')}"] if field.type is bool and not field.default else []
    annotation = Annotated[field.type, typer.Option(*flags, help=f"{rule.help}{choices}.")]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=annotation)


def whole_numbers(option: str, text: str, at_least: int = 1) -> list[int]:
    """The numbers in a text such as "1,2,4". Raises InputError, naming the option."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [at_least - 1]
    if min(numbers) < at_least:
        raise InputError(f"{option} {text!r}: give whole numbers of at least {at_least}, as in 1,2.")
    return numbers
