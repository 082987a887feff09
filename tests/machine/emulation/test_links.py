"""Clocks and links of emulated time, without ranks: streams, lateness, lanes, and what collectives take."""

import math
import statistics

import numpy as np
import pytest

from workshop_lib.machine import catalogue
from workshop_lib.machine.catalogue import Link, Machine
from workshop_lib.machine.emulation.clock import CLOCK, OnStream, Stream
from workshop_lib.machine.emulation.links import Lane, Network, RankLinks
from workshop_lib.machine.emulation.session import sent_bytes

ALPHA_S, BETA, N = 10e-6, 1e-9, 1_000_000
FAST = Link(1e-6, 0.01e-9)
RING = Machine("ring", "Ring", "", "", 1, "ring across nodes", Link(ALPHA_S, BETA), Link(ALPHA_S, BETA), "")
NODES = Machine("nodes", "Nodes", "", "", 4, "cheapest", FAST, Link(ALPHA_S, BETA), "", adapters=2)


@pytest.fixture(autouse=True)
def fresh_clock():
    CLOCK.reset()
    yield
    CLOCK.reset()


def test_a_lane_carries_one_message_at_a_time_and_fills_gaps():
    lane = Lane()
    assert lane.carry(0.0, 2.0) == 2.0
    assert lane.carry(1.0, 2.0) == 4.0, "it waits for the first"
    assert lane.carry(10.0, 1.0) == 11.0
    assert lane.carry(3.0, 5.0) == 9.0, "it fits between the two"
    assert lane.carry(3.0, 5.0) == 16.0, "no gap is long enough"


def test_collectives_of_different_groups_share_a_link():
    links = RankLinks()
    assert links.reserve(False, 0.0, 2.0) == 0.0
    assert links.reserve(False, 1.0, 1.0) == 2.0, "the link is reserved for the first"
    assert links.reserve(True, 1.0, 1.0) == 1.0, "the link inside the node is free"
    links.move(False, (0.0, 2.0), (10.0, 12.0))  # another rank came later
    assert links.reserve(False, 0.0, 2.0) == 0.0
    assert links.reserve(False, 9.0, 0.0) == 9.0, "a group of one needs no link"


def test_a_side_stream_costs_time_only_where_something_waits_for_it():
    side = Stream()
    CLOCK.compute(1.0)
    side.wait_stream(CLOCK.stream)
    with OnStream(side):
        CLOCK.compute(5.0)
        done = side.record_event()
    CLOCK.compute(2.0)
    assert (CLOCK.now_s, side.now_s) == (3.0, 6.0)
    CLOCK.stream.wait_event(done)
    assert CLOCK.now_s == 6.0
    CLOCK.stream.wait_event(None)
    assert CLOCK.now_s == 6.0, "an event from before the emulation is over"


def test_lateness_is_drawn_for_each_step_and_is_the_same_in_every_run():
    def paces(rank):
        CLOCK.reset(rank, lateness=0.05)
        drawn = []
        for _ in range(400):
            CLOCK.next_step()
            drawn.append(CLOCK.pace)
        return drawn

    assert paces(1) == paces(1) != paces(2)
    assert statistics.mean(paces(3)) == pytest.approx(1, abs=0.01)
    assert statistics.stdev(paces(3)) == pytest.approx(0.05, rel=0.1)


def test_own_time_is_charged_and_the_time_of_messages_is_not():
    CLOCK.reset(own_time=True)
    sum(range(300_000))
    computed = CLOCK.enter()
    sum(range(300_000))
    CLOCK.leave()
    assert computed > 0
    assert CLOCK.enter() == pytest.approx(computed, abs=computed / 3)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_collectives_of_a_ring(ranks):
    network = Network(RING, ranks)
    members = tuple(range(ranks))
    seconds = {kind: network.collective_s(kind, members, N) for kind in ("allreduce", "allgather", "reduce_scatter")}
    assert seconds["allreduce"] == pytest.approx(2 * (ranks - 1) * (ALPHA_S + N * BETA / ranks))
    assert seconds["allgather"] == seconds["reduce_scatter"] == pytest.approx(seconds["allreduce"] / 2)
    rounds = math.log2(ranks)
    assert network.collective_s("barrier", members, 0) == pytest.approx(rounds * ALPHA_S)
    assert network.collective_s("bcast", members, 8) == pytest.approx(rounds * (ALPHA_S + 8 * BETA))
    assert network.collective_s("gather", members, N) == pytest.approx(
        rounds * ALPHA_S + (ranks - 1) / ranks * N * BETA
    )
    assert network.collective_s("alltoall", members, N) == pytest.approx((ranks - 1) * (ALPHA_S + N / ranks * BETA))


def test_groups_inside_a_node_and_across_nodes():
    network = Network(NODES, 16)
    assert network.collective_s("allreduce", (4, 5, 6, 7), N) == pytest.approx(6 * (1e-6 + N / 4 * 0.01e-9))
    assert network.collective_s("allreduce", tuple(range(16)), N) == NODES.allreduce_s(16, N)
    column = network.collective_s("allgather", (1, 5, 9, 13), N)
    assert column == pytest.approx(3 * ALPHA_S + 3 / 4 * N * 4 * BETA), "four columns share the network of their nodes"
    world = tuple(range(16))
    assert network.link(world, 0, 3) == FAST
    assert network.link(world, 3, 4).s_per_byte == pytest.approx(2 * BETA), "one of the node's two adapters"
    assert network.link((1, 5, 9, 13), 1, 5).s_per_byte == pytest.approx(4 * BETA), "four columns send at the same time"
    assert network.link((0, 1, 4, 5), 1, 4).s_per_byte == pytest.approx(2 * BETA), "two groups, two adapters"


def test_a_weight_that_fsdp_pads_is_counted_as_it_is_sent():
    ten_outputs = np.ones((10, 784), np.float32)
    assert sent_bytes(ten_outputs, 1) == sent_bytes(ten_outputs, 5) == ten_outputs.nbytes
    assert sent_bytes(ten_outputs, 16) == 16 * 784 * 4


@pytest.mark.parametrize("name", catalogue.emulated_machines())
def test_every_machine_of_the_table_can_be_emulated(name):
    machine = catalogue.emulated_machine(name)
    network = Network(machine, 16)
    kinds = ["allreduce", "allgather", "reduce_scatter", "bcast", "reduce", "gather", "alltoall", "barrier", "scan"]
    for kind in kinds:
        assert 0 < network.collective_s(kind, tuple(range(16)), N) < 10
        assert network.collective_s(kind, (3,), N) == 0
