"""Run a plain script as one of many ranks that don't exist, or on a few real ones, and report what a step takes.

12_thousand_ranks does both, and compares the reports. The script runs in its own process, so that it can be killed, and
so that its changes to PyTorch end with it.
"""

import json
import math
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from workshop_lib.dryrun.step_report import Report
from workshop_lib.errors import InputError
from workshop_lib.forecast.forecast import mesh_shape
from workshop_lib.machine.catalogue import emulated_machine
from workshop_lib.ranks.launch import processes, scripts

MOST_RANKS = 65_536
LIMIT_S = 300.0
METER = "workshop_lib.dryrun.meter"
# The ranks of one host need no name service. The number of ranks comes next.
TORCHRUN = ["torchrun", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node"]
ROOM_BYTES = 2 * 2**30  # a script that fails on fake tensors is tried with real ones up to this peak


def dry_run(
    script,
    *options,
    world_size: int,
    mesh: str = "",
    rank: int = 0,
    timeout_s: float = LIMIT_S,
    machine: str | None = None,
) -> Report:
    """Run `script` with these options as rank `rank` of `world_size` pretended ranks, and report its second step.

    mesh: such as "64x16"; passed on to the script as its option --mesh. machine: a machine of the table; the report
    then has the time that the step takes there, with collectives overlapped as the script overlaps them. If the script
    can do without the values of tensors, they have none, so a model may be larger than this machine's memory. Raises
    InputError if the script is missing, raises, or takes longer than `timeout_s` seconds, if there is no such rank or
    machine, and if the mesh and the world have different sizes.
    """
    started = time.monotonic()
    if machine is not None:
        emulated_machine(machine)
    [report] = _dry_runs(script, options, [(world_size, mesh, rank)], timeout_s, machine)
    report.seconds = time.monotonic() - started
    return report


def dry_runs(script, *options, meshes: Sequence[str]) -> dict[str, Report]:
    """The reports of `dry_run` by mesh, from one process, which is quicker. Each report has its own run's `seconds`."""
    worlds = [(math.prod(mesh_shape(mesh)), mesh, 0) for mesh in meshes]
    return dict(zip(meshes, _dry_runs(script, options, worlds, LIMIT_S), strict=True))


def meshes(
    script, *options, world_size: int, machine: str, memory_bytes: float, timeout_s: float = LIMIT_S
) -> list[tuple[str, Report | str]]:
    """The meshes NxT of this world, each with the report of its dry run, or with a sentence that says why it has none.

    T, the ranks that share a layer, is a power of two. The meshes whose peak fits into `memory_bytes` come first, the
    fastest of them at the top; the script refuses those at the end. It gets each mesh as its option --mesh, and
    `timeout_s` seconds for it.
    """
    found: list[tuple[str, Report | str]] = []
    same: dict[str, Any] = {"world_size": world_size, "timeout_s": timeout_s, "machine": machine}
    for tensor in (1, 2, 4, 8, 16, 32):
        if world_size % tensor:
            break
        mesh = f"{world_size // tensor}x{tensor}"
        try:
            found.append((mesh, dry_run(script, *options, mesh=mesh, **same)))
        except InputError as error:
            found.append((mesh, str(error)))

    def place(each: tuple[str, Report | str]) -> tuple:
        report = each[1]
        return (2, 0) if isinstance(report, str) else (report.peak_bytes > memory_bytes, report.step_s)

    return sorted(found, key=place)


def _dry_runs(
    script, options: Sequence, worlds: list[tuple[int, str, int]], timeout_s: float, machine: str | None = None
) -> list[Report]:
    words = [checked(script, options, *world) for world in worlds][0]
    pretended = [f"--pretend={rank}/{size}{f'@{mesh}' if mesh else ''}" for size, mesh, rank in worlds]
    reason = ""
    for fake in (["--fake"], []):
        with tempfile.TemporaryDirectory() as folder:
            on = [f"--machine={machine}"] if machine else []
            command = [sys.executable, "-m", METER, "--out", folder, *pretended, *fake, *on, str(script), *words]
            output = run_to_end(command, timeout_s, script, reason)
            made = sorted(Path(folder).glob("*.json"), key=lambda path: int(path.stem))
            last = read_result(made[-1] if made else Path(folder) / "0.json", script, output)
            if "error" not in last:
                return [replace(Report.read(path), fallback_reason=reason) for path in made]
            if not last.get("raised") or last["peak_bytes"] > ROOM_BYTES:
                break
            reason = reason or last["error"]
    raise InputError(f"{script} could not be run dry: {last['error']}{_before(reason)}")


def real_run(script, *options, ranks: int) -> list[Report]:
    """Run `script` on real ranks on this machine with torchrun, and report its second step: one Report per rank.

    Raises InputError if the script is missing, fails on a rank, or takes longer than LIMIT_S seconds.
    """
    words = checked(script, options, ranks, "", 0)
    with tempfile.TemporaryDirectory() as folder:
        command = [*TORCHRUN, str(ranks), "-m", METER, "--out", folder, str(script), *words]
        output = run_to_end(command, LIMIT_S, script)
        for rank in range(ranks):
            result = read_result(Path(folder) / f"{rank}.json", script, output)
            if "error" in result:
                raise InputError(f"{script} failed on rank {rank}: {result['error']}")
        return [Report.read(Path(folder) / f"{rank}.json") for rank in range(ranks)]


def checked(script, options, world_size: int, mesh: str, rank: int) -> list[str]:
    """The script's options as text. Raises InputError for a missing script, or a world, rank or mesh out of range."""
    words = list(map(str, options))
    if not Path(script).is_file():
        raise InputError(f"there is no script {str(script)!r}: give the path of a Python file.")
    if not 1 <= world_size <= MOST_RANKS:
        raise InputError(f"a world of {world_size} ranks: give 1 to {MOST_RANKS:,}.")
    if not 0 <= rank < world_size:
        raise InputError(f"rank {rank} of {world_size}: give a rank from 0 to {world_size - 1}.")
    if mesh and (filled := math.prod(mesh_shape(mesh))) != world_size:
        raise InputError(f"a mesh of {mesh} has {filled:,} ranks, and the world has {world_size:,}: make them equal.")
    return words


def _before(reason: str) -> str:
    """Why tensors without values were not enough, for the end of a message; empty if they were."""
    return f" (It ran with real tensors, because without values it fails: {reason})" if reason else ""


def run_to_end(command: list[str], timeout_s: float, script, reason: str = "") -> str:
    """Run the command and return its output. All its processes are killed if it takes too long or this process ends."""
    set_id = processes.new_set_id()
    timer = threading.Timer(timeout_s, processes.end, [set_id])
    with scripts.started(command, set_id) as process:
        ends_s = time.monotonic() + timeout_s
        timer.start()
        try:
            output = process.stdout.read()
        finally:
            timer.cancel()
    if time.monotonic() > ends_s:
        raise InputError(
            f"{script} had not taken two steps after {timeout_s:g} s, so it was ended: does it end at all?"
            f"{_before(reason)}"
        )
    return output


def read_result(place: Path, script, output: str) -> dict:
    if not place.exists():
        last = (output.strip().splitlines() or ["nothing"])[-1]
        raise InputError(f"{script} ended without a result. The last that it printed: {last}")
    return json.loads(place.read_text(encoding="utf-8"))
