"""Ranks that emulate a machine: mpi4py code, DDP and FSDP2 take exactly the time that can be worked out by hand."""

import sys
import time
from dataclasses import replace

import cloudpickle
import numpy as np
import pytest
from benchmarks.emulation import FORWARD_S, LAYER_BYTES, LAYERS, SCALE, on_rank, step_s

from workshop_lib import TrainOptions, ranks
from workshop_lib.errors import InputError
from workshop_lib.machine.catalogue import Link, Machine
from workshop_lib.ranks import RankError
from workshop_lib.ranks.launch import launchers
from workshop_lib.ranks.launch.cluster import Ranks

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import the tests
ALPHA_S, BETA = 200e-6, 1e-8
SLOW = Machine("slow", "Slow", "", "", 1, "ring across nodes", Link(ALPHA_S, BETA), Link(ALPHA_S, BETA), "")


@pytest.fixture(scope="module")
def team():
    yield ranks.start(2, machine="ethernet-10g")
    ranks.stop()


def emulated(function, *arguments) -> float:
    """On a rank: the emulated seconds of a call on the machine SLOW."""
    from workshop_lib.machine.emulation import session

    emulation = session.start(SLOW)
    try:
        function(*arguments)
        return emulation.read_s()
    finally:
        session.stop()
        session.start_if_asked()


def seconds(team, function, *arguments) -> list[float]:
    return team.run(emulated, function, *arguments, show=False)


