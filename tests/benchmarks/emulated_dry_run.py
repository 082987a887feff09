"""Compare two ways to emulate a script: a dry run as one of many ranks that do not exist, and emulated ranks."""

import contextlib
import runpy
import statistics
import sys
import time
from pathlib import Path
from unittest import mock

import cloudpickle

from workshop_lib import ranks
from workshop_lib.dryrun.dry_run import dry_run
from workshop_lib.paths import SCRIPTS

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import the benchmarks
SCRIPT = Path(__file__).with_name("emulated_script.py")
RANKS = 16
GPT = ("--width", "512", "--heads", "16", "--layers", "4", "--tokens", "64", "--batch", "16")
# The machine, the script, its options, and how many of the steps after the first one count. In a dry run, all ranks are
# alike: where devices are late, it's as late as the slowest rank is on average, so many steps are needed.
CASES = {
    "DDP": ("ethernet-10g", SCRIPT, ("ddp",), 1),
    "FSDP2": ("ethernet-10g", SCRIPT, ("fsdp2",), 1),
    "tensor parallelism": ("ethernet-10g", SCRIPT, ("tensor",), 1),
    "FSDP2 x tensor parallelism": ("ethernet-10g", SCRIPT, ("mesh",), 1),
    "FSDP2, on nodes of four": ("polaris", SCRIPT, ("fsdp2",), 30),
    "DDP, on nodes of four": ("polaris", SCRIPT, ("ddp",), 30),
    "GPT on a mesh of 16x1": ("ethernet-10g", SCRIPTS / "mesh.py", ("--mesh", "16x1", *GPT), 1),
    "GPT on a mesh of 4x4": ("ethernet-10g", SCRIPTS / "mesh.py", ("--mesh", "4x4", *GPT), 1),
}


class EnoughSteps(BaseException):
    """Ends the script. It is no Exception, because a script might catch that."""


def steps_s(script: str, options: list[str], steps: int) -> list[float]:
    """On an emulated rank: run this script until it has taken `steps` steps, and return the seconds of each."""
    import torch
    import torch.distributed as dist
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from workshop_lib.machine import world
    from workshop_lib.machine.emulation.clock import CLOCK
    from workshop_lib.training import rendezvous

    rendezvous.join_process_group(world.detect(), torch.device("cpu"))
    CLOCK.profiled = False  # an earlier script may have had profiles
    ends = [time.perf_counter()]

    def ended(*_) -> None:
        ends.append(time.perf_counter())
        if len(ends) > steps:
            raise EnoughSteps

    hook = register_optimizer_step_post_hook(ended)
    try:
        with (
            mock.patch.object(dist, "init_process_group"),
            mock.patch.object(sys, "argv", [script, *options]),
            contextlib.suppress(EnoughSteps),
        ):
            runpy.run_path(script, run_name="__main__")
    finally:
        hook.remove()
    return [end - begin for begin, end in zip(ends[:-1], ends[1:], strict=True)]


def beside(team, machine: str, script: Path, options: tuple[str, ...], steps: int) -> tuple[float, float]:
    """Seconds of a step on emulated ranks, on average over `steps` steps after the first, and in a dry run."""
    if script == SCRIPT:
        options = (*options, str(steps + 1))
    taken = team.run(steps_s, str(script), list(options), steps + 1, show=False, timeout=300)
    slowest = max(taken, key=sum)
    report = dry_run(script, *options, world_size=team.n, machine=machine)
    return statistics.mean(slowest[1:]), report.step_s


def proof(report) -> None:
    errors, rows = [], []
    for name, (machine, *case) in CASES.items():
        emulated_s, dry_s = beside(ranks.start(RANKS, machine=machine), machine, *case)
        errors.append(abs(dry_s / emulated_s - 1))
        rows.append([name, machine, f"{1e3 * emulated_s:.3f}", f"{1e3 * dry_s:.3f}", f"{errors[-1]:.2%}"])
    report(f"emulated: dry run / {RANKS} ranks - 1, worst", "0.01 or less", [max(errors)], rows=rows)
