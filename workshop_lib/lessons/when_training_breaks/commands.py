"""`workshop faults`: a script that loses ranks, over and over."""

from typing import Annotated

import typer

app = typer.Typer()  # cli.commands offers its commands
# What isn't an option of ours belongs to the script; here, all that follows its first word.
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

    The training runs in an empty folder. It prints 'step N' after each step, and each rank prints 'rank R has weights
    DIGEST' at the end.
    """
    from workshop_lib.lessons.when_training_breaks import fault_injection  # and with it ipyparallel

    print(fault_injection.score(command, every, seed, kinds.split(","), timeout))
