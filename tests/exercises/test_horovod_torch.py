"""The exercises of 03_horovod_pytorch accept the solutions, and reject wrong answers with the hint that names the
mistake."""

from functools import partial

import pytest
from exercises.answers import solution, variant, written
from exercises.verdicts import Verdicts

from workshop_lib.exercises import horovod_torch

pytest.importorskip("horovod", reason="Horovod is not installed")

NOTEBOOK = "03_horovod_pytorch"
SCALE = "optimizer.param_groups[0]['lr'] *= hvd.size()"
WRAP = "wrapped = hvd.DistributedOptimizer(optimizer, model.named_parameters())"
LOAD = "wrapped.load_state_dict(optimizer.state_dict())"
WEIGHTS = "hvd.broadcast_parameters(model.state_dict(), 0)"
STATE = "hvd.broadcast_optimizer_state(wrapped, 0)"
EARLY_STATE = "hvd.broadcast_optimizer_state(optimizer, 0)"
RETURN = "return wrapped"
MINE = "mine = count(slice(rank, None, size))"
TOTAL = "total = hvd.allreduce(mine, op=hvd.Sum, name='total').item()"
SAVE = "if rank == 0: save()"

distributed = partial(written, "import torch", "make_distributed(model, optimizer, hvd)")
epoch = partial(
    written,
    "import torch",
    "finish_epoch(model, images, labels, save, hvd)",
    "rank, size, n = hvd.rank(), hvd.size(), len(labels)",
    "def count(part):",
    "    with torch.no_grad():",
    "        return (model(images[part]).argmax(dim=1) == labels[part]).sum()",
)


class TestHorovodTorch(Verdicts):
    check, notebook, names = horovod_torch, NOTEBOOK, ["make_distributed", "finish_epoch"]
    right = {
        "make_distributed, in another order": lambda: distributed(
            WEIGHTS, WRAP, LOAD, STATE, "for group in wrapped.param_groups: group['lr'] *= hvd.size()", RETURN
        ),
        "make_distributed, the state broadcast before wrapping": lambda: distributed(
            SCALE, WEIGHTS, EARLY_STATE, WRAP, LOAD, RETURN
        ),
        "make_distributed, without names": lambda: distributed(
            SCALE, "wrapped = hvd.DistributedOptimizer(optimizer)", LOAD, WEIGHTS, STATE, RETURN
        ),
        "finish_epoch, in blocks": lambda: epoch(
            "start, stop = n * rank // size, n * (rank + 1) // size",
            "mine = count(slice(start, stop))",
            TOTAL,
            SAVE,
            "return total / n",
        ),
        "finish_epoch, weighted means": lambda: epoch(
            "part = range(rank, n, size)",
            "share = count(part) / len(part)",
            "both = torch.stack([share * len(part), torch.tensor(float(len(part)))]).double()",
            "correct, seen = hvd.allreduce(both, op=hvd.Sum, name='both')",
            SAVE,
            "return correct / seen",
        ),
        "finish_epoch, another rank saves": lambda: epoch(
            MINE, TOTAL, "if rank == size - 1: save()", "return total / n"
        ),
    }
    wrong = {
        "scaled by local_size": (
            lambda: variant(NOTEBOOK, "make_distributed", ("*= hvd.size()", "*= hvd.local_size()")),
            "counts the ranks of one host",
        ),
        "state broadcast before wrapping, and lost": (
            lambda: distributed(SCALE, WEIGHTS, EARLY_STATE, WRAP, RETURN),
            "begins without state",
        ),
        "not wrapped": (lambda: distributed(SCALE, WEIGHTS, EARLY_STATE, "return optimizer"), "averages nothing"),
        "everything by local rank": (
            lambda: variant(
                NOTEBOOK, "finish_epoch", ("hvd.rank()", "hvd.local_rank()"), ("hvd.size()", "hvd.local_size()")
            ),
            "rank is alone on its host",
        ),
        "a result on rank 0 alone": (
            lambda: epoch(MINE, TOTAL, "if rank == 0:", "    save()", "    return total / n"),
            "every rank needs the number",
        ),
        "one a host saves": (
            lambda: epoch(MINE, TOTAL, "if hvd.local_rank() == 0: save()", "return total / n"),
            "once on every host",
        ),
    }
    never_ends = {
        "broadcast on rank 0 alone": (
            lambda: distributed(SCALE, WRAP, LOAD, f"if hvd.rank() == 0: {WEIGHTS}", STATE, RETURN),
            "all ranks must make the same calls",
        ),
        "allreduce on rank 0 alone": (
            lambda: epoch(MINE, "if rank == 0:", f"    {TOTAL}; save()", "import time; time.sleep(99)"),
            "all ranks must call it",
        ),
    }


def test_horovod_is_shut_down_after_a_check(team):
    def running():
        import horovod.torch as hvd

        return hvd.is_initialized()

    horovod_torch.finish_epoch(solution(NOTEBOOK, "finish_epoch"))
    assert team.run(running) == [False, False]
