"""Attention that ranks share is full attention, on 2 and on 4 ranks, and sends what the formulas say.

float32 has 24 bits, and sums are taken in another order, so numbers differ in the last of them.
"""

import sys

import pytest
import torch
from exercises.answers import solution
from on_torchrun import assert_same_on_one_and_two_ranks
from our_ranks import on_every_rank

from workshop_lib.errors import InputError

from lessons.context_parallelism import emulated, other_ways, ring
from lessons.context_parallelism.blocks import BlockAttention, contiguous
from lessons.context_parallelism.compare import with_full_attention
from lessons.context_parallelism.figures import idle
from lessons.context_parallelism.judge import NOTEBOOK, scores_in_step

RANKS = 4
ROUNDING = 3e-6  # of the largest number


def on_rings(seen: list, merge, ring_attention, zigzag) -> None:
    """On a rank: what each way sends, and how far it is from full attention, by ranks and order."""
    from mpi4py import MPI

    torch.set_num_threads(1)
    world = MPI.COMM_WORLD

    def forward(query, key, value, *others):
        key.numpy()  # as learners do who send it as it is
        return ring_attention(query, key, value, *others)

    def in_a_ring(query, key, value, attend, comm):
        return ring.with_backward(forward, query, key, value, attend, merge, comm)

    ways = [(in_a_ring, contiguous), (in_a_ring, zigzag), (other_ways.gathered, zigzag)]
    ways += [(other_ways.ulysses, contiguous)]
    for size in (1, 2, 4):
        comm = world.Split(world.rank // size)
        for way, order in ways:
            seen.append((size, way.__name__, order.__name__, with_full_attention(way, order, comm)))
        comm.Free()


def measured(*answers) -> list:
    seen: list = []
    on_rings(seen, *answers)
    return seen


@pytest.fixture(scope="module")
def rings(team):
    """By rank: the rows of on_rings."""
    import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import this file
    answers = [solution(NOTEBOOK, name) for name in ("merge", "ring_attention", "zigzag")]
    return team.run(measured, *answers, timeout=60, show=False)


def test_shared_attention_and_its_gradients_are_those_of_one_process(rings):
    for size, way, order, compared in rings[0]:
        print(size, way, order, compared)
        assert max(compared[:4]) < ROUNDING


def test_each_rank_sends_what_the_formulas_say(rings):
    blocks = {"in_a_ring": (1, 2), "gathered": (1, 1)}
    for rows in rings:
        for size, way, _, compared in rows:
            sent = compared.forward_blocks, compared.backward_blocks
            if way == "ulysses":  # each head has keys of its own
                assert sent == pytest.approx((2 * (size - 1) / size,) * 2)
            else:
                assert sent == tuple(times * (size - 1) for times in blocks[way])


def test_zigzag_leaves_no_rank_idle(rings):
    for size in (2, 4):
        idle_in = {}
        for order in ("contiguous", "zigzag"):
            of_ranks = [
                compared.scores
                for rows in rings
                for ranks, way, name, compared in rows
                if (ranks, way, name) == (size, "in_a_ring", order)
            ]
            idle_in[order] = idle(of_ranks)
        assert idle_in == {"contiguous": pytest.approx((size - 1) / (2 * size)), "zigzag": 0}


def test_in_zigzag_each_step_takes_half_a_block_after_the_first():
    zigzag = solution(NOTEBOOK, "zigzag")
    positions = [zigzag(64, rank, 4) for rank in range(4)]
    assert [scores_in_step(positions, step) for step in range(4)] == [[256] * 4, *[[128] * 4] * 3]


GPU = {"flop_per_s": 400e12, "bytes_per_s": 50e9}
BLOCK_MS = 1e3 * 4 * 4000**2 * emulated.WIDTH / GPU["flop_per_s"]
MESSAGE_MS = 1e3 * 4 * 4000 * emulated.KV_WIDTH / GPU["bytes_per_s"]


@pytest.mark.parametrize("tokens", [1000, 4000])
def test_only_an_overlapped_ring_with_enough_tokens_hides_its_messages(team, tokens):
    """In order, the last rank computes four whole blocks, and 2,000 tokens take as long to compute as to send."""
    merge = solution(NOTEBOOK, "merge")
    compute_ms = BLOCK_MS * (tokens / 4000) ** 2
    send_ms = MESSAGE_MS * tokens / 4000
    expected = {
        "ring_attention": 4 * compute_ms + 3 * send_ms,
        "overlapped_ring": compute_ms + 3 * max(compute_ms, send_ms),
    }
    for name, end_ms in expected.items():
        answer = solution(NOTEBOOK, name)
        last = team.run(emulated.run, answer, merge, contiguous, tokens, **GPU, timeout=60, show=False)[3]
        assert last.end_ms == pytest.approx(end_ms, rel=0.05, abs=0.03)  # each message has 9.6 us of latency
        assert last.waits == pytest.approx(1 - 4 * compute_ms / end_ms, abs=0.07)


@on_every_rank
def test_heads_that_do_not_divide_are_refused():
    from mpi4py import MPI

    parts = torch.zeros(3, 1, 6, 8, 4)
    attend = BlockAttention([contiguous(32, rank, 4) for rank in range(4)], MPI.COMM_WORLD.rank)
    with pytest.raises(InputError, match="6 heads don't divide by 4 ranks: use fewer ranks, or a ring"):
        other_ways.ulysses(*parts, attend, MPI.COMM_WORLD)


def test_the_script_to_take_home_takes_the_steps_of_one_process(tmp_path, capsys):
    """About 20 s for two starts."""
    assert_same_on_one_and_two_ranks(tmp_path, capsys, r"loss ([\d.]+)", "context_parallel.py", "--tokens", 256)
