"""The checks of 02 accept the solutions, and reject wrong answers with the hint that names the mistake."""

from functools import partial

import pytest
from exercises.answers import solution, variant, written
from exercises.verdicts import Verdicts, planted

from workshop_lib.exercises import sync_sgd as check

NOTEBOOK = "02_synchronous_sgd"
NAMES = ["average_gradients", "broadcast_weights", "weighted_mean"]
IMPORTS = "import numpy as np\nimport torch"

LOOP = "for p in model.parameters():"
REDUCE = "comm.Allreduce(mine, total)"
WRITE = "p.grad.copy_(torch.from_numpy(total / comm.size))"
SEND = "comm.Bcast(array, root=0)"
STORE = "p.copy_(torch.from_numpy(array))"
SUM = "total = comm.allreduce(gradient * n_samples)"
DIVIDE = "return total / comm.allreduce(n_samples)"


def test_the_solutions_pass_on_three_ranks_and_some_mistakes_show_only_there(team):
    try:
        team.restart(3)
        for name in NAMES:
            verdict = getattr(check, name)(solution(NOTEBOOK, name))
            assert verdict.passed is True, verdict
        neighbours = variant(
            NOTEBOOK,
            "average_gradients",
            (REDUCE, "comm.Sendrecv(mine, comm.rank ^ 1 if comm.rank < 2 else 2, recvbuf=total); total += mine"),
            ("total / comm.size", "total / 2"),
        )
        verdict = check.average_gradients(neighbours)
        assert verdict.passed is False
        assert "neither a sum nor a mean" in verdict.hint, verdict
    finally:
        team.restart(2)


def answers(lines: str, name: str = "average_gradients(model, comm)"):
    return written(IMPORTS, name, *lines.splitlines())


RIGHT = {
    "one message for all parameters": """\
flat = torch.cat([p.grad.flatten() for p in model.parameters()]).numpy()
mean = np.empty_like(flat)
comm.Allreduce(flat, mean)
mean, at = torch.from_numpy(mean / comm.size), 0
for p in model.parameters():
    p.grad.copy_(mean[at:at + p.numel()].view(p.shape))
    at += p.numel()""",
    "objects": """\
for p in model.parameters():
    p.grad = comm.allreduce(p.grad) / comm.size""",
    "divided first": """\
for p in model.parameters():
    mine, total = p.grad.numpy().copy() / comm.size, np.empty(p.shape, dtype=np.float32)
    comm.Allreduce(mine, total)
    p.grad.copy_(torch.from_numpy(total))""",
}


