"""The exercise of 03_horovod_pytorch accepts the solution, and rejects wrong answers with the hint that names the
mistake."""

import re
from functools import partial

import pytest
from judge.answers import solution, written
from judge.verdicts import Verdicts, planted
from needs import needs

from workshop_lib.lessons.horovod_pytorch import judge as horovod_torch
from workshop_lib.maintain.generate import NOTEBOOKS

pytestmark = [needs("horovod"), pytest.mark.usefixtures("healthy")]

NOTEBOOK = "03_horovod_pytorch"
SEND = "hvd.broadcast_parameters(model.state_dict(), root_rank=0)"
WRAP = "wrapped = hvd.DistributedOptimizer(optimizer, model.named_parameters())"
WEIGHTS = "hvd.broadcast_parameters(model.state_dict(), 0)"
RETURN = "return wrapped"
RESULT = "return hvd.DistributedOptimizer("
WRAPPED = "hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters()"
KNOWN = {
    "make_distributed": {
        "nothing": ([(RESULT, "hvd.DistributedOptimizer(")], horovod_torch.NO_OPTIMIZER_HINT),
        "plain": (
            [("return hvd", "hvd"), (f"{WRAPPED})", f"{WRAPPED})\n    return optimizer")],
            horovod_torch.PLAIN_HINT,
        ),
        "weights not sent": ([(SEND, "pass")], horovod_torch.NOT_SENT_HINT),
        "another root": ([("root_rank=0", "root_rank=hvd.size() - 1")], horovod_torch.ROOT_HINT),
        "some weights": ([("(model.state_dict()", "(model[0].state_dict()")], horovod_torch.SOME_SENT_HINT),
        "summed": ([(WRAPPED, f"{WRAPPED}, op=hvd.Sum")], horovod_torch.SUM_HINT),
        "compressed": ([(WRAPPED, f"{WRAPPED}, compression=hvd.Compression.fp16")], horovod_torch.COMPRESSED_HINT),
    }
}

distributed = partial(written, "import torch", "make_distributed(model, optimizer, hvd)")


class TestHorovodTorch(Verdicts):
    check, notebook, names = horovod_torch, NOTEBOOK, ["make_distributed"]
    right = {
        "make_distributed, in another order": lambda: distributed(WRAP, WEIGHTS, RETURN),
        "make_distributed, without names": lambda: distributed(
            WEIGHTS, "wrapped = hvd.DistributedOptimizer(optimizer)", RETURN
        ),
        "make_distributed, with the optimizer's state": lambda: distributed(
            WEIGHTS, WRAP, "hvd.broadcast_optimizer_state(wrapped, 0)", RETURN
        ),
    }
    wrong = planted(NOTEBOOK, KNOWN)
    never_ends = {
        "broadcast on rank 0 alone": (
            lambda: distributed(WRAP, f"if hvd.rank() == 0: {WEIGHTS}", RETURN),
            "all ranks must make the same calls",
        )
    }


def test_horovod_is_shut_down_after_a_check(team):
    def running():
        import horovod.torch as hvd

        return hvd.is_initialized()

    horovod_torch.make_distributed(solution(NOTEBOOK, "make_distributed"))
    assert team.run(running) == [False, False]


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
