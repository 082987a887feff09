"""The links of an emulated machine: how long messages and collectives take, and when a link is free.

Rank r is device r of a machine whose nodes are filled one after another. The seconds of a collective come from
catalogue.Machine, as those of the forecasts do.
"""

import bisect
import math
from collections import Counter
from dataclasses import replace

from workshop_lib.machine.catalogue import Link, Machine

KEPT = 256  # messages that a lane remembers; earlier ones have gone


class Lane:
    """One direction of a rank's link. It carries one message at a time."""

    def __init__(self):
        self.busy: list[tuple[float, float]] = []  # when each message begins and ends, in order

    def gap(self, ready_s: float, seconds: float) -> float:
        """When the first gap that is long enough begins, from `ready_s` on."""
        begin = ready_s
        for busy_from, busy_to in self.busy:
            if busy_from >= begin + seconds:
                break
            begin = max(begin, busy_to)
        return begin

    def carry(self, ready_s: float, seconds: float) -> float:
        """Carry a message in the first gap that is long enough. Returns when the message ends."""
        begin = self.gap(ready_s, seconds)
        self.occupy(begin, begin + seconds)
        return begin + seconds

    def occupy(self, begin: float, end: float) -> None:
        bisect.insort(self.busy, (begin, end))
        del self.busy[:-KEPT]

    def vacate(self, begin: float, end: float) -> None:
        if (begin, end) in self.busy:
            self.busy.remove((begin, end))


class RankLinks:
    """The links of one rank, out of it and into it: those to its own node (True), and those to other nodes (False)."""

    def __init__(self):
        self.out = {True: Lane(), False: Lane()}
        self.into = {True: Lane(), False: Lane()}

    def reserve(self, inside: bool, ready_s: float, seconds: float) -> float:
        """Reserve both directions for a collective, in the first gap that they share. Returns when it begins."""
        if seconds == 0:
            return ready_s
        out, into = self.out[inside], self.into[inside]
        begin = out.gap(ready_s, seconds)
        while (later := out.gap(into.gap(begin, seconds), seconds)) > begin:
            begin = later
        self.move(inside, None, (begin, begin + seconds))
        return begin

    def move(self, inside: bool, reserved: tuple[float, float] | None, occupied: tuple[float, float]) -> None:
        """Occupy both directions for this time, in place of the time that was reserved."""
        for lane in (self.out[inside], self.into[inside]):
            if reserved is not None:
                lane.vacate(*reserved)
            lane.occupy(*occupied)


class Network:
    """What messages and collectives between the ranks of an emulated machine take.

    Sibling groups, such as the other columns of a mesh, are taken to communicate at the same time as a group, and share
    the network of its nodes. Within one group, the members of a collective share it as well, but a message between two
    ranks has an adapter of its node to itself: it isn't known who else in the group is sending.
    """

    def __init__(self, machine: Machine, world_size: int):
        self.machine = machine
        self.world_size = world_size

    def inside(self, ranks: tuple[int, ...]) -> bool:
        """Whether these ranks share a node."""
        return len({rank // self.machine.devices_a_node for rank in ranks}) == 1

    def members_a_node(self, ranks: tuple[int, ...]) -> list[int]:
        """How many of these ranks each of their nodes has."""
        return list(Counter(rank // self.machine.devices_a_node for rank in ranks).values())

    def siblings(self, ranks: tuple[int, ...]) -> int:
        """How many groups like this one share the network of a node, if the group has ranks on several nodes."""
        per_node = self.members_a_node(ranks)
        if len(per_node) == 1:
            return 1
        return min(self.machine.devices_a_node, self.world_size) // max(per_node)

    def link(self, group: tuple[int, ...], one: int, other: int) -> Link:
        """What a message from one rank of a group to another passes."""
        if self.inside((one, other)):
            return self.machine.inside
        between = self.machine.between
        messages = max(self.machine.adapters, self.siblings(group))
        return Link(between.latency_s, between.s_per_byte * messages)

    def collective_s(self, kind: str, ranks: tuple[int, ...], nbytes: float) -> float:
        """Seconds of a collective of these ranks, from the arrival of the last one to its end.

        nbytes: bytes of the whole array; for an allgather, of the gathered one. A broadcast or a reduce takes the
        cheaper of a tree and a pipeline. In a gather, a scatter or an all-to-all, one link carries every byte.
        """
        machine = self.machine
        size = len(ranks)
        if size == 1:
            return 0.0
        per_node = self.members_a_node(ranks)
        nodes = len(per_node)
        a_node = max(per_node)
        siblings = self.siblings(ranks)
        shared = Link(machine.between.latency_s, machine.between.s_per_byte * siblings)
        levels = [(members, link) for members, link in ((a_node, machine.inside), (nodes, shared)) if members > 1]
        alpha_s = max(link.latency_s for _, link in levels)
        beta = max(link.s_per_byte for _, link in levels)
        if kind == "allreduce":
            return replace(machine, devices_a_node=a_node).allreduce_s(size, nbytes, 1 / siblings)
        if kind in ("allgather", "reduce_scatter"):
            return replace(machine, devices_a_node=a_node).allgather_s(size, nbytes, 1 / siblings)
        if kind == "alltoall":
            inside_s = nbytes * (a_node - 1) / size * machine.inside.s_per_byte
            between_s = nbytes * (size - a_node) / size * a_node * shared.s_per_byte
            return (size - 1) * alpha_s + max(inside_s, between_s)
        rounds_s = sum(math.ceil(math.log2(members)) * link.latency_s for members, link in levels)
        if kind == "barrier":
            return rounds_s
        if kind in ("gather", "scatter"):
            return rounds_s + (size - 1) / size * nbytes * beta
        tree_s = rounds_s + sum(math.ceil(math.log2(members)) * nbytes * link.s_per_byte for members, link in levels)
        return tree_s if kind == "scan" else min(tree_s, (size - 1) * alpha_s + nbytes * beta)
