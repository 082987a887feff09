"""The deadlock explorer finds faults in small MPI programs, raises no false alarm, and gives what MPI gives."""

import itertools
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from mpi4py import MPI

from workshop_lib.errors import InputError
from workshop_lib.lessons.mpi_basics import schedule_figures
from workshop_lib.lessons.mpi_basics.explorer import explore, search

# Programs that have a fault only where `wrong` is true, with the kind of the fault.


def swap(comm, wrong=True):
    mine, theirs, partner = np.full(3, 1.0 * comm.rank), np.empty(3), 1 - comm.rank
    if wrong:
        comm.Send(mine, dest=partner)
        comm.Recv(theirs, source=partner)
    else:
        comm.Sendrecv(mine, dest=partner, recvbuf=theirs, source=partner)
    return theirs


def waits_too_early(comm, wrong):
    theirs = np.empty(4)
    sending = comm.Issend(np.full(4, comm.rank, float), dest=1 - comm.rank)
    if wrong:
        sending.Wait()
    MPI.Request.Waitall([sending, comm.Irecv(theirs, source=1 - comm.rank)])
    return theirs


def on_rank_zero_alone(comm, wrong):
    return comm.allreduce(10 + comm.rank) if comm.rank == 0 or not wrong else None


def another_order(comm, wrong):
    calls = [comm.barrier, lambda: comm.bcast(comm.rank, root=1)]
    return [call() for call in (calls[::-1] if wrong and comm.rank else calls)][0]


def gradients_of_two_lengths(comm, wrong):
    gradient = np.ones(10 + wrong * comm.rank)
    comm.Allreduce(MPI.IN_PLACE, gradient)
    return gradient


def too_little_room(comm, wrong):
    if comm.rank == 0:
        return comm.Send(np.ones(6), dest=1)
    comm.Probe(source=0)
    x = np.empty(6 - wrong)
    comm.Recv(x, source=0)
    return x


def an_array_received_as_an_object(comm, wrong):
    if comm.rank:
        return comm.recv(source=0)
    (comm.Send if wrong else comm.send)(np.ones(6), dest=1)


def a_neighbor_that_is_not_there(comm, wrong):
    right = comm.rank + 1 if wrong or comm.rank + 1 < comm.size else MPI.PROC_NULL
    return comm.sendrecv(comm.rank, dest=right, source=comm.rank - 1 if comm.rank else MPI.PROC_NULL)


def in_the_order_they_come(comm, wrong):
    if comm.rank:
        return comm.send(comm.rank**2, dest=0)
    status, results = MPI.Status(), {}
    for place in range(comm.size - 1):
        result = comm.recv(source=MPI.ANY_SOURCE, status=status)
        results[place if wrong else status.source] = result
    return results


def buffering_overtakes(comm, wrong):
    """Rank 2's message can be first at rank 1 only if MPI buffers what rank 0 sends there."""
    if comm.rank == 0:
        (comm.send if wrong else comm.ssend)("a", dest=1)
        comm.send("b", dest=2)
    elif comm.rank == 1:
        return comm.recv(source=MPI.ANY_SOURCE), comm.recv(source=2)
    else:
        comm.recv(source=0)
        comm.send("c", dest=1)


def never_waited_for(comm, wrong):
    if comm.rank == 1:
        return comm.recv(source=0)
    request = comm.isend(1, dest=1)
    if not wrong:
        request.wait()


FAULTS = {
    swap: "stuck",
    waits_too_early: "deadlock",
    on_rank_zero_alone: "deadlock",
    another_order: "mismatch",
    gradients_of_two_lengths: "mismatch",
    too_little_room: "error",
    an_array_received_as_an_object: "error",
    a_neighbor_that_is_not_there: "error",
    in_the_order_they_come: "race",
    buffering_overtakes: "deadlock",
    never_waited_for: "note",
}


@pytest.mark.parametrize("program", FAULTS)
def test_a_fault_is_found_and_the_same_without_it_raises_no_alarm(program):
    ranks = 3 if FAULTS[program] == "race" or program is buffering_overtakes else 2
    verdict = explore(lambda comm: program(comm, True), ranks)
    assert (verdict.kind or ("note" if verdict.notes else "")) == FAULTS[program], str(verdict)
    verdict = explore(lambda comm: program(comm, False), ranks)
    assert (verdict.kind, verdict.notes, verdict.complete) == ("", [], True), str(verdict)


