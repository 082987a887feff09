"""The command `workshop faults`: the fault injection of 13_when_training_breaks in a terminal."""

from typing import Annotated

import typer

app = typer.Typer()  # cli/commands.py adds its commands to `workshop`
# Everything that follows the command's first word is passed on to it, options included.
AFTER_FAULTS = {"allow_interspersed_args": False, "ignore_unknown_options": True}


@app.command(context_settings=AFTER_FAULTS)
def faults(
    command: Annotated[list[str], typer.Argument(help="A script, or any command, and its own options.")],
    every: Annotated[int, typer.Option(help="Steps from one fault to the next, on average.")] = 20,
    seed: Annotated[int, typer.Option(help="Of the steps, ranks and kinds of the faults.")] = 1,
    kinds: Annotated[str, typer.Option(help="Which faults, separated by commas.")] = "kill,crash,raise,stop",
    timeout: Annotated[float, typer.Option(help="Seconds after which each of the two trainings is ended.")] = 300.0,
) -> None:
    """Train without faults and then with them, and compare the useful steps per second and the final weights.

    The training runs in an empty folder. It must print 'step N' after each step, and each rank must print 'rank R has
    weights DIGEST' at the end.
    """
    from workshop_lib.lessons.when_training_breaks import fault_injection  # it imports ipyparallel

    wanted = [kind.strip() for kind in kinds.split(",")]
    print(fault_injection.score(command, every, seed, wanted, timeout))
