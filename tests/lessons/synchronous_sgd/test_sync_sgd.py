"""The exercises of 02 accept the solutions, and reject wrong answers with the hint that names the mistake."""

from functools import partial

import pytest
from judge.answers import written
from judge.verdicts import Verdicts, planted

from workshop_lib.lessons.synchronous_sgd import judge as check

pytestmark = pytest.mark.usefixtures("healthy")

NOTEBOOK = "02_synchronous_sgd"
NAMES = ["average_gradients", "broadcast_weights", "weighted_mean", "train_epoch", "average_in_one_message"]
RANKS = 3  # with two, a swap with one partner is as good as an allreduce
average = partial(written, "import numpy as np\nimport torch", "average_gradients(model, comm)")

LOOP = "for p in model.parameters():"
REDUCE = "comm.Allreduce(mine, total)"
WRITE = "p.grad.copy_(torch.from_numpy(total / comm.size))"
SEND = "comm.Bcast(array, root=0)"
STORE = "p.copy_(torch.from_numpy(array))"
WEIGH = "weighted = gradient * n_samples"
DIVIDE = "return total / comm.allreduce(n_samples)"
AVERAGE, STEP, SCHEDULE = "average(model, comm)", "optimizer.step()", "schedule.step()"
FLAT = "comm.Allreduce(flat.numpy(), total.numpy())"
PUT_BACK = "p.grad.copy_(piece.view(p.shape))"

WRONG = {
    "average_gradients": {
        "not divided": ([(" / comm.size", "")], "divide by comm.size"),
        "divided by the batch": ([("/ comm.size", "/ comm.size / 64")], "is 0.01562 times the mean"),
        "a local name": ([(WRITE, "grad = torch.from_numpy(total / comm.size)")], "still has its own"),
        "no gradient left": ([(WRITE, "p.grad = None")], "write into `p.grad`"),
        "written on rank 0 only": ([(WRITE, f"if comm.rank == 0: {WRITE}")], "all need the mean"),
        "only matrices": ([(LOOP, f"{LOOP}\n        if p.ndim == 1: continue")], "all of model.parameters()"),
        "parameters and gradients": ([(WRITE, f"{WRITE}; p.data.mul_(0.5)")], "average `p.grad`, not `p`"),
        "of two neighbors": (
            [
                (REDUCE, "comm.Sendrecv(mine, comm.rank ^ 1 if comm.rank < 2 else 2, recvbuf=total); total += mine"),
                ("total / comm.size", "total / 2"),
            ],
            "Allreduce gives every rank the sum over all ranks",
        ),
        "only roughly the same": ([(WRITE, f"{WRITE}; p.grad *= 1 + 1e-6 * comm.rank")], "they agree only roughly"),
    },
    "broadcast_weights": {
        "a local name": ([(STORE, "p = torch.from_numpy(array)")], "copy what arrives into the parameter"),
        "every other one": ([(LOOP, "for p in list(model.parameters())[::2]:")], "all of model.parameters()"),
        "scaled afterwards": ([(STORE, f"{STORE}; p.mul_(1.5)")], "and change nothing else"),
    },
    "weighted_mean": {
        "in place": ([(WEIGH, "gradient *= n_samples; weighted = gradient")], "`gradient * …`, not `gradient *= …`"),
        "nothing returned": ([(DIVIDE, "total / comm.allreduce(n_samples)")], "`return` the mean"),
        "one number": ([(DIVIDE, "return comm.allreduce(n_samples)")], "an array like `gradient`"),
        "half of it": ([(DIVIDE, f"{DIVIDE} / 2 / comm.size")], "Weigh each gradient"),
    },
    "train_epoch": {
        "nothing averaged": ([(f"        {AVERAGE}\n", "")], "call `average` before the optimizer steps"),
        "averaged too late": (
            [(f"{AVERAGE}\n        {STEP}", f"{STEP}\n        {AVERAGE}")],
            "by then, the optimizer has used `p.grad`",
        ),
        "the schedule once": ([(f"        {SCHEDULE}", f"    {SCHEDULE}")], "The learning rate never changed"),
        "the first batch only": ([(SCHEDULE, f"{SCHEDULE}; return")], "took 1 of 2 batches"),
        "two steps a batch": ([(STEP, f"{STEP}; {STEP}")], "For each batch: clear the gradients"),
    },
    "average_in_one_message": {
        "six messages": (
            [(FLAT, "for p in parameters: p.grad = comm.allreduce(p.grad) / comm.size"), (PUT_BACK, "pass")],
            "they went in 6 messages",
        ),
        "put back the wrong way round": (
            [(PUT_BACK, "p.grad.copy_(piece.flip(0).view(p.shape))")],
            "in the order in which you put them in",
        ),
    },
}
NEVER_ENDS = {
    "average_gradients": {"on rank 0 only": ([(REDUCE, f"if comm.rank == 0: {REDUCE}")], "inside an `if`")},
    "broadcast_weights": {"on rank 0 only": ([(SEND, f"if comm.rank == 0: {SEND}")], "inside an `if`")},
    "weighted_mean": {
        "no samples, no call": ([(WEIGH, f"if n_samples == 0: return gradient\n    {WEIGH}")], "inside an `if`")
    },
    "train_epoch": {"averaged on rank 0 only": ([(AVERAGE, f"if comm.rank == 0: {AVERAGE}")], "inside an `if`")},
    "average_in_one_message": {"sent by rank 0 only": ([(FLAT, f"if comm.rank == 0: {FLAT}")], "inside an `if`")},
}


