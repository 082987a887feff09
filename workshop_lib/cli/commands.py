"""All commands, and how one of them is run.

The modules of commands are all imported here, so they import what is slow (PyTorch, pandas, drawing), and what only
some installations have, inside the functions that need it.
"""

import os
import sys
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from workshop_lib.arguments import WRONG_USAGE, Parser, first_paragraph
from workshop_lib.classroom.commands import export_nbgrader_arguments, present_arguments, rehearse_arguments
from workshop_lib.classroom.room import board_arguments, share_arguments
from workshop_lib.cli.doctor import doctor_arguments
from workshop_lib.cli.engines import engines_arguments
from workshop_lib.cli.machines import machines_arguments
from workshop_lib.cli.plot import plot_arguments
from workshop_lib.cli.terminal import INTERRUPTED, replace_closed_streams, show_error
from workshop_lib.cli.train import sweep_arguments, train_arguments
from workshop_lib.dryrun.calibrate import calibrate_arguments
from workshop_lib.dryrun.commands import dryrun_arguments
from workshop_lib.errors import InputError, WorkshopError
from workshop_lib.examine.commands import examine_arguments
from workshop_lib.forecast.commands import predict_arguments
from workshop_lib.machine import packages
from workshop_lib.paths import IS_CHECKOUT
from workshop_lib.preflight.commands import preflight_arguments

HELP = "The workshop's command line: look at this machine, train, measure, draw and forecast."
# The function that declares each command's arguments.
COMMANDS: dict[str, Callable[[Parser], None]] = {
    "doctor": doctor_arguments,
    "train": train_arguments,
    "sweep": sweep_arguments,
    "plot": plot_arguments,
    "engines": engines_arguments,
    "machines": machines_arguments,
    "predict": predict_arguments,
    "dryrun": dryrun_arguments,
    "calibrate": calibrate_arguments,
    "preflight": preflight_arguments,
    "examine": examine_arguments,
    "rehearse": rehearse_arguments,
    "present": present_arguments,
    "export-nbgrader": export_nbgrader_arguments,
    "share": share_arguments,
    "board": board_arguments,
}
OF_A_CLASS = ("rehearse", "present", "export-nbgrader", "share", "board")  # these read the workshop's notebooks


def main() -> None:
    replace_closed_streams()
    sys.exit(call(sys.argv[1:]))


def call(typed: list[str]) -> int | None:
    """Run the command that was typed, and return its exit code. Errors that the user can fix become one sentence."""
    try:
        code = run(typed)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of the output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (WorkshopError, OSError) as error:
        show_error(error)
        return 1
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in packages.EXTRAS:
            raise
        remedy = packages.remedy(packages.EXTRAS[module])
        show_error(f"{typed[0]} needs {module}, which isn't installed here: {remedy}")
        return 1
    except KeyboardInterrupt:
        show_error("interrupted.")
        return INTERRUPTED


def run(typed: list[str]) -> int | None:
    name = typed[0] if typed else ""
    if name in OF_A_CLASS and not IS_CHECKOUT:
        raise InputError(
            f"{name} needs the workshop's notebooks, and only its library is installed here. Run it in a checkout that "
            "was set up with `make setup`."
        )
    if name in COMMANDS:
        return parser_of(name).call(typed[1:])
    if name not in ("", "-h", "--help"):
        show_error(f"there is no command {name!r} (see workshop --help)")
        return WRONG_USAGE
    print(f"usage: workshop COMMAND [options]\n\n{HELP}\n`workshop COMMAND --help` lists a command's options.\n")
    commands = Table(box=None, show_header=False)
    for each in COMMANDS:
        commands.add_row(each, first_paragraph(parser_of(each).description))
    Console(highlight=False).print(commands)
    return 0 if name else WRONG_USAGE


def parser_of(name: str) -> Parser:
    parser = Parser(prog=f"workshop {name}")
    COMMANDS[name](parser)
    return parser
