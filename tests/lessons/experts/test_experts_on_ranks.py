"""Experts on ranks compute what one process does, send what the formula says, and a balance loss keeps them in use.

float32 has 24 bits, and sums are taken in another order, so numbers differ in the last of them.
"""

import re
import sys
from functools import partial

import pytest
import torch
from exercises.answers import code_cells, solution
from on_torchrun import assert_same_on_one_and_two_ranks
from our_ranks import on_every_rank

from lessons import experts
from lessons.experts.compare import EXPERTS, TOKENS, WIDTH, with_one_process
from lessons.experts.judge import NOTEBOOK
from lessons.experts.layer import capacity_of

RANKS = 4
ROUNDING = 3e-6  # of the largest number
WITHOUT_DROPS = 8.0  # a capacity for all tokens of a rank, even if they all want one of the 8 experts
ON_RANKS = re.compile("^%%ranks.*\n")


def answers() -> tuple:
    return solution(NOTEBOOK, "route"), solution(NOTEBOOK, "through_experts")


def compared(route, through) -> dict:
    """On a rank: how far experts on 1, 2 and 4 ranks are from one process, and what they send."""
    from mpi4py import MPI

    torch.set_num_threads(1)
    found = {}
    for size in (1, 2, 4):
        comm = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank // size)
        for k, factor in ((1, 1.0), (1, 1.25), (2, 1.25), (4, 0.5), (8, 1.0)):
            found[size, k, factor] = with_one_process(route, through, k, factor, comm)
        comm.Free()
    return found


def trained(program: str, route, through) -> dict:
    """On a rank: histories of the notebook's own training, on all ranks and alone, dense and with experts."""
    from mpi4py import MPI

    torch.set_num_threads(1)
    names = {"torch": torch, "MPI": MPI, "lesson": experts, "route": route, "through_experts": through}
    exec(program, names)
    train = names["train"]
    comm = MPI.COMM_WORLD
    same = {"seed": 1, "experts": 8, "hidden": 32, "steps": 4, "factor": WITHOUT_DROPS}
    long = {"comm": MPI.COMM_SELF, "seed": comm.rank + 1}
    return {
        "together": train(comm, **same),
        "alone": train(MPI.COMM_SELF, **same),
        "dense": train(experts=1, hidden=44, factor=1, **long),
        "free": train(experts=8, hidden=32, weight=0, **long),
        "balanced": train(experts=8, hidden=32, **long),
    }


@pytest.fixture(scope="module", autouse=True)
def by_value():
    import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import this file


@pytest.fixture(scope="module")
def proofs(team, by_value):
    return team.run(partial(compared, *answers()), timeout=60, show=False)


def test_outputs_and_gradients_are_those_of_one_process(proofs):
    for case, found in proofs[0].items():
        print(case, found)
        assert max(found[:4]) < ROUNDING


def test_each_rank_sends_what_the_formula_says(proofs):
    for of_rank in proofs:
        for (size, k, factor), found in of_rank.items():
            numbers = EXPERTS * capacity_of(TOKENS, k, EXPERTS, factor) * WIDTH
            assert found.forward_bytes == found.backward_bytes == 2 * (size - 1) / size * 4 * numbers
            assert found.formula_bytes == found.forward_bytes
            assert found.dropped > 0.3 if (k, factor) == (4, 0.5) else found.dropped < 0.3


def test_the_notebooks_training_is_that_of_one_process_and_balanced_experts_beat_a_dense_model(team, by_value):
    """About 20 s on two quiet cores. The dense model does the same work per token."""
    cells = [ON_RANKS.sub("", cell) for cell in code_cells(NOTEBOOK)[1]]
    program = "\n".join(cell for cell in cells if "def average_gradients" in cell or "def train(" in cell)
    histories = team.run(partial(trained, program, *answers()), timeout=240, show=False)
    for of_rank in histories:
        for together, alone in zip(of_rank["together"], of_rank["alone"], strict=True):
            assert together == pytest.approx(alone, rel=1e-4)
    seeds = {}
    for name in ("dense", "free", "balanced"):
        seeds[name] = torch.tensor([of_rank[name][-50:] for of_rank in histories]).mean(dim=1)
    print(seeds)
    losses = {name: of_seeds[:, 2] for name, of_seeds in seeds.items()}
    assert losses["balanced"].max() < losses["dense"].min() - 0.05, "experts are worth something"
    assert losses["free"].mean() > losses["balanced"].mean() + 0.1, "a collapse costs what they are worth"
    assert (seeds["free"][:, 0] > seeds["balanced"][:, 0] + 0.1).all(), "the busiest expert gets more"
    assert (seeds["free"][:, 1] > seeds["balanced"][:, 1] + 0.1).all(), "more tokens are dropped"
    assert seeds["balanced"][:, 0].mean() < 0.25


@pytest.mark.full
@on_every_rank
def test_fsdp_divides_a_gradient_by_its_own_ranks_unless_it_is_told_the_number_of_all_data_ranks():
    """So an expert's gradient would be too large: on its copies, it's a sum over all data ranks already."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    from lessons.zero_and_fsdp import by_hand

    comm = by_hand.join()
    gradients = []
    for divides_by in (comm.size, 4 * comm.size):
        layer = torch.nn.Linear(comm.size, 1)
        fully_shard(layer, mesh=DeviceMesh("cpu", list(range(comm.size))))
        if divides_by != comm.size:
            layer.set_gradient_divide_factor(divides_by)
            layer.set_force_sum_reduction_for_comms(True)  # gloo can only sum
        layer(torch.full((1, comm.size), comm.rank + 1.0)).sum().backward()
        gradients.append(layer.weight.grad.full_tensor())
    mean = (comm.size + 1) / 2
    assert gradients[0].unique().tolist() == [mean] and gradients[1].unique().tolist() == [mean / 4]


def test_the_script_to_take_home_takes_the_steps_of_one_process(tmp_path, capsys):
    """About 20 s for two starts."""
    log = r"loss ([\d.]+), balance ([\d.]+), 0% dropped"
    assert_same_on_one_and_two_ranks(tmp_path, capsys, log, "expert_parallel.py", "--capacity", WITHOUT_DROPS)
