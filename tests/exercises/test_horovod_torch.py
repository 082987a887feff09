"""The checks of 03_horovod_pytorch accept right answers and say of wrong ones what is wrong."""

import pytest
from exercises.answers import solution, variant, written
from exercises.verdicts import Verdicts

from workshop_lib.exercises import horovod_torch as check

pytest.importorskip("horovod", reason="Horovod is not installed")

NOTEBOOK = "03_horovod_pytorch"
NAMED = "model.named_parameters())"
NAMES = ["make_distributed", "finish_epoch"]
SCALE = "optimizer.param_groups[0]['lr'] *= hvd.size()"
WRAP = "wrapped = hvd.DistributedOptimizer(optimizer, model.named_parameters())"
LOAD = "wrapped.load_state_dict(optimizer.state_dict())"
WEIGHTS = "hvd.broadcast_parameters(model.state_dict(), 0)"
STATE = "hvd.broadcast_optimizer_state(wrapped, 0)"
RETURN = "return wrapped"


def distributed(*lines: str):
    return written("import torch", "make_distributed(model, optimizer, hvd)", *lines)


def epoch(*lines: str):
    """An answer to finish_epoch that has counted right answers of `part`, and saves on rank 0."""
    return written(
        "import torch, numpy as np",
        "finish_epoch(model, images, labels, save, hvd)",
        "rank, size, n = hvd.rank(), hvd.size(), len(labels)",
        "def count(part):",
        "    with torch.no_grad():",
        "        return (model(images[part]).argmax(dim=1) == labels[part]).sum()",
        *lines,
    )


MINE = "mine = count(slice(rank, None, size))"
TOTAL = "total = hvd.allreduce(mine, op=hvd.Sum, name='total').item()"
SAVE = "if rank == 0: save()"

