"""Does each rank have its own part of the machine?"""

from collections.abc import Iterator

from workshop_lib.examine.findings import found, ok
from workshop_lib.examine.observations import Run
from workshop_lib.findings import Finding
from workshop_lib.machine.cores import usable_threads
from workshop_lib.ranks.faults.rank_errors import named
from workshop_lib.words import plural


def threads(run: Run, cores: int | None = None) -> Iterator[Finding]:
    """Are there as many threads as cores, at most?"""
    cores = cores or usable_threads()
    counts = [log.steps[max(log.steps)].threads for log in run.ranks]
    on_cpu = all(log.model.device == "cpu" for log in run.ranks)
    if on_cpu and run.size > 1 and sum(counts) > cores and max(counts) > 1:
        seen = f"{plural(run.size, 'rank')} with {max(counts)} threads each share {plural(cores, 'core')}"
        yield found("more-threads-than-cores", seen, each=max(1, cores // run.size))
    else:
        yield ok("threads", f"{plural(run.size, 'rank')} with {plural(max(counts), 'thread')} each")


def devices(run: Run) -> Iterator[Finding]:
    """Does each rank compute on a device of its own?"""
    if not all(log.has_model for log in run.ranks):
        return
    models = [log.model for log in run.ranks]
    used = [model.device for model in models]
    accelerators = max(model.accelerators for model in models)
    twice = sorted({device for device in used if device != "cpu" and used.count(device) > 1})
    if twice:
        ranks = tuple(rank for rank, device in enumerate(used) if device == twice[0])
        yield found("shared-device", f"{named(ranks)} compute on {twice[0]}", ranks=ranks)
    elif accelerators and all(device == "cpu" for device in used):
        seen = f"the model is on the CPU, and there are {plural(accelerators, 'accelerator')}"
        yield found("idle-accelerators", seen)
    elif accelerators:
        where = ", ".join(used)
        did = f"would compute on {where}, and ran on the CPU" if models[0].pretended_gpu else f"compute on {where}"
        yield ok("devices", f"the ranks {did}")
