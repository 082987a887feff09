"""`workshop faults` and `workshop dryrun`: a script that loses ranks in the dojo, or that runs on one of many ranks."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from workshop_lib.errors import InputError
from workshop_lib.ranks import dry_run as dry
from workshop_lib.scaling import mesh_report
from workshop_lib.training.step_report import ranks_of

# What isn't an option of ours belongs to the script; after `faults`, all that follows its first word.
AFTER_FAULTS = {"allow_interspersed_args": False, "ignore_unknown_options": True}
AFTER_DRYRUN = {"allow_extra_args": True, "ignore_unknown_options": True}


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
    from workshop_lib.ranks import dojo  # and with it ipyparallel

    print(dojo.score(command, every, seed, kinds.split(","), timeout))


def dryrun(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="A plain training script that torchrun could start.")],
    world_size: Annotated[int | None, typer.Option(help="Ranks in all; those of the mesh if not given.")] = None,
    mesh: Annotated[str, typer.Option(help="Such as 64x16; handed on to the script as --mesh.")] = "",
    rank: Annotated[int, typer.Option(help="Which rank to be.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds after which the script is ended.")] = 300.0,
) -> None:
    """Run a training script on one of many pretended ranks, and print what a step takes.

    Options that aren't listed below go to the script.
    """
    if world_size is None:
        if not mesh:
            raise InputError("how many ranks? Give --world-size, or --mesh, or both.")
        world_size = ranks_of(mesh)
    report = dry.dry_run(script, *context.args, world_size=world_size, mesh=mesh, rank=rank, timeout_s=timeout)
    print(f"{script}, rank {report.rank} of {report.world_size:,}{f', mesh {mesh}' * bool(mesh)}: the second step\n")
    for rows in (mesh_report.shards(report), mesh_report.memory(report), mesh_report.collectives(report)):
        if rows:
            Console().print(_table(rows))
    print(f"\n{report.flops / 1e9:,.3f} Gflop. {mesh_report.cost(report)}")


def _table(rows: list[dict[str, str]]) -> Table:
    table = Table()
    for at, name in enumerate(rows[0]):
        table.add_column(name, justify="right" if at else "left")
    for row in rows:
        table.add_row(*row.values())
    return table
