"""Whether ranks stand still: each of them waits for another one, and nothing has moved for a while."""

import time
from typing import NamedTuple

from workshop_lib.ranks.call.call import Call
from workshop_lib.ranks.call.messages import Frame, Whereabouts

from . import activity
from .activity import Activity
from .rank_errors import grouped, is_communicating, is_in_framework, named

IDLE_AFTER_S = 0.5  # CPU seconds are counted in hundredths, so a shorter time says too little
# A rank that looks for messages for this long sees a message that is there. Answering signals takes less.
SPUN_S = 0.05
RECEIVES = {"recv", "Recv", "probe", "Probe", "mprobe", "Mprobe"}
SENDS = {"send", "Send", "ssend", "Ssend"}


class Arrival(NamedTuple):
    """What was seen when a rank came to the place where it still is."""

    at: tuple[Frame | None, int | None]
    time_s: float
    cpu_s: float | None


class Standstill:
    """Looks at the running ranks of a call, and remembers since when nothing has moved."""

    def __init__(self, call: Call):
        self.call = call
        self.stacks: dict[int, list[Frame]] = {}
        self.whereabouts: dict[int, Whereabouts] = {}
        self.seen: dict[int, Arrival] = {}
        self.first: tuple[float, Activity] | None = None  # what was measured when nothing had moved yet

    def look(self) -> None:
        """Look at all running ranks once."""
        self.stacks = self.call.stacks()
        self.whereabouts = self.call.whereabouts()
        measured = self.call.activity()
        now = time.monotonic()
        if self.first is None or activity.moved(self.first[1], measured, now - self.first[0]):
            self.first = (now, measured)
            self.seen = {}
        self.last = (now, measured)
        for rank, frames in self.stacks.items():
            place = self.whereabouts[rank]["place"] if rank in self.whereabouts else None
            at = (frames[0] if frames else None, place)
            if not frames or rank not in self.seen or self.seen[rank].at != at:
                self.seen[rank] = Arrival(at, now, measured.cpu_s.get(rank))

    @property
    def knows_activity(self) -> bool:
        """Whether messages and objects on their way would have been noticed."""
        return self.first is not None and self.first[1].segments is not None

    def still_s(self, rank: int) -> float:
        """For how long this rank has waited at one place while nothing moved; 0 if it may be doing something."""
        frames = self.stacks[rank]
        seen = self.seen[rank]
        looked_at, measured = self.last
        for_s = looked_at - seen.time_s
        if is_communicating(frames):
            return for_s
        # For example, DDP waits in loss.backward(): no Python frame names DDP, but the rank computes nothing either.
        if not is_in_framework(frames) or seen.cpu_s is None or rank not in measured.cpu_s:
            return 0.0
        idles = measured.cpu_s[rank] - seen.cpu_s < activity.IDLE_SHARE * for_s
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
        if self.first is None or not self.knows_activity or set(self.whereabouts) != set(self.stacks):
            return False
        (first_s, first), (last_s, last) = self.first, self.last
        for rank, where in self.whereabouts.items():
            waits = where["waiting"]
            if waits is None:
                return False
            used_s = last.cpu_s[rank] - first.cpu_s[rank]
            idles = used_s < activity.IDLE_SHARE * (last_s - first_s) and self.call.asleep(rank)
            # A rank that spins needs a core to see its message. One that sleeps wakes up when its message comes.
            if not (used_s > SPUN_S if waits["spins"] else idles):
                return False
        return True

    def explanation(self) -> str:
        """Why these ranks cannot go on, in a sentence; empty if that's not obvious."""
        calls = {rank: at["waiting"]["name"] for rank, at in self.whereabouts.items() if at["waiting"] is not None}
        return explanation(calls) if len(calls) == len(self.call.ranks) else ""


def explanation(calls: dict[int, str]) -> str:
    """Why ranks that wait in these calls cannot go on, in a sentence; empty if that's not obvious."""
    names = set(calls.values())
    if names <= RECEIVES:
        return "Every rank waits to receive a message, and none of them sends one."
    if names <= SENDS:
        return "Every rank waits until its message is received, and none of them receives one."
    if len(names) == 1 or names & (RECEIVES | SENDS | {"backward", "Sendrecv", "sendrecv", "Sendrecv_replace"}):
        return ""
    each_calls = ", ".join(f"{named(ranks)} calls {text}" for ranks, text in sorted(grouped(calls)))
    return f"The calls don't match: {each_calls}. All ranks have to call the same one, in the same order."