def test_a_deadlock_says_who_waits_in_which_line_and_is_drawn(capsys):
    verdict = explore(swap)
    line = swap.__code__.co_firstlineno + 3
    assert f"Rank 0 waits in line {line}, `comm.Send(" in verdict.text
    assert "for rank 1 to receive; rank 1 waits in line" in verdict.text and "small messages" in verdict.text
    assert np.array_equal(verdict.results[0], np.ones(3)), "with buffers it comes to its end"
    assert set(schedule_figures.columns(verdict.run).values()) == {0}
    assert repr(schedule_figures.explore(swap)).startswith("Deadlock")

    def stub(comm):
        raise NotImplementedError("your code here")

    assert schedule_figures.explore(stub) is None
    assert "isn't solved yet" in capsys.readouterr().out


def test_results_are_those_of_mpi(team):
    def every_call(comm):
        right, left, status, theirs = (
            (comm.rank + 1) % comm.size,
            (comm.rank - 1) % comm.size,
            MPI.Status(),
            np.empty(2),
        )
        mine = np.array([comm.rank, 0.5])
        comm.Sendrecv(mine, right, recvbuf=theirs, source=left, status=status)
        got = [theirs.tolist(), status.source, status.tag]
        requests = [comm.irecv(source=MPI.ANY_SOURCE), comm.irecv(source=left, tag=3), comm.irecv(source=left)]
        for tag in (4, 3, 5):
            comm.isend((comm.rank, tag), right, tag=tag).wait()
        got += [request.wait() for request in requests] + [comm.sendrecv(comm.rank, right, source=left)]
        got += [comm.bcast(10 * comm.rank, root=1), comm.gather(comm.rank), comm.allgather(left)]
        comm.Allreduce(mine, theirs, op=MPI.MAX)
        return [*got, theirs.tolist(), comm.allreduce(comm.rank, op=MPI.PROD), comm.allreduce([left])]

    assert explore(every_call, team.n).results == team.run(lambda: every_call(MPI.COMM_WORLD.Dup()))


def test_a_notebook_that_has_not_initialized_mpi_survives():
    code = """
import mpi4py
mpi4py.rc.initialize = False
from lessons.mpi_basics.test_explorer import explore, gradients_of_two_lengths, in_the_order_they_come
programs = gradients_of_two_lengths, in_the_order_they_come
print([explore(lambda comm: program(comm, False), 3).kind for program in programs])
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": "tests"}, capture_output=True, timeout=60
    )
    assert ran.stdout.split() == [b"['',", b"'']"], ran.stderr


def test_a_rank_that_never_ends_is_stopped():
    def calls(comm):
        while True:
            comm.barrier()

    def computes(comm):
        while comm.rank == 0:
            pass

    before, began = threading.active_count(), time.monotonic()
    assert [explore(program).kind for program in (calls, computes)] == ["endless"] * 2
    assert time.monotonic() - began < 12 and threading.active_count() == before


def three_each(comm):
    if comm.rank:
        return [comm.send(1, dest=0) for _ in range(3)]
    return sum(comm.recv() for _ in range(9))


def test_more_orders_than_the_bound_are_said_to_be_there():
    verdict = explore(three_each, ranks=4, runs=20)
    assert (verdict.kind, verdict.complete) == ("", False)
    assert verdict.headline.startswith("No order fails among the")


CALLS = itertools.count()


@pytest.mark.parametrize(
    ("program", "ranks", "words"),
    [
        (lambda comm: comm.Split(0), 2, "knows no Split, only Allreduce, Barrier, .* on real ranks"),
        (lambda comm: comm.irecv(source=0).Cancel(), 2, "knows no Cancel"),
        (lambda comm: next(CALLS), 2, "did something else when it ran again"),
        (swap, 5, "runs 1 to 4 ranks, not 5"),
        ("swap", 2, "takes a function"),
    ],
)
def test_what_it_cannot_explore_is_said_in_one_sentence(program, ranks, words):
    with pytest.raises(InputError, match=words):
        explore(program, ranks)
    assert MPI.Request.__module__ == "mpi4py.MPI", "the real one again"


# Held to a search that leaves nothing out: every interleaving of small random programs, step by step.


def random_program(generator: random.Random, ranks: int, messages: int) -> list[list[tuple]]:
    """Each rank's calls: messages in an order that works, with wildcards, and at times two calls swapped."""
    calls: list[list[tuple]] = [[] for _ in range(ranks)]
    for _ in range(messages):
        dest = generator.randrange(2)  # the fewer they are, the more messages race
        source = generator.choice([rank for rank in range(ranks) if rank != dest])
        tag = generator.randrange(2)
        calls[source].append((generator.choice(["send", "send", "ssend"]), dest, tag))
        source = MPI.ANY_SOURCE if generator.random() < 0.7 else source
        calls[dest].append(("recv", source, MPI.ANY_TAG if generator.random() < 0.5 else tag))
    for of_rank in calls:
        if len(of_rank) > 1 and generator.random() < 0.25:
            at = generator.randrange(len(of_rank) - 1)
            of_rank[at], of_rank[at + 1] = of_rank[at + 1], of_rank[at]
    return calls


