"""What 03_horovod_pytorch shows as code: what `make_distributed` does, and the lines for a checkpoint."""

import re
import sys

import cloudpickle
import numpy as np
import pytest
from exercises.answers import solution
from needs import needs

from workshop_lib.classroom.generate import NOTEBOOKS
from workshop_lib.exercises.network import backward, batch, gradient_of, network, weights_of

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import this file
pytestmark = [needs("horovod"), pytest.mark.usefixtures("healthy")]

NOTEBOOK = "03_horovod_pytorch"


def averaged(make_distributed) -> tuple:
    """On a rank: the weights after the call and the gradient after a backward pass; both in one process."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    model = network(seed=1 + hvd.rank())
    optimizer = make_distributed(model, torch.optim.SGD(model.parameters(), 0.05), hvd)
    weights = weights_of(model)
    backward(model, [batch(hvd.rank(), 0)])
    optimizer.synchronize()
    whole = network(seed=1)
    found = (
        [weights, gradient_of(model)],
        [weights_of(whole), backward(whole, [batch(r, 0) for r in range(hvd.size())])],
    )
    hvd.shutdown()
    return found


def test_the_ranks_start_alike_and_average_what_one_process_has(team):
    for got, whole in team.run(averaged, solution(NOTEBOOK, "make_distributed")):
        assert all(np.allclose(mine, right, rtol=0, atol=1e-12) for mine, right in zip(got, whole, strict=True))


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
