"""The command `workshop dryrun`: 12_thousand_ranks offers it for dry runs in a terminal."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from workshop_lib.errors import InputError
from workshop_lib.lessons.thousand_ranks import dry_run as dry
from workshop_lib.lessons.thousand_ranks import mesh_report
from workshop_lib.lessons.thousand_ranks.step_report import ranks_of

app = typer.Typer()  # cli/commands.py adds its commands to `workshop`
# Options that this command doesn't have are passed on to the script.
AFTER_DRYRUN = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(context_settings=AFTER_DRYRUN)
def dryrun(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="A plain training script that torchrun could start.")],
    world_size: Annotated[int | None, typer.Option(help="Ranks in all; those of the mesh if not given.")] = None,
    mesh: Annotated[str, typer.Option(help="Such as 64x16; handed on to the script as --mesh.")] = "",
    rank: Annotated[int, typer.Option(help="Which rank to be.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds after which the script is ended.")] = 300.0,
) -> None:
    """Run a training script as one of many pretended ranks, and print what a step takes.

    Options that aren't listed below go to the script.
    """
    if world_size is None:
        if not mesh:
            raise InputError("how many ranks? Give --world-size, or --mesh, or both.")
        world_size = ranks_of(mesh)
    report = dry.dry_run(script, *context.args, world_size=world_size, mesh=mesh, rank=rank, timeout_s=timeout)
    of_mesh = f", mesh {mesh}" if mesh else ""
    print(f"{script}, rank {report.rank} of {report.world_size:,}{of_mesh}: the second step\n")
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
