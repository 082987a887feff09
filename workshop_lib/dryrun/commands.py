"""The command `workshop dryrun`: 12_thousand_ranks offers it for dry runs in a terminal."""

import dataclasses
import json as as_json
import math
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rich.console import Console

from workshop_lib.arguments import Parser
from workshop_lib.errors import InputError
from workshop_lib.machine.catalogue import emulated_machine, label
from workshop_lib.notebook.results.tables import rich_table

if TYPE_CHECKING:
    from workshop_lib.dryrun.dry_run import Report


def dryrun_arguments(parser: Parser) -> None:
    from workshop_lib.dryrun.dry_run import LIMIT_S

    parser.runs(dryrun)
    parser.set_defaults(rest=[])  # options that this command doesn't have are passed on to the script
    parser.add_argument("script", metavar="SCRIPT", help="A plain training script that torchrun could start.")
    parser.add_argument(
        "--world-size", type=int, metavar="N", help="Total number of ranks; by default, as many as the mesh has."
    )
    parser.add_argument("--mesh", default="", help="Shape of the mesh, such as 64x16. The script gets it as --mesh.")
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="The rank to pretend to be.")
    parser.add_argument("--machine", metavar="NAME", help="Also tell a step's time there: see `workshop machines`.")
    parser.add_argument(
        "--find-mesh",
        action="store_true",
        help="Run the script on each mesh of the world, NxT with T up to 32, on the emulated --machine.",
    )
    parser.add_argument(
        "--memory-gb", type=float, default=80.0, metavar="X", help="Memory of a device, for --find-mesh: 80 by default."
    )
    parser.add_argument(
        "--timeout", type=float, default=LIMIT_S, metavar="X", help="End the script after this many seconds."
    )
    parser.add_argument("--json", action="store_true", help="Machine-readable output.")


def dryrun(
    script: str,
    world_size: int | None,
    mesh: str,
    rank: int,
    machine: str | None,
    find_mesh: bool,
    memory_gb: float,
    timeout: float,
    json: bool,
    rest: list[str],
) -> None:
    """Run a training script as one of many pretended ranks, and print what a step takes.

    Options that aren't listed below go to the script.
    """
    from workshop_lib.dryrun.dry_run import dry_run, meshes
    from workshop_lib.forecast.forecast import mesh_shape

    if find_spec("torch") is None:
        raise ModuleNotFoundError(name="torch")
    if find_mesh:
        if world_size is None or machine is None or mesh:
            raise InputError("--find-mesh needs --world-size and --machine, and tries every mesh: leave --mesh out.")
        if json:
            raise InputError("--find-mesh prints a table: leave --json out.")
        found = meshes(
            script, *rest, world_size=world_size, machine=machine, memory_bytes=1e9 * memory_gb, timeout_s=timeout
        )
        _print_meshes(found, memory_gb)
        return
    if world_size is None:
        if not mesh:
            raise InputError("how many ranks? Give --world-size, or --mesh, or both.")
        world_size = math.prod(mesh_shape(mesh))
    report = dry_run(script, *rest, world_size=world_size, mesh=mesh, rank=rank, timeout_s=timeout, machine=machine)
    if json:
        collectives = [dataclasses.asdict(each) | {"sent_bytes": each.sent_bytes} for each in report.collectives]
        print(as_json.dumps(dataclasses.asdict(report) | {"collectives": collectives}, indent=2))
        return
    of_mesh = f", mesh {mesh}" if mesh else ""
    print(f"{script}, rank {report.rank} of {report.world_size:,}{of_mesh}: the second step\n")
    for rows in (report.shard_rows(), report.memory_rows(), report.collective_rows()):
        if rows:
            table = rich_table(*rows[0])
            for row in rows:
                table.add_row(*row.values())
            Console().print(table, "")
    values = "without values" if report.fake_tensors else "with real tensors, whose values mean nothing"
    why = f" Without values, it fails: {report.fallback_reason}" if report.fallback_reason else ""
    took = f"{report.seconds:.1f} s and {report.resident_bytes / 2**20:,.0f} MiB"
    print(f"{report.flops / 1e9:,.3f} Gflop. The dry run took {took}, {values}.{why}")
    if machine is not None:
        peak = max(emulated_machine(machine).peak_flops_per_s.values(), default=0.0)
        share = f", {report.flops / report.step_s / peak:.1%} of a device's peak" if peak else ""
        print(
            f"Emulated on {label(machine)}: a step takes {1e3 * report.step_s:,.4g} ms{share}. Computing takes "
            f"{1e3 * report.compute_s:,.4g} ms, and the wait for collectives the rest."
        )


def _print_meshes(found: list[tuple[str, "Report | str"]], memory_gb: float) -> None:
    table = rich_table("mesh", "step, ms", "peak, GB", "sent by rank 0, GB", "fits")
    for mesh, report in found:
        if isinstance(report, str):
            table.add_row(mesh, "", "", "", f"no: {report}")
            continue
        fits = "yes" if report.peak_bytes <= 1e9 * memory_gb else f"not into {memory_gb:g} GB"
        peak, sent = report.peak_bytes / 1e9, report.sent_bytes() / 1e9
        table.add_row(mesh, f"{1e3 * report.step_s:,.4g}", f"{peak:,.2f}", f"{sent:,.2f}", fits)
    Console().print(table)
