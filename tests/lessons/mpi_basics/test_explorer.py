"""The deadlock explorer finds every fault in small MPI programs and raises no alarm where there is none."""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
from lessons.mpi_basics.mpi_programs import PROGRAMS
from mpi4py import MPI

from workshop_lib.errors import InputError
from workshop_lib.lessons.mpi_basics import schedule_figures
from workshop_lib.lessons.mpi_basics.explorer import OrderSearch, explore
from workshop_lib.lessons.mpi_basics.schedule_report import Box, Picture


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fault_is_found_and_named(name):
    faulty = PROGRAMS[name]
    verdict = explore(faulty.run_with(wrong=True), faulty.ranks)
    assert (verdict.kind or ("note" if verdict.notes else "")) in faulty.kinds, str(verdict)
    assert verdict.complete
    assert verdict.picture.lanes


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_without_the_fault_raises_no_alarm(name):
    faulty = PROGRAMS[name]
    verdict = explore(faulty.run_with(wrong=False), faulty.ranks)
    assert verdict.complete
    assert (verdict.kind, verdict.notes) == ("", []), str(verdict)


def swap(comm):
    theirs = np.empty(3)
    comm.Send(np.full(3, 1.0 * comm.rank), dest=1 - comm.rank)
    comm.Recv(theirs, source=1 - comm.rank)
    return theirs


def test_a_deadlock_says_who_waits_in_which_line_and_when_it_goes_unnoticed():
    verdict = explore(swap)
    line = swap.__code__.co_firstlineno + 2
    assert f"Rank 0 waits in line {line}, `comm.Send(" in verdict.text
    assert "for rank 1 to receive; rank 1 waits in line" in verdict.text
    assert "small messages" in verdict.text
    assert [lane[-1].waits_for for lane in verdict.picture.lanes] == ["rank 1 to receive", "rank 0 to receive"]
    assert np.array_equal(verdict.results[0], np.ones(3)), "with buffers it comes to its end"


def test_real_values_flow_through_every_collective():
    def program(comm):
        p, r = comm.size, comm.rank
        mine, all_of_it, dealt = np.array([r, 10 * r]), np.empty((p, 2), int), np.empty(1, int)
        comm.Allgather(mine, all_of_it)
        comm.Reduce_scatter_block(np.arange(p) + r, dealt)
        swapped, largest = np.empty(p, int), np.empty(2, int)
        comm.Alltoall(10 * r + np.arange(p), swapped)
        comm.Iallreduce(mine, largest, op=MPI.MAX).Wait()
        part = comm.scatter([i**2 for i in range(p)] if r == 1 else None, root=1)
        objects = comm.alltoall([(r, i) for i in range(p)])
        return all_of_it.sum(), dealt[0], list(swapped), list(largest), part, objects, comm.scan(r)

    verdict = explore(program, ranks=3)
    assert verdict.kind == "", str(verdict)
    assert verdict.results[1] == (33, 6, [1, 11, 21], [2, 20], 1, [(0, 1), (1, 1), (2, 1)], 1)


def test_there_are_as_many_orders_as_messages_from_any_source_have():
    def program(comm):
        if comm.rank:
            return comm.send(1, dest=0)
        return sum(comm.recv() for _ in range(comm.size - 1))

    assert [explore(program, ranks).orders for ranks in (2, 3, 4)] == [1, 2, 6]


def test_what_is_printed_counts_as_a_result_and_stays_off_the_page(capsys):
    def program(comm):
        if comm.rank == 0:
            print(comm.recv(), comm.recv())
        else:
            comm.send(comm.rank, dest=0)

    verdict = explore(program, ranks=3)
    assert (verdict.kind, capsys.readouterr().out) == ("race", "")
    assert "prints 1 2 in one order, and 2 1 in another" in verdict.text


def test_a_rank_that_never_ends_is_stopped():
    def calls(comm):
        while True:
            comm.barrier()

    def computes(comm):
        while comm.rank == 0:
            pass

    before = threading.active_count()
    began = time.monotonic()
    for program in (calls, computes):
        assert explore(program).kind == "endless"
    assert time.monotonic() - began < 12
    assert threading.active_count() == before


def test_more_orders_than_the_bound_are_said_to_be_there():
    def program(comm):
        if comm.rank:
            for _ in range(3):
                comm.send(1, dest=0)
            return None
        return sum(comm.recv() for _ in range(9))

    verdict = explore(program, ranks=4, runs=20)
    assert (verdict.kind, verdict.complete, verdict.runs) == ("", False, 20)
    assert verdict.headline == "No order fails among the 20 tried"


def split(comm):
    comm.Split(0)


def cancels(comm):
    request = comm.irecv(source=0)
    request.Cancel()


