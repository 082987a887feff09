"""The ring and the flat arrays that the exercises of 06 are about, and what the notebook says of PyTorch."""

import sys

import cloudpickle
import numpy as np
import pytest
import torch
from drawn import check_layout
from exercises.answers import solution
from thread_ranks import run_on_threads
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from workshop_lib import ranks
from workshop_lib.training import memory
from workshop_lib.training.collectives import ring
from workshop_lib.training.collectives.counting import CountingComm, rounds
from workshop_lib.training.collectives.traffic import Traffic
from workshop_lib.training.optimizers import orthogonal

from lessons.zero_and_fsdp import by_hand, figures
from lessons.zero_and_fsdp import judge as check
from lessons.zero_and_fsdp.by_hand import fill, flat_gradient, flat_weights, free

pytestmark = pytest.mark.usefixtures("healthy")

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import this file


def test_parts_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="7 elements do not divide by 2 ranks: pad them with 1 zeros"):
        ring.part(7, 0, 2)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_rank_gets_its_part_of_the_sum(size):
    n = 24

    def program(comm):
        counting = CountingComm(comm)
        array = np.arange(n, dtype=np.float64) * (1 + comm.rank)
        before = array.copy()
        part = ring.reduce_scatter(counting, array)
        assert np.array_equal(array, before)
        return part, counting

    by_rank = run_on_threads(program, size)
    total = np.arange(n) * sum(range(1, size + 1))
    for rank, (part, counting) in enumerate(by_rank):
        assert np.array_equal(part, total[ring.part(n, rank, size)])
        assert counting.messages_sent == size - 1 and counting.bytes_sent == 8 * n * (size - 1) // size
    assert rounds([counting.log for _, counting in by_rank]) == size - 1


def test_released_arrays_take_no_memory_and_come_back_for_the_views_that_autograd_keeps():
    layer = torch.nn.Linear(3, 2)
    before, inputs = layer.weight.detach().clone(), torch.ones(1, 3, requires_grad=True)
    flat = flat_weights([layer.weight, layer.bias], 5)
    assert len(flat) == 10 and flat[8:].tolist() == [0, 0] and torch.equal(layer.weight, before)
    values, output = flat.clone(), layer(inputs).sum()
    free(flat)
    assert memory.storage_bytes([layer.weight.data]) == 0
    fill(flat, values)
    output.backward()
    assert torch.equal(inputs.grad[0], before.sum(0))
    layer.bias.grad = None
    gradient = flat_gradient([layer.weight, layer.bias], 5)
    assert torch.equal(gradient, torch.tensor([1.0] * 6 + [0.0] * 4)), "zeros where backward left none"


def norms_under_fsdp() -> list[float]:
    """On a rank: the norm of the whole gradient, from PyTorch's clipping under FSDP and from one process."""
    comm = by_hand.join()
    norms = []
    for model in (by_hand.with_fsdp(by_hand.perceptron(width=64)), by_hand.perceptron(width=64)):
        sharded = not norms
        images, labels = by_hand.batch(0, comm.rank, comm.size) if sharded else by_hand.global_batch(0, comm.size)
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        norms.append((norm.full_tensor() if sharded else norm).item())
    return norms


def test_clipping_under_fsdp_uses_the_norm_over_all_ranks(team):
    for sharded, whole in team.run(norms_under_fsdp):
        assert sharded == pytest.approx(whole, rel=1e-5)


def runs_by_hand(classes: list) -> list:
    return [by_hand.train(make, steps=1) for make in classes] + [
        by_hand.train_fsdp(by_hand.with_fsdp(by_hand.perceptron()), steps=1)
    ]


def test_the_runs_of_the_notebook_count_what_they_cost(team):
    classes = [solution(check.NOTEBOOK, name) for name in ("Zero1", "Zero2", "Zero3")]
    for costs in team.run(runs_by_hand, classes):
        first, second, third, fsdp = costs
        held = [round(sum(cost.held_bytes.values()) / cost.parameters) for cost in costs]
        assert held == [8, 6, 4, 4], "the first step creates the optimizer's state only after this"
        assert [cost.sent for cost in costs] == pytest.approx([1, 1, 1.5, 1.5]), "stage 3 sends as much as FSDP"
        assert fsdp.calls["allgather"] == 8
        assert max(cost.distance for cost in costs) < 1e-3
        peaks = [cost.peak_bytes / cost.parameters for cost in costs]
        assert peaks[0] == pytest.approx(8) and 6 < peaks[1] < 8, "whole gradients come on top"
        assert 4 < peaks[2] < 8 and 4 < peaks[3] < 8, "whole layers come on top"
        assert "bytes per parameter" in repr(first) and "1.50 n bytes sent per step, in 8 allgathers" in repr(fsdp)
        calls = [(span.call, span.layer) for span in third.spans]
        forward = [(call, layer) for layer in range(4) for call in ("gather", "drop")]
        assert calls == forward + [(call, layer) for layer in (3, 2, 1, 0) for call in ("gather", "reduce", "drop")]
        figure = figures.over_time(third)
        check_layout(figure)
        assert "At most 4.2 of 11.7 MB of weights are in memory at once" in figure.description()


def sharded_and_whole() -> tuple[int, float]:
    """On a rank: the collectives of one matrix of Muon under DTensor, and how far it is from one process."""
    comm = by_hand.join()
    torch.manual_seed(0)
    matrix = torch.randn(256, 128)
    sharded = distribute_tensor(matrix, init_device_mesh("cpu", (comm.size,)), [Shard(0)])
    with Traffic() as traffic:
        result = orthogonal(sharded)
    return sum(traffic.calls.values()), (result.full_tensor() - orthogonal(matrix)).abs().max().item()


def test_a_sharded_matrix_of_muon_is_right_and_takes_sixteen_collectives(team):
    for collectives, difference in team.run(sharded_and_whole):
        assert collectives == 16 and difference < 1e-5


def stage_3_ms_twice(lookahead) -> list[float]:
    by_hand.join()
    return [by_hand.stage_3_ms(None), by_hand.stage_3_ms(lookahead)]


@pytest.mark.full
def test_looking_ahead_hides_most_gathers_of_stage_3_on_emulated_ranks():
    emulated = ranks.start(2, machine="ethernet-10g")
    waiting_ms, ahead_ms = emulated.run(stage_3_ms_twice, solution(check.NOTEBOOK, "Lookahead"))[0]
    assert 24 < ahead_ms < 0.9 * waiting_ms, "four layers compute for 24 ms"