RIGHT = {
    "make_distributed, in another order": lambda: distributed(WEIGHTS, WRAP, LOAD, STATE, *[
        "for group in wrapped.param_groups: group['lr'] *= hvd.size()", RETURN
    ]),
    "make_distributed, the state broadcast before wrapping": lambda: distributed(
        SCALE, WEIGHTS, "hvd.broadcast_optimizer_state(optimizer, 0)", WRAP, LOAD, RETURN
    ),
    "make_distributed, without names": lambda: distributed(
        SCALE, "wrapped = hvd.DistributedOptimizer(optimizer)", LOAD, WEIGHTS, STATE, RETURN
    ),
    "finish_epoch, in blocks": lambda: epoch(
        "start, stop = n * rank // size, n * (rank + 1) // size",
        "mine = count(slice(start, stop))", TOTAL, SAVE, "return total / n",
    ),
    "finish_epoch, weighted means": lambda: epoch(
        "part = range(rank, n, size)", "share = count(part) / len(part)",
        "both = torch.stack([share * len(part), torch.tensor(float(len(part)))]).double()",
        "correct, seen = hvd.allreduce(both, op=hvd.Sum, name='both')", SAVE, "return correct / seen",
    ),
    "finish_epoch, another rank saves": lambda: epoch(
        MINE, TOTAL, "if rank == size - 1: save()", "return total / n"
    ),
}  # fmt: skip
WRONG = {
    "weights not broadcast": (lambda: distributed(SCALE, WRAP, LOAD, STATE, RETURN), "was forgotten"),
    "broadcast from the last rank": (
        lambda: distributed(SCALE, WRAP, LOAD, WEIGHTS.replace("0)", "hvd.size() - 1)"), STATE, RETURN),
        "`root_rank=0`",
    ),
    "first layer broadcast": (
        lambda: distributed(SCALE, WRAP, LOAD, WEIGHTS.replace("model.", "model[0]."), STATE, RETURN),
        "only some of rank 0's weights",
    ),
    "learning rate not scaled": (
        lambda: distributed(WRAP, LOAD, WEIGHTS, STATE, RETURN),
        "still that of one process",
    ),
    "scaled by local_size": (
        lambda: variant(NOTEBOOK, "make_distributed", ("*= hvd.size()", "*= hvd.local_size()")),
        "counts the ranks of one host",
    ),
    "divided by size": (
        lambda: variant(NOTEBOOK, "make_distributed", ("*= hvd.size()", "/= hvd.size()")),
        "was divided",
    ),
    "scaled twice": (
        lambda: distributed(SCALE, WRAP, LOAD, SCALE.replace("optimizer", "wrapped"), WEIGHTS, STATE, RETURN),
        "scaled twice",
    ),
    "state lost by wrapping": (
        lambda: distributed(SCALE, WRAP, WEIGHTS, STATE, RETURN),
        "begins without state",
    ),
    "state broadcast before wrapping, and lost": (
        lambda: distributed(SCALE, WEIGHTS, STATE.replace("wrapped", "optimizer"), WRAP, RETURN),
        "begins without state",
    ),
    "state not broadcast": (
        lambda: distributed(SCALE, WRAP, LOAD, WEIGHTS, RETURN),
        "does not have rank 0's momentum",
    ),
    "not wrapped": (
        lambda: distributed(SCALE, WEIGHTS, STATE.replace("wrapped", "optimizer"), "return optimizer"),
        "averages nothing",
    ),
    "wrapped, but the plain one returned": (
        lambda: distributed(SCALE, WRAP, LOAD, WEIGHTS, STATE, "return optimizer"),
        "averages nothing",
    ),
    "sum instead of mean": (
        lambda: variant(
            NOTEBOOK, "make_distributed", (NAMED, NAMED[:-1] + ", op=hvd.Sum)")
        ),
        "the sum over the ranks",
    ),
    "fp16": (
        lambda: variant(
            NOTEBOOK,
            "make_distributed",
            (NAMED, NAMED[:-1] + ", compression=hvd.Compression.fp16)"),
        ),
        "compressed",
    ),
    "optimizer not returned": (
        lambda: distributed(SCALE, WRAP, LOAD, WEIGHTS, STATE),
        "`return` the wrapped optimizer",
    ),
    "sharded by local rank": (
        lambda: epoch("mine = count(slice(hvd.local_rank(), None, size))", TOTAL, SAVE, "return total / n"),
        "chosen by `local_rank()`",
    ),
    "everything by local rank": (
        lambda: variant(
            NOTEBOOK, "finish_epoch", ("hvd.rank()", "hvd.local_rank()"), ("hvd.size()", "hvd.local_size()")
        ),
        "rank is alone on its host",
    ),
    "not sharded": (
        lambda: epoch("mine = count(slice(None))", SAVE, "return mine / n"),
        "Every rank tests all of them",
    ),
    "the rest dropped": (
        lambda: epoch(
            "each = n // size", "mine = count(slice(rank * each, (rank + 1) * each))", TOTAL, SAVE,
            "return total / (each * size)",
        ),
        "must be one longer",
    ),
    "padded": (
        lambda: epoch(
            "each = -(-n // size)", "mine = count(np.arange(rank * each, (rank + 1) * each) % n)", TOTAL,
            SAVE, "return total / (each * size)",
        ),
        "count some images twice",
    ),
    "own part": (
        lambda: epoch(MINE, SAVE, "return mine.item() / len(labels[rank::size])"),
        "its own part alone",
    ),
    "mean of unequal parts": (
        lambda: epoch(
            MINE, "share = mine.double() / len(labels[rank::size])", SAVE,
            "return hvd.allreduce(share, name='share').item()",
        ),
        "mean of the ranks' accuracies",
    ),
    "average of counts": (
        lambda: epoch(
            MINE, "mean = hvd.allreduce(mine.double(), name='correct').item()", SAVE, "return mean / n"
        ),
        "averages unless",
    ),
    "a count": (lambda: epoch(MINE, TOTAL, SAVE, "return total"), "number of right answers"),
    "own count over all": (lambda: epoch(MINE, SAVE, "return mine / n"), "divided its own count"),
    "a result on rank 0 alone": (
        lambda: epoch(MINE, TOTAL, "if rank == 0:", "    save()", "    return total / n"),
        "every rank needs the number",
    ),
    "all save": (lambda: epoch(MINE, TOTAL, "save()", "return total / n"), "all saved"),
    "one a host saves": (
        lambda: epoch(MINE, TOTAL, "if hvd.local_rank() == 0: save()", "return total / n"),
        "once on every host",
    ),
    "nobody saves": (lambda: epoch(MINE, TOTAL, "save", "return total / n"), "nobody called"),
}  # fmt: skip
NEVER_ENDS = {
    "broadcast on rank 0 alone": (
        lambda: distributed(SCALE, WRAP, LOAD, f"if hvd.rank() == 0: {WEIGHTS}", STATE, RETURN),
        "all ranks must make the same calls",
    ),
    "allreduce on rank 0 alone": (
        lambda: epoch(MINE, "if rank == 0:", f"    {TOTAL}; save()", "import time; time.sleep(99)"),
        "all ranks must call it",
    ),
}


class TestVerdicts(Verdicts):
    check, notebook, names = check, NOTEBOOK, NAMES
    right, wrong, never_ends = RIGHT, WRONG, NEVER_ENDS


def test_horovod_is_shut_down_after_a_check(team):
    def running():
        import horovod.torch as hvd

        return hvd.is_initialized()

    check.finish_epoch(solution(NOTEBOOK, "finish_epoch"))
    assert team.run(running) == [False, False]
