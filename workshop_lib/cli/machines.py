"""`workshop machines`: the machines that ranks can emulate."""

from rich.console import Console

from workshop_lib.arguments import Parser
from workshop_lib.machine import catalogue
from workshop_lib.notebook.results.tables import rich_table


def machines_arguments(parser: Parser) -> None:
    parser.runs(machines)


def machines() -> None:
    """List the machines that ranks can emulate, with their devices and links."""
    table = rich_table("name", "devices\na node", "inside a node", "between nodes", "machine")
    for name, each in catalogue.emulated_machines().items():
        links = [
            f"{link.latency_s * 1e6:g} µs, {1 / link.s_per_byte / 1e9:,.3g} GB/s"
            for link in (each.inside, each.between)
        ]
        if each.devices_a_node == 1:
            links[0] = "–"
        table.add_row(name, str(each.devices_a_node), *links, each.title)
    Console().print(table)
    print("Use one as in: workshop train --ranks 8 --machine a100-ethernet --stands-for resnet-50")
    print("For a machine of your own, give a TOML file, as in: --machine mycluster.toml (book/emulated.md shows one)")
