"""The exercises of 03_horovod_pytorch accept the solutions, and reject wrong answers with the hint that names the
mistake."""

from functools import partial

import pytest
from judge.answers import solution, variant, written
from judge.verdicts import Verdicts, planted

from workshop_lib.lessons.horovod_pytorch import judge as horovod_torch

pytestmark = pytest.mark.usefixtures("healthy")

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
SCALED = '["lr"] *= hvd.size()'
WRAPPED = "hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters()"
PART = "slice(hvd.rank(), None, hvd.size())"
RESULT = "return correct.item() / len(labels)"
AVERAGE = 'op=hvd.Sum, name="correct"'
OWN = f"correct = hvd.allreduce(correct, {AVERAGE})"
SHARE = "correct = correct.double() / len(labels[part])\n    correct = hvd.allreduce(correct, "
WHOLE = "return correct.item()"
BLOCK = "[i % len(labels) for i in range(hvd.rank() * each, (hvd.rank() + 1) * each)]"
KNOWN = {
    "make_distributed": {
        "nothing": ([("return optimizer", "optimizer")], horovod_torch.NO_OPTIMIZER_HINT),
        "plain": (
            [("optimizer = hvd", "plain, optimizer = optimizer, hvd"), ("return optimizer", "return plain")],
            horovod_torch.PLAIN_HINT,
        ),
        "weights not sent": (
            [("hvd.broadcast_parameters(model.state_dict(), root_rank=0)", "pass")],
            horovod_torch.NOT_SENT_HINT,
        ),
        "another root": (
            [("(model.state_dict(), root_rank=0)", "(model.state_dict(), root_rank=hvd.size() - 1)")],
            horovod_torch.ROOT_HINT,
        ),
        "some weights": ([("(model.state_dict()", "(model[0].state_dict()")], horovod_torch.SOME_SENT_HINT),
        **{
            f"the rate times size to the {power}": ([(SCALED, f'["lr"] *= hvd.size() ** {float(power)}')], hint)
            for power, hint in horovod_torch.RATE_HINTS.items()
        },
        "state lost": ([("optimizer.load_state_dict(state)", "pass")], horovod_torch.LOST_HINT),
        "state not sent": (
            [("hvd.broadcast_optimizer_state(optimizer, root_rank=0)", "pass")],
            horovod_torch.STATE_HINT,
        ),
        "summed": ([(WRAPPED, f"{WRAPPED}, op=hvd.Sum")], horovod_torch.SUM_HINT),
        "compressed": ([(WRAPPED, f"{WRAPPED}, compression=hvd.Compression.fp16")], horovod_torch.COMPRESSED_HINT),
    },
    "finish_epoch": {
        "all images": ([(PART, "slice(None)")], horovod_torch.UNSHARDED_HINT),
        "parts by local rank": ([(PART, PART.replace("rank", "local_rank"))], horovod_torch.LOCAL_PART_HINT),
        "parts too short": ([(PART, f"(lambda each: {BLOCK})(len(labels) // hvd.size())")], horovod_torch.MISSING_HINT),
        "parts filled up": (
            [(PART, f"(lambda each: {BLOCK})(-(-len(labels) // hvd.size()))")],
            horovod_torch.AGAIN_HINT,
        ),
        "of its own part": (
            [(OWN, "pass"), (RESULT, "return correct.item() / len(labels[part])")],
            horovod_torch.OWN_PART_HINT,
        ),
        "mean of parts": ([(OWN, f"{SHARE}name='share')"), (RESULT, WHOLE)], horovod_torch.MEAN_HINT),
        "sum of parts": ([(OWN, f"{SHARE}op=hvd.Sum, name='share')"), (RESULT, WHOLE)], horovod_torch.SHARES_HINT),
        "averaged": ([(OWN, "correct = hvd.allreduce(correct.double(), name='mean')")], horovod_torch.AVERAGE_HINT),
        "averaged, whole numbers": ([("op=hvd.Sum, ", "")], horovod_torch.AVERAGE_HINT),
        "a count": ([(RESULT, WHOLE)], horovod_torch.COUNT_HINT),
        "its own count": ([(OWN, "pass")], horovod_torch.OWN_COUNT_HINT),
        "all save": ([("if hvd.rank() == 0", "if True")], horovod_torch.ALL_SAVE_HINT),
        "nobody saves": ([("save()\n", "save\n")], horovod_torch.NO_SAVE_HINT),
        "saved twice": ([("        save()\n", "        save(); save()\n")], horovod_torch.SAVED_TWICE_HINT),
    },
}

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
    wrong = planted(NOTEBOOK, KNOWN) | {
        "scaled by local_size": (
            lambda: variant(NOTEBOOK, "make_distributed", ("*= hvd.size()", "*= hvd.local_size()")),
            "counts only the ranks of one host",
        ),
        "a result on rank 0 alone": (
            lambda: epoch(MINE, TOTAL, "if rank == 0:", "    save()", "    return total / n"),
            "every rank needs the number",
        ),
    }
    never_ends = {
        "broadcast on rank 0 alone": (
            lambda: distributed(SCALE, WRAP, LOAD, f"if hvd.rank() == 0: {WEIGHTS}", STATE, RETURN),
            "all ranks must make the same calls",
        ),
        "allreduce on rank 0 alone": (
            lambda: epoch(MINE, "if rank == 0:", f"    {TOTAL}; save()", "import time; time.sleep(99)"),
            "all ranks must make the same calls",
        ),
    }


def test_horovod_is_shut_down_after_a_check(team):
    def running():
        import horovod.torch as hvd

        return hvd.is_initialized()

    horovod_torch.finish_epoch(solution(NOTEBOOK, "finish_epoch"))
    assert team.run(running) == [False, False]
