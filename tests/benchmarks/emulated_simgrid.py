"""Compare emulated ranks with an independent simulator: SimGrid's SMPI, where it is installed (Debian: libsimgrid-dev).

simgrid_cases.c has the same programs as this file, in C. SimGrid simulates them on the same links, once without and
once with the factors that its authors measured on a cluster of their own: they have long messages take twice as long,
and acknowledgments 5 % of a link that carries messages both ways.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cloudpickle
import numpy as np
from emulation import emulated

from workshop_lib import ranks
from workshop_lib.collectives import ring
from workshop_lib.machine.catalogue import Link, Machine

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import the benchmarks

SOURCE = Path(__file__).with_name("simgrid_cases.c")
NBYTES = 4_000_000
ALPHA_S, BYTES_PER_S = 50e-6, 1e9
INSIDE_ALPHA_S, INSIDE_BYTES_PER_S = 2e-6, 50e9
LATE_S, COMPUTING_S = 50e-3, 1e-3
CASES = {  # by title: the program, the ranks, and the ranks of a node
    "ring": ("ring", 8, 1),
    "tree": ("tree", 8, 1),
    "ring through two nodes": ("ring", 8, 4),
    "ring with a late rank": ("late", 8, 1),
    "overlapping messages": ("overlapping", 4, 1),
}
MODELS = {
    "without factors": ["--cfg=network/model:CM02", "--cfg=network/crosstraffic:0"],
    "with its factors": ["--cfg=network/model:SMPI"],
}


def links(ranks_a_node: int) -> Machine:
    inside = Link(INSIDE_ALPHA_S, 1 / INSIDE_BYTES_PER_S)
    between = Link(ALPHA_S, 1 / BYTES_PER_S)
    return Machine("links", "Links", "", "", ranks_a_node, "ring across nodes", inside, between, "")


def program_s(program: str) -> float:
    """On a rank: its emulated seconds of a program."""
    from mpi4py import MPI

    from workshop_lib.emulation.clock import CLOCK

    comm = MPI.COMM_WORLD
    array = np.zeros(NBYTES, np.uint8)
    began = time.perf_counter()
    if program == "tree":
        tree(comm, array)
    elif program == "overlapping":
        overlapping(comm, array)
    else:
        if program == "late" and comm.rank == comm.size - 1:
            CLOCK.compute(LATE_S)
        ring.allreduce(comm, array)
    return time.perf_counter() - began


def tree(comm, array: np.ndarray) -> None:
    far = comm.size // 2
    while far >= 1:
        if comm.rank % (2 * far) == 0:
            comm.Send(array, comm.rank + far)
        elif comm.rank % (2 * far) == far:
            comm.Recv(array, comm.rank - far)
        far //= 2


def overlapping(comm, array: np.ndarray) -> None:
    """Rank 0 sends the array to rank 1 and a quarter of it to rank 2 at once, and computes meanwhile."""
    from mpi4py import MPI

    from workshop_lib.emulation.clock import CLOCK

    quarter = array[: NBYTES // 4]
    if comm.rank == 0:
        both = [comm.Isend(array, 1), comm.Isend(quarter, 2)]
        CLOCK.compute(COMPUTING_S)
        MPI.Request.Waitall(both)
    elif comm.rank <= 2:
        comm.Recv(array if comm.rank == 1 else quarter, 0)


def platform(size: int, ranks_a_node: int) -> str:
    """SimGrid's description of the links: each rank has one out and one in, both to its node and to other nodes."""
    lines = ["<?xml version='1.0'?>", '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">']
    lines.append('<platform version="4.1"><zone id="world" routing="Full">')
    lines += [f'<host id="rank{rank}" speed="1Gf"/>' for rank in range(size)]
    kinds = {"inside": (INSIDE_ALPHA_S, INSIDE_BYTES_PER_S), "between": (ALPHA_S, BYTES_PER_S)}
    for kind, (alpha_s, bytes_per_s) in kinds.items():
        for rank in range(size):
            for way in ("out", "in"):
                speed = f'bandwidth="{bytes_per_s:.0f}Bps" latency="{alpha_s / 2:.9f}s"'
                lines.append(f'<link id="{kind}-{way}{rank}" {speed}/>')
    for source in range(size):
        for target in range(size):
            if source != target:
                kind = "inside" if source // ranks_a_node == target // ranks_a_node else "between"
                links = f'<link_ctn id="{kind}-out{source}"/><link_ctn id="{kind}-in{target}"/>'
                route = f'src="rank{source}" dst="rank{target}" symmetrical="NO"'
                lines.append(f"<route {route}>{links}</route>")
    return "\n".join([*lines, "</zone></platform>"])


def simulated_s(program: str, size: int, ranks_a_node: int, model: list[str]) -> list[float]:
    """Each rank's seconds of a program in SimGrid."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "platform.xml").write_text(platform(size, ranks_a_node))
        (place / "hosts").write_text("".join(f"rank{rank}\n" for rank in range(size)))
        subprocess.run(["smpicc", "-O1", "-o", place / "cases", SOURCE], check=True, timeout=60, capture_output=True)
        files = ["-platform", place / "platform.xml", "-hostfile", place / "hosts"]
        settings = ["--cfg=smpi/simulate-computation:no", *model]
        command = ["smpirun", "-np", str(size), *files, *settings, place / "cases", program]
        ran = subprocess.run(command, check=True, timeout=60, stdout=subprocess.PIPE, text=True)
    return [float(line) for line in ran.stdout.split()]


def proof(report) -> None:
    if not (shutil.which("smpicc") and shutil.which("smpirun")):
        print(
            "SimGrid isn't installed (Debian: apt-get install libsimgrid-dev), so the comparison with it is left out."
        )
        return
    errors, rows = [], []
    for title, (program, size, ranks_a_node) in CASES.items():
        team = ranks.start(size)
        found = max(emulated(team, links(ranks_a_node), program_s, program))
        plain, factors = (max(simulated_s(program, size, ranks_a_node, model)) for model in MODELS.values())
        errors.append(found / plain - 1)
        milliseconds = [f"{1e3 * seconds:.3f}" for seconds in (found, plain, factors)]
        rows.append([title, *milliseconds, f"{errors[-1]:+.1%}"])
    report("emulated / simulated by SimGrid - 1, worst", "explained", [max(errors, key=abs)], rows=rows)