WRONG = {
    "average_gradients": {
        "not divided": ([(" / comm.size", "")], "divide by comm.size"),
        "divided twice": ([("/ comm.size", "/ comm.size / comm.size")], "once more"),
        "divided by the batch": ([("/ comm.size", "/ comm.size / 64")], "times the gradient of the global"),
        "not sent": ([(REDUCE, "total[:] = mine"), (" / comm.size", "")], "still has its own gradient"),
        "not sent, yet divided": ([(REDUCE, "total[:] = mine")], "neither a sum nor a mean"),
        "not written back": ([(WRITE, "mine = total / comm.size")], "still has its own gradient"),
        "a local name": ([(WRITE, "grad = torch.from_numpy(total / comm.size)")], "still has its own"),
        "nothing": ([(REDUCE, "return")], "still has its own gradient"),
        "zeroed": ([(WRITE, "p.grad.zero_()")], "neither a sum nor a mean"),
        "no gradient left": ([(WRITE, "p.grad = None")], "write into `p.grad`"),
        "rank 0's, broadcast": ([(REDUCE, "comm.Bcast(mine); total = mine * comm.size")], "the gradient of rank 0"),
        "written on rank 0 only": ([(WRITE, f"if comm.rank == 0: {WRITE}")], "all ranks need the mean"),
        "reduced to rank 0": ([(REDUCE, "total[:] = 0; comm.Reduce(mine, total)")], "all ranks need the mean"),
        "only matrices": ([(LOOP, f"{LOOP}\n        if p.ndim == 1: continue")], "all of model.parameters()"),
        "not the last ones": ([(LOOP, "for p in list(model.parameters())[:-2]:")], "all of model.parameters()"),
        "the parameters": (
            [("p.grad.numpy()", "p.detach().numpy()"), ("p.grad.copy_", "p.data.copy_")],
            "average `p.grad`, not `p`",
        ),
        "parameters and gradients": ([(WRITE, f"{WRITE}; p.data.mul_(0.5)")], "average `p.grad`, not `p`"),
    },
    "broadcast_weights": {
        "not sent": ([(SEND, "pass")], "still has its own weights"),
        "not stored": ([(STORE, "pass")], "still has its own weights"),
        "a local name": ([(STORE, "p = torch.from_numpy(array)")], "copy what arrives into the parameter"),
        "from the last rank": ([(SEND, "comm.Bcast(array, root=comm.size - 1)")], "the root is rank 0"),
        "the mean": ([(SEND, "array = comm.allreduce(array) / comm.size")], "the mean of the ranks' weights"),
        "the sum": ([(SEND, "array = comm.allreduce(array)")], "the sum of the ranks' weights"),
        "every other one": ([(LOOP, "for p in list(model.parameters())[::2]:")], "all of model.parameters()"),
        "into the gradient": ([(STORE, "p.grad = torch.from_numpy(array)")], "still has its own weights"),
        "rounded": ([(STORE, "p.copy_(torch.from_numpy(array).half())")], "neither its own nor that of rank 0"),
    },
    "weighted_mean": {
        "the plain mean": (
            [(SUM, "total = comm.allreduce(gradient)"), (DIVIDE, "return total / comm.size")],
            "the plain mean over ranks",
        ),
        "the plain sum": (
            [(SUM, "total = comm.allreduce(gradient)"), (DIVIDE, "return total")],
            "the plain sum over ranks",
        ),
        "not divided": ([(DIVIDE, "return total")], "the sum over all samples"),
        "divided by the ranks": ([(DIVIDE, "return total / comm.size")], "divide by the number of samples"),
        "divided by its own count": ([(DIVIDE, "return total / n_samples")], "add up the counts as well"),
        "not added up": ([(SUM, "total = gradient * n_samples")], "add up the parts of all ranks"),
        "its own": ([(DIVIDE, "return gradient")], "returned its own gradient"),
        "divided once more": ([(DIVIDE, "return total / comm.allreduce(n_samples) / comm.size")], "divided once more"),
        "in place": (
            [(SUM, "gradient *= n_samples; total = comm.allreduce(gradient)")],
            "`gradient * …`, not `gradient *= …`",
        ),
        "nothing returned": ([(DIVIDE, "total / comm.allreduce(n_samples)")], "`return` the mean"),
        "one number": ([(DIVIDE, "return comm.allreduce(n_samples)")], "an array like `gradient`"),
    },
}
NEVER_ENDS = {
    "average_gradients": {
        "on rank 0 only": ([(REDUCE, f"if comm.rank == 0: {REDUCE}")], "inside an `if`"),
        "rank 0 does not take part": ([(LOOP, f"if comm.rank == 0: return\n    {LOOP}")], "inside an `if`"),
    },
    "broadcast_weights": {"rank 0 skips it": ([(SEND, f"if comm.rank != 0: {SEND}")], "inside an `if`")},
    "weighted_mean": {
        "no samples, no call": ([(SUM, f"if n_samples == 0: return gradient\n    {SUM}")], "inside an `if`")
    },
}


class TestVerdicts(Verdicts):
    check, notebook, names = check, NOTEBOOK, NAMES
    right = {title: partial(answers, lines) for title, lines in RIGHT.items()}
    wrong, never_ends = planted(NOTEBOOK, WRONG), planted(NOTEBOOK, NEVER_ENDS)


def test_a_broadcast_that_only_rank_0_calls_is_rejected(team):
    verdict = check.broadcast_weights(variant(NOTEBOOK, "broadcast_weights", (SEND, f"if comm.rank == 0: {SEND}")))
    assert verdict.passed is False, verdict


SPY = "import __ranks__\nfor p in model.parameters(): __ranks__.seen.add((comm.rank, tuple(p.shape)))"


@pytest.mark.parametrize("name", NAMES[:2])
def test_it_is_the_learners_function_that_runs_on_every_rank_with_the_whole_model(name, team):
    team.push(seen=set())
    verdict = getattr(check, name)(answers(SPY, f"{name}(model, comm)"))
    assert verdict.passed is False
    for rank, seen in enumerate(team.pull("seen")):
        assert {of for of, _ in seen} == {rank}
        assert len(seen) == 6, "each parameter of the model"


def test_two_functions_have_two_verdicts():
    right, wrong = solution(NOTEBOOK, NAMES[2]), variant(NOTEBOOK, NAMES[2], (DIVIDE, "return total"))
    assert [check.weighted_mean(function).passed for function in (right, wrong, right)] == [True, False, True]