CALLS = itertools.count()


def changing(comm):
    return next(CALLS)


@pytest.mark.parametrize(
    ("program", "ranks", "words"),
    [
        (split, 2, "knows no comm.Split"),
        (cancels, 2, "no request.Cancel"),
        (changing, 2, "did something else when it ran again"),
        (swap, 5, "runs 1 to 4 ranks, not 5"),
        ("swap", 2, "takes a function"),
    ],
)
def test_what_it_cannot_explore_is_said_in_one_sentence(program, ranks, words):
    with pytest.raises(InputError, match=words):
        explore(program, ranks)


def test_mpi_is_the_real_one_again_afterwards():
    explore(swap)
    import mpi4py

    assert mpi4py.MPI is MPI
    assert MPI.Request.__module__ == "mpi4py.MPI"


# Held to a search that leaves nothing out: every interleaving of small random programs, step by step.


def random_program(generator: random.Random, ranks: int, messages: int) -> list[list[tuple]]:
    """Each rank's calls: messages in an order that works, with wildcards, and at times two calls swapped."""
    calls: list[list[tuple]] = [[] for _ in range(ranks)]
    for _ in range(messages):
        kind = generator.random()
        if kind < 0.15:
            root = generator.randrange(ranks)
            for of_rank in calls:
                of_rank.append(("bcast", root) if root else ("barrier",))
            continue
        dest = generator.randrange(2)  # the fewer they are, the more messages race
        source = generator.choice([rank for rank in range(ranks) if rank != dest])
        tag = generator.randrange(2)
        calls[source].append((generator.choice(["send", "send", "ssend", "isend"]), dest, tag))
        source = MPI.ANY_SOURCE if generator.random() < 0.7 else source
        tag = MPI.ANY_TAG if generator.random() < 0.5 else tag
        calls[dest].append((generator.choice(["recv", "recv", "irecv"]), source, tag))
    for of_rank in calls:
        if len(of_rank) > 1 and generator.random() < 0.25:
            at = generator.randrange(len(of_rank) - 1)
            if not {of_rank[at][0], of_rank[at + 1][0]} <= {"bcast", "barrier"}:
                of_rank[at], of_rank[at + 1] = of_rank[at + 1], of_rank[at]
        of_rank.append(("waitall",))
    return calls


def as_program(calls: list[list[tuple]]):
    def program(comm):
        requests, received = {}, {}
        for at, (name, *where) in enumerate(calls[comm.rank]):
            if name == "waitall":
                received |= {at: value for at, request in requests.items() if (value := request.wait())}
            elif name == "bcast":
                comm.bcast(None, root=where[0])
            elif name == "barrier":
                comm.barrier()
            elif name == "isend":
                requests[at] = comm.isend((comm.rank, at), *where)
            elif name == "irecv":
                requests[at] = comm.irecv(None, *where)
            elif name == "recv":
                received[at] = comm.recv(None, *where)
            else:
                getattr(comm, name)((comm.rank, at), *where)
        return sorted(received.items())

    return program


class State(NamedTuple):
    """at: each rank's (call, whether it has begun it). messages, posted: what is unmatched, by receiver, in order, as
    (sender, its call, tag) and (call, source, tag). received: by receiver, {(call, (sender, its call))}."""

    at: tuple
    messages: tuple
    posted: tuple
    received: tuple

    def put(self, field: str, rank: int, value) -> "State":
        old = getattr(self, field)
        return self._replace(**{field: (*old[:rank], value, *old[rank + 1 :])})


def steps(calls: list[list[tuple]], state: State) -> Iterator[State]:
    """Every state that may come next."""
    for rank, (at, begun) in enumerate(state.at):
        if at == len(calls[rank]):
            continue
        name, *where = calls[rank][at]
        on = state.put("at", rank, (at + 1, False))
        begin = state.put("at", rank, (at, True))
        if name in ("send", "ssend", "isend") and not begun:
            sent = (*state.messages[where[0]], (rank, at, where[1]))
            if name != "ssend":
                yield on.put("messages", where[0], sent)
            if name != "isend":
                yield begin.put("messages", where[0], sent)
        elif name in ("recv", "irecv") and not begun:
            posted = (*state.posted[rank], (at, *where))
            yield (on if name == "irecv" else begin).put("posted", rank, posted)
        elif name == "waitall" and not state.posted[rank]:
            if not begun:
                yield on
                yield begin
            elif not any(sender == rank for messages in state.messages for sender, *_ in messages):
                yield on
        elif name in ("bcast", "barrier"):
            mine = sum(each[0] in ("bcast", "barrier") for each in calls[rank][:at])
            entered = [entered_so_far(calls[r], state.at[r]) > mine for r in range(len(calls))]
            if not begun:
                yield begin
                if name == "bcast" and (where[0] == rank or entered[where[0]]):
                    yield on
            elif all(entered):
                yield on
    for rank, posted in enumerate(state.posted):
        for recv, message in itertools.product(posted, state.messages[rank]):
            earlier = [m for m in state.messages[rank] if m[0] == message[0] and m[1] < message[1]]
            before = [r for r in posted if r[0] < recv[0]]
            overtakes = any(agree(recv, m) for m in earlier) or any(agree(r, message) for r in before)
            if agree(recv, message) and not overtakes:
                yield matched(state, rank, recv, message)


