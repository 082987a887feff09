"""The outer step against PyTorch's optimizer, and the figure of what a byte buys."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from workshop_lib.exercises import judge
from workshop_lib.notebook.results.records import RecordError

from lessons.less_communication import figures
from lessons.less_communication.runs import KIND, Rounds, ways

outer_step = ways()["DiLoCo, 8 steps alone"].outer
ALONE = SimpleNamespace(size=1, Allreduce=lambda array, total: np.copyto(total, array))  # one rank's communicator


def test_the_outer_step_is_sgd_with_nesterovs_momentum():
    random = np.random.default_rng(1)
    weights, velocity = random.normal(size=7), np.zeros(7)
    parameter = torch.nn.Parameter(torch.tensor(weights))
    optimizer = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    for _ in range(5):
        reached = weights + random.normal(size=7)
        parameter.grad = parameter.detach() - torch.tensor(reached)
        optimizer.step()
        weights, velocity = outer_step(ALONE, weights, reached, velocity)
        assert weights == pytest.approx(parameter.detach().numpy(), abs=1e-12)


def record(way, seed, nbytes, accuracy, steps=64):
    what = {"way": way, "seed": seed, "world_size": 4, "batch_size": 64, "steps": steps, "lr": 0.1, "momentum": 0.0}
    return {"kind": KIND, "what": what, "bytes_per_sample": nbytes, "test_accuracy": accuracy}


def test_runs_of_different_lengths_are_not_mixed():
    with pytest.raises(RecordError, match="steps = 128 and 64"):
        figures.less_communication([record("fp32", 1, 1277.0, 0.9, steps=steps) for steps in (64, 128)])


def test_an_unsolved_exercise_gives_way_to_the_librarys_own(capsys):
    def stub():
        raise NotImplementedError("your code here")

    class Layer:
        def forward(self):
            raise NotImplementedError("your code here")

    assert judge.own_or_library(outer_step, stub) is outer_step and judge.own_or_library(Rounds, Layer) is Rounds
    assert judge.own_or_library(partial(outer_step), stub) is not stub, "a partial is no stub"
    assert capsys.readouterr().out == ""
    assert judge.own_or_library(stub, outer_step) is outer_step
    assert capsys.readouterr().out == "stub isn't solved yet, so the library's own takes its place here.\n"
    assert judge.own_or_library(Layer, Rounds) is Rounds, "a method of a class may be the stub"
    stub.__name__ = "outer_step"
    assert judge.own_or_solution(stub, "07c_less_communication").__name__ == "outer_step"
    assert capsys.readouterr().out.endswith("outer_step isn't solved yet, so the solution takes its place here.\n")
    assert judge.own_or_solution(outer_step, "no notebook") is outer_step, "no solution is loaded"