def ring(nbytes: int) -> None:
    from mpi4py import MPI

    from workshop_lib.training.collectives import ring

    comm = MPI.COMM_WORLD
    array = np.full(nbytes // 4, comm.rank + 1.0, np.float32)
    ring.allreduce(comm, array)
    assert (array == sum(range(comm.size + 1))).all()


@pytest.mark.parametrize("nbytes", [8, 8_000, 8_000_000])
def test_a_ring_by_hand_takes_what_the_formula_says(team, nbytes):
    assert seconds(team, ring, nbytes) == [pytest.approx(2 * (ALPHA_S + nbytes / 2 * BETA), rel=1e-9)] * 2


def calls() -> dict[str, float]:
    """On a rank: what each way to send takes, in units of alpha; messages are too short for their bytes to count."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    peer = 1 - comm.rank
    taken = {}
    out, into = np.zeros(1), np.zeros(1)

    def ping_pong(send, receive):
        for sender in (0, 1):
            send() if comm.rank == sender else receive()

    def waited(start, *arguments):
        return lambda: start(*arguments).Wait()

    def all_at_once():
        MPI.Request.Waitall([comm.Irecv(into, peer), comm.Isend(out, peer)])

    def of_a_half():
        half = comm.Split(comm.rank)
        half.Allreduce(MPI.IN_PLACE, into)
        half.Free()
        comm.Dup().allreduce(1)

    ways = {
        "Send, Recv": lambda: ping_pong(lambda: comm.Send(out, peer), lambda: comm.Recv(into, peer)),
        "send, recv": lambda: ping_pong(lambda: comm.send(3, peer), lambda: comm.recv(source=peer)),
        "from anybody": lambda: ping_pong(lambda: comm.Send(out, peer), lambda: comm.Recv(into)),
        "Isend, Irecv": lambda: ping_pong(waited(comm.Isend, out, peer), waited(comm.Irecv, into, peer)),
        "isend, irecv": lambda: ping_pong(
            lambda: comm.isend(3, peer).wait(), lambda: comm.irecv(source=peer, tag=MPI.ANY_TAG).wait()
        ),
        "Waitall": all_at_once,
        "by keywords": lambda: ping_pong(
            lambda: comm.Send(buf=out, dest=peer), lambda: comm.Recv(buf=into, source=peer, status=MPI.Status())
        ),
        "Sendrecv": lambda: comm.Sendrecv(out, peer, recvbuf=into, source=peer),
        "sendrecv": lambda: comm.sendrecv(3, peer, source=peer),
        "Allreduce": lambda: comm.Allreduce(MPI.IN_PLACE, into),
        "allreduce": lambda: comm.allreduce(3, MPI.MAX),
        "Bcast": lambda: comm.Bcast(into, 0),
        "allgather": lambda: comm.allgather(3),
        "Alltoall": lambda: comm.Alltoall(np.zeros(2), np.zeros(2)),
        "Iallreduce": lambda: comm.Iallreduce(MPI.IN_PLACE, into).Wait(),
        "Barrier": comm.Barrier,
        "to myself": lambda: comm.Sendrecv(out, comm.rank, recvbuf=into, source=comm.rank),
        "to nobody": lambda: comm.Send(out, MPI.PROC_NULL),
        "a group of one": of_a_half,
    }
    for name, way in ways.items():
        comm.Barrier()
        began = time.perf_counter()
        way()
        taken[name] = max(comm.allgather(time.perf_counter() - began)) / ALPHA_S
        assert MPI.Wtime() == time.perf_counter()
    return taken


def keep(store: list) -> None:
    store.append(calls())


def of_calls() -> dict[str, float]:
    taken: list[dict[str, float]] = []
    emulated(keep, taken)
    return taken[0]


def test_every_call_of_mpi4py_takes_its_rounds(team):
    twice = ("Send, Recv", "send, recv", "from anybody", "Isend, Irecv", "isend, irecv", "by keywords")
    twice += ("Allreduce", "allreduce", "Iallreduce")
    expected = dict.fromkeys(twice, 2) | {"to myself": 0, "to nobody": 0}
    for taken in team.run(of_calls, show=False):
        for name, rounds in taken.items():
            if name == "a group of one":
                continue  # Split itself sends
            assert rounds == pytest.approx(expected.get(name, 1), abs=0.01), name


def carted() -> None:
    from mpi4py import MPI

    MPI.COMM_WORLD.Create_cart([2])


def test_a_communicator_that_cannot_be_emulated_is_refused(team):
    with pytest.raises(RankError, match="Create_cart: its communicator can't be emulated; use Split"):
        seconds(team, carted)


def own_time() -> list[float]:
    """On a rank: emulated and CPU seconds of computing between a nonblocking call and its wait."""
    from mpi4py import MPI

    from workshop_lib.machine.emulation import session

    emulation = session.start(replace(SLOW, own_time=True))
    comm = MPI.COMM_WORLD
    request = comm.Iallreduce(MPI.IN_PLACE, np.zeros(1))
    before, began = emulation.read_s(), time.thread_time()
    while time.thread_time() - began < 0.05:
        pass
    request.Wait()
    taken = [emulation.read_s() - before, time.thread_time() - began]
    session.start_if_asked()
    return taken


def test_computing_during_a_message_is_charged_where_it_takes_its_own_time(team):
    for emulated_s, cpu_s in team.run(own_time, show=False):
        assert 0.05 <= emulated_s <= cpu_s + 1e-3


def of_torch() -> dict[str, float]:
    """On a rank: what calls of torch.distributed take, in units of alpha, in a group that asks for gloo."""
    import torch
    import torch.distributed as dist

    from workshop_lib.machine.emulation import session

    from lessons.ddp import process_group

    process_group.join()
    session.start(SLOW)
    groups = [dist.new_group(backend=name) for name in (None, "gloo", "cpu:gloo")]
    assert [dist.get_backend(group) for group in groups][:2] == ["gloo", "gloo"]
    rank = dist.get_rank()
    group = groups[1]
    mine, twos = torch.full((1,), float(rank)), [torch.zeros(1), torch.zeros(1)]
    ways = {
        "all_reduce": lambda: dist.all_reduce(torch.ones(1), group=group),
        "all_reduce, no backend named": lambda: dist.all_reduce(torch.ones(1), group=groups[0]),
        "all_reduce, cpu:gloo": lambda: dist.all_reduce(torch.ones(1), group=groups[2]),
        "all_reduce_coalesced": lambda: dist.all_reduce_coalesced([torch.ones(1)], group=group),
        "reduce": lambda: dist.reduce(torch.ones(1), dst=1, group=group),
        "gather": lambda: dist.gather(mine, twos if rank == 0 else None, group=group),
        "all_to_all": lambda: dist.all_to_all(twos, [mine, mine], group=group),
        "from any rank": lambda: dist.send(mine, 1, group) if rank == 0 else dist.recv(twos[1], group=group),
        "monitored_barrier": lambda: dist.monitored_barrier(group),
    }
    taken = {}
    for name, way in ways.items():
        dist.barrier(group)
        began = time.perf_counter()
        returned = way()
        taken[name] = round((time.perf_counter() - began) / ALPHA_S, 3)
        if name == "all_to_all" or (name == "gather" and rank == 0):
            assert [tensor.item() for tensor in twos] == [0, 1], name
        if name == "from any rank" and rank == 1:
            assert returned == 0 and twos[1].item() == 0
    objects = [None, None] if rank == 0 else None
    dist.gather_object({"rank": rank}, objects, group=group)
    assert rank == 1 or objects == [{"rank": 0}, {"rank": 1}]
    session.stop()
    session.start_if_asked()
    return taken


def test_every_group_of_torch_distributed_is_timed_whatever_its_backend_is_called(team):
    found = team.run(of_torch, show=False)
    for rank, taken in enumerate(found):
        twice = dict.fromkeys([name for name in taken if name.startswith("all_reduce")], 2)
        sends = {"from any rank": rank}  # the sender doesn't wait for the arrival
        assert taken == pytest.approx(dict.fromkeys(taken, 1) | twice | sends, abs=0.01)


def with_a_static_graph() -> list[float]:
    """On a rank: the emulated seconds of three steps with a static graph, whose first one starts all buckets late."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from lessons.ddp import process_group

    process_group.join()
    model = DistributedDataParallel(torch.nn.Linear(512, 512), static_graph=True)
    steps_s = []
    for _ in range(3):
        began = time.perf_counter()
        model(torch.ones(1, 512)).sum().backward()
        steps_s.append(time.perf_counter() - began)
    return steps_s


def test_ddp_with_a_static_graph_runs(team):
    for steps_s in team.run(with_a_static_graph, show=False):
        assert min(steps_s) > 0, "the messages of every step take time"


def late_rank() -> None:
    """Rank 1 computes for a second before the collective, and both compute for half a second during it."""
    from mpi4py import MPI

    from workshop_lib.machine.emulation.clock import CLOCK

    comm = MPI.COMM_WORLD
    CLOCK.compute(1.0 * comm.rank)
    array = np.zeros(12_500_000)
    request = comm.Iallreduce(MPI.IN_PLACE, array)
    CLOCK.compute(0.5)
    assert CLOCK.now_s == pytest.approx(0.5 + comm.rank)
    request.Wait()


def test_a_collective_starts_with_its_last_rank_and_costs_nothing_until_it_is_waited_for(team):
    assert seconds(team, late_rank) == [pytest.approx(1 + 2 * (ALPHA_S + 50e6 * BETA), rel=1e-9)] * 2


COMPUTE_S = 3 * LAYERS * FORWARD_S
HALF_S = ALPHA_S + LAYER_BYTES / 2 * BETA  # an allgather or a reduce-scatter of one layer on two ranks


@pytest.mark.parametrize(
    ("kind", "cap_mb", "expected_s"),
    [
        ("ddp", 1, COMPUTE_S + 2 * HALF_S),
        ("ddp", 100, COMPUTE_S + 2 * (ALPHA_S + LAYERS * LAYER_BYTES / 2 * BETA)),
        ("fsdp", 0, COMPUTE_S + 2 * HALF_S),
    ],
    ids=["DDP's last bucket shows", "one message shows whole", "FSDP's first gather and last reduce-scatter show"],
)
def test_ddp_and_fsdp_overlap_as_on_gpus(team, kind, cap_mb, expected_s):
    found = team.run(on_rank, SLOW, SCALE, step_s, (kind, 3, cap_mb), show=False)
    assert found == [pytest.approx(expected_s, rel=1e-6)] * 2


def test_a_training_on_emulated_ranks_takes_emulated_time_and_says_so(team):
    record = team.train(TrainOptions(epochs=1, train_samples=256, stands_for="resnet-50"), show=False)
    assert record["what"]["machine"] == "ethernet-10g" and not record["what"]["oversubscribed"]
    # Two steps of ResNet-50 with 64 images each: 26 ms of computing, and 102 MB of gradients at 1.18 GB/s.
    assert record["epochs"][0]["seconds"] == pytest.approx(2 * (0.026 + 0.087), rel=0.02)


NODES_OF_TWO = replace(SLOW, devices_a_node=2, collectives="hierarchical", inside=Link(1e-6, 1e-10))


def allreduce_in_levels(by_hand: bool) -> float:
    """On a rank: emulated seconds of an allreduce of 8 MB, first in each node and then across the two nodes."""
    from mpi4py import MPI

    from workshop_lib.machine.emulation import session
    from workshop_lib.training.collectives import ring

    emulation = session.start(NODES_OF_TWO)
    world = MPI.COMM_WORLD
    node = world.Split(world.rank // 2)
    column = world.Split(world.rank % 2)
    array = np.ones(2_000_000, np.float32)
    begin_s = emulation.read_s()
    if by_hand:
        half = np.empty(1_000_000, np.float32)
        node.Reduce_scatter_block(array, half)
        ring.allreduce(column, half)
        node.Allgather(half, array)
    else:
        world.Allreduce(MPI.IN_PLACE, array)
    seconds = emulation.read_s() - begin_s
    assert (array == 4).all()
    session.stop()
    return seconds


@pytest.mark.full
def test_columns_share_the_network_of_a_node_whether_by_hand_or_built_in():
    team = ranks.start(4)
    by_hand = team.run(allreduce_in_levels, True, show=False)
    built_in = team.run(allreduce_in_levels, False, show=False)
    ranks.stop()
    assert by_hand == pytest.approx(built_in, rel=1e-6)
    assert built_in[0] == pytest.approx(2 * ALPHA_S + 8e6 * BETA + 2e-6 + 8e6 * 1e-10, rel=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("backend", ["mpi", "ddp", "fsdp"])
def test_emulation_changes_times_and_no_weights(backend):
    plain = ranks.start(2)
    named = {"backend": backend, "epochs": 1, "train_samples": 256}
    measured = plain.train(TrainOptions(**named), show=False)
    emulated_on = {"machine": "polaris", "stands_for": "resnet-50"}
    once, again = (plain.train(TrainOptions(**named, **emulated_on), show=False) for _ in range(2))
    assert [record["what"]["machine"] for record in (measured, once, again)] == [None, "polaris", "polaris"]
    assert measured["weights_sha256"] == once["weights_sha256"] == again["weights_sha256"]
    assert once["epochs"][0]["seconds"] == again["epochs"][0]["seconds"], "the same on every machine, however busy"


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        ({"machine": "moon"}, "machine 'moon' is not known: choose one of a100-ethernet, aurora"),
        ({"machine": "polaris", "backend": "deepspeed"}, "backend 'deepspeed'.* on polaris use mpi, ddp, fsdp"),
        ({"machine": "polaris", "device": "cuda"}, "device 'cuda'"),
        ({"machine": "dgx1-v100"}, "machine 'dgx1-v100'.*add stands_for resnet-50"),
        ({"machine": "dgx1-v100", "stands_for": "gpt2"}, "stands_for 'gpt2'.*use resnet-50"),
        ({"machine": "polaris", "stands_for": "resnet-50", "data_dir": "x"}, "leave out data_dir"),
    ],
)
def test_what_cannot_be_emulated_is_refused_in_one_sentence(named, sentence):
    with pytest.raises(InputError, match=sentence):
        TrainOptions(**named)


def test_ranks_refuse_unknown_machines_before_they_start():
    with pytest.raises(InputError, match="choose one of a100-ethernet"):
        ranks.start(2, machine="moon")


def test_ranks_on_other_hosts_are_told_what_they_emulate(monkeypatch):
    passed_on = []

    def plan(*arguments):
        passed_on.extend(arguments[-1])
        raise InputError("enough")

    monkeypatch.setattr(launchers, "plan", plan)
    with pytest.raises(InputError, match="enough"):
        Ranks(2, machine="polaris")
    assert {"WORKSHOP_MACHINE", "PYTHONPATH"} <= set(passed_on)


def one_raises() -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    if comm.rank == 1:
        raise ValueError("a mistake")
    comm.Allreduce(np.ones(1), np.ones(1))  # waits for rank 1


def one_waits() -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    if comm.rank == 1:
        comm.Recv(np.ones(1), 0)  # waits for a message that nobody sends
    comm.Allreduce(np.ones(1), np.ones(1))


@pytest.mark.full
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (one_raises, r"rank 1 raised ValueError.*a mistake.*rank 0: still at .*one_raises:  comm.Allreduce"),
        (one_waits, r"not finished after 3 s.*rank 0: at .*comm.Allreduce.*rank 1: at .*one_waits:  comm.Recv"),
    ],
)
def test_a_fault_is_reported_as_on_other_ranks(fault, message):
    emulating = ranks.start(2, machine="laptop")
    began = time.monotonic()
    with pytest.raises(RankError, match=f"(?s){message}"):
        emulating.run(fault, show=False, timeout=3 if fault is one_waits else 30)
    assert time.monotonic() - began < 15
    emulating.restart()
    assert "emulating laptop" in repr(emulating)
