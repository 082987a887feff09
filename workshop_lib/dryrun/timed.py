"""The emulated time of a dry run: 12_thousand_ranks has one rank of many take the time of a machine of the table.

All ranks are taken to be alike, so a collective starts when this rank arrives. It's the clock of emulated ranks
(workshop_lib/machine/emulation), under a process group that only pretends to send.
"""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from workshop_lib.machine.catalogue import Machine
from workshop_lib.machine.cost_model import mean_slowest_of
from workshop_lib.machine.emulation.clock import CLOCK
from workshop_lib.machine.emulation.device import Device
from workshop_lib.machine.emulation.links import Network, RankLinks

# Calls of torch.distributed that can return before their collective has ended. Some are new in PyTorch 2.13.
CALLS = [
    "all_reduce",
    "all_gather_into_tensor",
    "all_gather_single",
    "reduce_scatter_tensor",
    "reduce_scatter_single",
    "broadcast",
    "all_to_all_single",
]
# The kinds of collectives in machine/emulation/links.py, by the meter's names.
KINDS = {"allreduce": "allreduce", "allgather": "allgather", "reduce-scatter": "reduce_scatter"}
KINDS |= {"broadcast": "bcast", "all-to-all": "alltoall"}


class TimedWork(dist._Work):
    """A collective under way, which moves the clock when somebody waits for it."""

    def __init__(self, end_s: float):
        super().__init__()
        self.end_s = end_s

    def wait(self, timeout=None) -> bool:
        CLOCK.wait_until(self.end_s)
        return True


class StepClock:
    """The emulated time of this rank, as the script's collectives and its device move it on."""

    def __init__(self, machine: Machine, world_size: int):
        self.network = Network(machine, world_size)
        self.links = RankLinks()
        CLOCK.reset()
        CLOCK.slowness = 1 + machine.lateness * mean_slowest_of(world_size)  # a step waits for the slowest rank
        self.machine = machine
        self.free_s: dict[str, float] = defaultdict(float)  # when the last collective of each group ends
        self.ends: dict[int, float] = {}  # when the collective that fills a tensor ends, by its storage
        self.last_end_s = 0.0
        self.start_step()

    def start_step(self) -> None:
        self.began_s = CLOCK.now_s
        self.computed_s = CLOCK.computed_s

    def took_s(self) -> tuple[float, float]:
        """Seconds of the step so far, and of computing in it."""
        return CLOCK.now_s - self.began_s, CLOCK.computed_s - self.computed_s

    def collective(self, name: str, group: dist.ProcessGroup, nbytes: float, output: Any) -> None:
        """Start a collective on this group. Those of one group run one after another, and those of all share a link."""
        members = tuple(dist.get_process_group_ranks(group))
        seconds = self.network.collective_s(KINDS.get(name, "allreduce"), members, nbytes)
        ready_s = max(CLOCK.now_s, self.free_s[group.group_name])
        begin = self.links.reserve(self.network.inside(members), ready_s, seconds)
        self.last_end_s = self.free_s[group.group_name] = begin + seconds
        if isinstance(output, torch.Tensor):
            self.ends[output.untyped_storage()._cdata] = self.last_end_s

    def wait_for(self, tensor: torch.Tensor) -> None:
        """Wait for the collective that fills this tensor: what DTensor does before it uses the values."""
        CLOCK.wait_until(self.ends.pop(tensor.untyped_storage()._cdata, 0.0))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Within this context, computing takes the machine's time, and waiting for a collective moves the clock."""
        device = Device(self.machine)
        try:
            with contextlib.ExitStack() as stack:
                for name in CALLS:
                    if hasattr(dist, name):
                        stack.enter_context(mock.patch.object(dist, name, self._timed(getattr(dist, name))))
                yield
        finally:
            device.remove()

    def _timed(self, function: Callable) -> Callable:
        def call(*args, **kwargs):
            work = function(*args, **kwargs)
            if work is not None:
                return TimedWork(self.last_end_s)
            CLOCK.wait_until(self.last_end_s)
            return None

        return call