class TestSyncSgd(Verdicts):
    check, notebook, names = check, NOTEBOOK, NAMES
    right = {
        "one message, and calls that send nothing": lambda: written(
            "import torch",
            "average_in_one_message(model, comm)",
            "flat = torch.cat([p.grad.flatten() for p in model.parameters()])",
            "flat = torch.from_numpy(comm.allreduce(flat.numpy()) / comm.Get_size())",
            "for p, piece in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()])):",
            "    p.grad.copy_(piece.view(p.shape))",
        ),
        "one message for all parameters": lambda: average(
            "flat = torch.cat([p.grad.flatten() for p in model.parameters()]).numpy()",
            "mean = np.empty_like(flat)",
            "comm.Allreduce(flat, mean)",
            "mean, at = torch.from_numpy(mean / comm.size), 0",
            "for p in model.parameters():",
            "    p.grad.copy_(mean[at:at + p.numel()].view(p.shape))",
            "    at += p.numel()",
        ),
        "objects": lambda: average("for p in model.parameters():", "    p.grad = comm.allreduce(p.grad) / comm.size"),
        "one message in place": lambda: written(
            "import torch\nfrom mpi4py import MPI\nfrom torch.nn import utils",
            "average_in_one_message(model, comm)",
            "flat = utils.parameters_to_vector(p.grad for p in model.parameters())",
            "comm.Allreduce(MPI.IN_PLACE, flat.numpy())",
            "at = 0",
            "for p in model.parameters():",
            "    p.grad = (flat[at:at + p.numel()] / comm.size).view_as(p); at += p.numel()",
        ),
        "cleared after the step": lambda: written(
            "from torch.nn.functional import cross_entropy",
            "train_epoch(model, optimizer, schedule, batches, average, comm)",
            "for images, labels in batches:",
            "    cross_entropy(model(images), labels).backward()",
            "    average(model, comm)",
            "    optimizer.step(); schedule.step(); model.zero_grad()",
        ),
        "divided first": lambda: average(
            "for p in model.parameters():",
            "    mine, total = p.grad.numpy().copy() / comm.size, np.empty(p.shape, dtype=np.float32)",
            "    comm.Allreduce(mine, total)",
            "    p.grad.copy_(torch.from_numpy(total))",
        ),
    }
    wrong, never_ends = planted(NOTEBOOK, WRONG), planted(NOTEBOOK, NEVER_ENDS)