def entered_so_far(calls: list[tuple], at: tuple) -> int:
    return sum(each[0] in ("bcast", "barrier") for each in calls[: at[0] + at[1]])


def agree(recv: tuple, message: tuple) -> bool:
    return recv[1] in (MPI.ANY_SOURCE, message[0]) and recv[2] in (MPI.ANY_TAG, message[2])


def matched(state: State, rank: int, recv: tuple, message: tuple) -> State:
    state = state.put("received", rank, state.received[rank] | {(recv[0], message[:2])})
    state = state.put("posted", rank, tuple(r for r in state.posted[rank] if r != recv))
    state = state.put("messages", rank, tuple(m for m in state.messages[rank] if m != message))
    for each, call in ((rank, recv[0]), message[:2]):
        if state.at[each] == (call, True):
            state = state.put("at", each, (call + 1, False))
    return state


def everything(calls: list[list[tuple]], limit: int) -> tuple[bool, set] | None:
    """Whether a deadlock can be reached, and what can be received; None if there is too much to look at."""
    n = len(calls)
    first = State(((0, False),) * n, ((),) * n, ((),) * n, (frozenset(),) * n)
    seen, waiting, deadlock, ends = {first}, [first], False, set()
    while waiting:
        state = waiting.pop()
        after = set(steps(calls, state))
        if all(at == len(of_rank) for (at, _), of_rank in zip(state.at, calls, strict=True)):
            ends.add(tuple(tuple(sorted(each)) for each in state.received))
        elif not after:
            deadlock = True
        waiting += after - seen
        seen |= after
        if len(seen) > limit:
            return None
    return deadlock, ends


def explored(calls: list[list[tuple]]) -> tuple[bool, set]:
    search = OrderSearch(as_program(calls), len(calls))
    outcomes = []
    while search.open:
        outcomes += filter(None, [search.run_next()])
    ends = {tuple(tuple(each) for each in outcome.results) for outcome in outcomes if not outcome.kind}
    return any(outcome.stuck for outcome in outcomes), ends


def compare(seeds: range, limit: int) -> Counter:
    """How often the two agreed on a deadlock, and on none. Asserts that they always do."""
    agreed = Counter()
    for seed in seeds:
        generator = random.Random(seed)
        calls = random_program(generator, generator.choice([2, 3, 3, 4]), generator.randrange(2, 6))
        if (truth := everything(calls, limit)) is not None:
            deadlock, ends = explored(calls)
            assert deadlock == truth[0], (seed, calls)
            assert deadlock or ends == truth[1], (seed, calls)
            agreed[deadlock, len(ends) > 1] += 1
    return agreed


def test_it_agrees_with_a_search_that_leaves_nothing_out():
    agreed = compare(range(40), limit=3_000)
    assert min(agreed[True, False] + agreed[True, True], agreed[False, True], agreed[False, False]) >= 3


@pytest.mark.exhaustive
def test_it_agrees_with_a_search_that_leaves_nothing_out_on_many_programs():
    agreed = compare(range(40, 1000), limit=40_000)
    assert agreed.total() > 900


def test_a_drawn_run_says_what_it_shows_in_words_and_an_open_exercise_is_not_drawn(capsys):
    assert repr(schedule_figures.explore(swap)).startswith("Deadlock")

    def stub(comm):
        raise NotImplementedError("your code here")

    assert schedule_figures.explore(stub) is None
    assert "isn't solved yet" in capsys.readouterr().out


def test_a_drawn_message_arrives_in_a_later_column_unless_both_calls_end_together():
    together = Picture(
        [[Box("Send", 1, 5, "")], [Box("Isend", 1, 2, ""), Box("Recv", 2, 5, "")]], [((0, 0), (1, 1))], [True, True]
    )
    assert schedule_figures.columns(together) == {(0, 0): 1, (1, 0): 0, (1, 1): 1}
    buffered = Picture([[Box("Send", 1, 1, "")], [Box("Recv", 2, 5, "")]], [((0, 0), (1, 0))], [True, True])
    assert schedule_figures.columns(buffered) == {(0, 0): 0, (1, 0): 1}