def as_program(calls: list[list[tuple]]):
    def program(comm):
        received = []
        for at, (name, *where) in enumerate(calls[comm.rank]):
            result = getattr(comm, name)(None if name == "recv" else (comm.rank, at), *where)
            received += [(at, result)] if name == "recv" else []
        return tuple(received)

    return program


def steps(calls: list[list[tuple]], buffers: bool, at: tuple, buffered: frozenset, received: tuple) -> Iterator[tuple]:
    """Every state that may come next. at: each rank's call. buffered: (sender, call) of what MPI has copied."""
    now = [calls[rank][at[rank]] if at[rank] < len(calls[rank]) else ("ended", None, None) for rank in range(len(at))]
    for rank, (name, peer, tag) in enumerate(now):
        on = (*at[:rank], at[rank] + 1, *at[rank + 1 :])
        if name == "send" and buffers:
            yield on, buffered | {(rank, at[rank])}, received
        if name != "recv":
            continue
        waiting = {(sender, at[sender]) for sender, (name, *_) in enumerate(now) if name in ("send", "ssend")}
        first: dict[int, tuple] = {}  # the oldest message from each rank that this receive may take
        for sender, call in sorted(buffered | waiting, reverse=True):
            _, dest, its_tag = calls[sender][call]
            if dest == rank and peer in (MPI.ANY_SOURCE, sender) and tag in (MPI.ANY_TAG, its_tag):
                first[sender] = (sender, call)
        for message in first.values():
            after = [here + (each == message[0] and message not in buffered) for each, here in enumerate(on)]
            got = (*received[:rank], (*received[rank], (at[rank], message)), *received[rank + 1 :])
            yield tuple(after), buffered - {message}, got


def everything(calls: list[list[tuple]], buffers: bool) -> tuple[bool, set]:
    """Whether a deadlock can be reached, and what can be received."""
    start = ((0,) * len(calls), frozenset(), ((),) * len(calls))
    seen = {start}
    open_states = [start]
    deadlock = False
    ends = set()
    while open_states:
        state = open_states.pop()
        after = set(steps(calls, buffers, *state))
        if state[0] == tuple(map(len, calls)):
            ends.add(state[2])
        elif not after:
            deadlock = True
        open_states += after - seen
        seen |= after
    return deadlock, ends


@pytest.mark.parametrize("programs", [60, pytest.param(2000, marks=pytest.mark.exhaustive)])
def test_it_agrees_with_a_search_that_leaves_nothing_out(programs):
    agreed = Counter()
    for seed in range(programs):
        generator = random.Random(seed)
        calls = random_program(generator, generator.choice([2, 3, 3, 4]), generator.randrange(2, 6))
        tried = list(search(as_program(calls), len(calls)))
        for buffers in (False, True):
            runs = [run for run in tried if run.buffers is buffers]
            ends = {tuple(rank.value for rank in run.ranks) for run in runs if not run.kind}
            found = any(run.kind for run in runs), ends
            assert found == everything(calls, buffers), (seed, calls, buffers)
            agreed[found[0], len(ends) > 1] += 1
    assert min(agreed.values()) >= 3 and len(agreed) == 4
