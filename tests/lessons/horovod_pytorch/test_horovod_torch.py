"""What the check of 03_horovod_pytorch leaves behind, and what the notebook says about checkpoints."""

import re

import numpy as np
import pytest
from exercises.answers import solution
from needs import needs

from workshop_lib.classroom.generate import NOTEBOOKS
from workshop_lib.exercises.network import backward, batch, gradient_of

from lessons.horovod_pytorch import judge as horovod_torch

pytestmark = [needs("horovod"), pytest.mark.usefixtures("healthy")]

NOTEBOOK = "03_horovod_pytorch"


def test_horovod_is_shut_down_after_a_check(team):
    def running():
        import horovod.torch as hvd

        return hvd.is_initialized()

    horovod_torch.make_distributed(solution(NOTEBOOK, "make_distributed"))
    assert team.run(running) == [False, False]


def test_the_solution_averages_what_one_process_has(team):
    def gradients(make_distributed):
        with horovod_torch.running() as hvd:
            model, optimizer = horovod_torch.built(hvd.rank())
            wrapped = make_distributed(model, optimizer, hvd)
            backward(model, [batch(hvd.rank(), 0)])
            wrapped.synchronize()
            size = hvd.size()
        whole = backward(horovod_torch.built(0)[0], [batch(rank, 0) for rank in range(size)])
        return gradient_of(model), whole

    for averaged, whole in team.run(gradients, solution(NOTEBOOK, "make_distributed")):
        assert np.allclose(averaged, whole, rtol=0, atol=1e-12)


def test_the_lines_for_a_checkpoint_keep_its_momentum_on_all_ranks(team):
    """The notebook shows these lines as text, so nothing else runs them."""
    text = (NOTEBOOKS / "source" / f"{NOTEBOOK}.py").read_text(encoding="utf-8")
    [shown] = re.findall(r"# ```python\n(.*?)# ```\n", text, flags=re.DOTALL)
    lines = re.sub("^# ", "", shown, flags=re.MULTILINE)

    def momentum(lines, make_distributed):
        import horovod.torch as hvd
        import torch

        hvd.init()
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if hvd.rank() == 0:
            model(torch.ones(1)).backward()
            optimizer.step()
        names = {"hvd": hvd, "model": model, "optimizer": optimizer, "make_distributed": make_distributed}
        exec(lines, names)
        hvd.shutdown()
        return names["optimizer"].state[model.bias]["momentum_buffer"].item()

    assert team.run(momentum, lines, solution(NOTEBOOK, "make_distributed")) == [1.0, 1.0]
