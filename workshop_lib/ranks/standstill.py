"""Whether ranks stand still: each of them waits for another one, and nothing has moved for a while."""

import time
from typing import NamedTuple

from . import activity
from .activity import Activity
from .messages import CallUnderWay, Frame, Waiting, Whereabouts
from .rank_errors import grouped, is_communicating, is_in_framework, named

IDLE_AFTER_S = 0.5  # CPU seconds are counted in hundredths, so a shorter time says too little
# A rank that looks for messages for this long sees a message that is there. Answering signals takes less.
SPUN_S = 0.05
RECEIVES = {"recv", "Recv", "probe", "Probe", "mprobe", "Mprobe"}
SENDS = {"send", "Send", "ssend", "Ssend"}
# Collectives for which each rank gives a buffer of the same size.
SAME_SIZES = {"Allreduce", "Reduce", "Bcast", "Scan", "Exscan", "all_reduce", "broadcast", "reduce"}
COLLECTIVES = SAME_SIZES | {name.lower() for name in SAME_SIZES}
COLLECTIVES |= {"Barrier", "barrier", "Gather", "gather", "Scatter", "scatter", "Allgather", "allgather", "Gatherv"}
COLLECTIVES |= {"Scatterv", "Allgatherv", "Alltoall", "alltoall", "Alltoallv", "Alltoallw", "Reduce_scatter"}
COLLECTIVES |= {"Reduce_scatter_block", "all_gather", "all_gather_into_tensor", "reduce_scatter", "all_to_all"}
COLLECTIVES |= {"reduce_scatter_tensor", "all_to_all_single"}


class Arrival(NamedTuple):
    """What was seen when a rank came to the place where it still is."""

    at: tuple[Frame | None, int | None]
    time_s: float
    cpu_s: float | None


class Standstill:
    """Looks at the running ranks of a call, and remembers since when nothing has moved."""

    def __init__(self, call: CallUnderWay):
        self.call = call
        self.stacks: dict[int, list[Frame]] = {}
        self.whereabouts: dict[int, Whereabouts] = {}
        self.seen: dict[int, Arrival] = {}
        self.first: tuple[float, Activity] | None = None  # what was measured when nothing had moved yet
        self.last: tuple[float, Activity] | None = None

    def look(self) -> None:
        """Look at all running ranks once."""
        self.stacks = self.call.stacks()
        self.whereabouts = self.call.whereabouts()
        cpu_s = self.call.cpu_s()
        measured = self.call.activity()
        now = time.monotonic()
        if measured is None:
            self.first = None
        elif self.first is None or activity.moved(self.first[1], measured, now - self.first[0]):
            self.first = (now, measured)
            self.seen = {}
        self.last = None if measured is None else (now, measured)
        for rank, frames in self.stacks.items():
            place = self.whereabouts[rank]["place"] if rank in self.whereabouts else None
            at = (frames[0] if frames else None, place)
            if not frames or rank not in self.seen or self.seen[rank].at != at:
                self.seen[rank] = Arrival(at, now, cpu_s.get(rank))
        self.cpu_s = cpu_s
        self.looked_at = now

    @property
    def knows_activity(self) -> bool:
        """Whether messages and objects on their way would have been noticed."""
        return self.first is not None

    def still_s(self, rank: int) -> float:
        """For how long this rank has waited at one place while nothing moved; 0 if it may be doing something."""
        frames = self.stacks[rank]
        seen = self.seen[rank]
        for_s = self.looked_at - seen.time_s
        if is_communicating(frames):
            return for_s
        # For example, DDP waits in loss.backward(): no Python frame names DDP, but the rank computes nothing either.
        if not is_in_framework(frames) or seen.cpu_s is None or rank not in self.cpu_s:
            return 0.0
        idles = self.cpu_s[rank] - seen.cpu_s < activity.IDLE_SHARE * for_s
        return for_s if idles and for_s >= IDLE_AFTER_S else 0.0

    @property
    def all_still_s(self) -> float:
        """For how long all running ranks have waited; 0 if one of them may be doing something, or is stopped."""
        if not self.stacks or self.call.stopped():
            return 0.0
        return min(self.still_s(rank) for rank in self.stacks)

    @property
    def is_certain(self) -> bool:
        """Whether nothing but one of these ranks could end the waits, and all of them have had time to do so."""
        if self.first is None or self.last is None or set(self.whereabouts) != set(self.stacks):
            return False
        waiting = {rank: where["waiting"] for rank, where in self.whereabouts.items()}
        if not all(each and each["only_on_ranks"] for each in waiting.values()):
            return False
        (first_s, first), (last_s, last) = self.first, self.last
        for rank, each in waiting.items():
            used_s = last.cpu_s[rank] - first.cpu_s[rank]
            idles = used_s < activity.IDLE_SHARE * (last_s - first_s) and self.call.asleep(rank)
            # A rank that spins needs a core to see its message. One that sleeps wakes up when its message comes.
            if not (used_s > SPUN_S if each and each["spins"] else idles):
                return False
        return True

    def explanation(self) -> str:
        """Why these ranks cannot go on, in a sentence; empty if that's not obvious."""
        waiting = {rank: each["waiting"] for rank, each in self.whereabouts.items()}
        known = {rank: each for rank, each in waiting.items() if each is not None}
        return explanation(known) if len(known) == len(self.stacks) == len(self.call.ranks) else ""


def explanation(waiting: dict[int, Waiting]) -> str:
    """Why ranks that wait for this cannot go on, in a sentence; empty if that's not obvious."""
    names = {each["name"] for each in waiting.values()}
    if names <= RECEIVES:
        return "Every rank waits to receive a message, and none of them sends one."
    if names <= SENDS:
        return "Every rank waits until its message is received, and none of them receives one."
    if not names <= COLLECTIVES:
        return ""
    if len(names) > 1:
        calls = _each({rank: f"calls {each['name']}" for rank, each in waiting.items()})
        return f"The collectives don't match: {calls}. All ranks have to call the same one, in the same order."
    (name,) = names
    for what, key in (("communicators", "ranks"), ("roots", "root"), ("sizes", "size")):
        values = {rank: each[key] for rank, each in waiting.items()}  # type: ignore[literal-required]
        matters = key != "size" or name in SAME_SIZES
        if matters and None not in values.values() and len(set(map(str, values.values()))) > 1:
            shown = {"ranks": "one of {}", "root": "root {}", "size": "{}"}[key]
            differ = {
                rank: "has " + shown.format(named(value) if key == "ranks" else value) for rank, value in values.items()
            }
            return f"All of them call {name}, but with different {what}: {_each(differ)}."
    return ""


def _each(words: dict[int, str]) -> str:
    return ", ".join(f"{named(ranks)} {text}" for ranks, text in sorted(grouped(words)))
