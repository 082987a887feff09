"""The checks of 02 accept the solutions, and reject wrong answers with the hint that names the mistake."""

import pytest
from exercises.answers import from_source, solution, stub, variant

from workshop_lib import ranks
from workshop_lib.notebook.exercises import sync_sgd as check

NOTEBOOK = "02_synchronous_sgd"
IMPORTS = "import numpy as np\nimport torch\nfrom mpi4py import MPI\n"
REDUCE = "comm.Allreduce(MPI.IN_PLACE, gradient)"
DIVIDE = "gradient /= comm.size"
WRITE = "p.grad.copy_(torch.from_numpy(gradient))"
LOOP = "for p in model.parameters():"
SEND = "comm.Bcast(weights, root=0)"


@pytest.fixture(scope="module", autouse=True)
def team():
    yield ranks.start(2)
    ranks.stop()


@pytest.mark.parametrize("name", ["average_gradients", "broadcast_weights"])
def test_the_solution_passes_and_the_stub_is_unsolved(name):
    assert getattr(check, name)(solution(NOTEBOOK, name)).passed is True
    assert getattr(check, name)(stub(NOTEBOOK, name)).passed is None


def test_the_solutions_pass_on_more_ranks():
    ranks.start(3)
    try:
        for name in ("average_gradients", "broadcast_weights"):
            verdict = getattr(check, name)(solution(NOTEBOOK, name))
            assert verdict.passed is True, verdict
    finally:
        ranks.start(2)


@pytest.mark.parametrize(
    ("replacements", "hint"),
    [
        ([(DIVIDE, "pass")], "divide by comm.size"),
        ([(DIVIDE, "gradient /= comm.size ** 2")], "once more"),
        ([(DIVIDE, "gradient /= comm.size * 64")], "times the gradient of the global batch"),
        ([(REDUCE, "pass"), (DIVIDE, "pass")], "still has its own gradient"),
        ([(WRITE, "pass"), ("p.grad)", "p.grad.clone())")], "still has its own"),
        ([(WRITE, "p.grad = None")], "write into `p.grad`"),
        ([(REDUCE, "comm.Bcast(gradient)"), (DIVIDE, "pass")], "the gradient of rank 0"),
        ([(LOOP, LOOP + "\n        if p.ndim == 1: continue")], "go through all of model.parameters()"),
        ([(LOOP, "for p in list(model.parameters())[:-2]:")], "go through all of model.parameters()"),
        ([("p.grad)", "p.detach())"), ("p.grad.copy_", "p.data.copy_")], "average `p.grad`, not `p`"),
        ([(REDUCE, f"if comm.rank == 0: {REDUCE}")], "inside an `if`"),
    ],
)
def test_wrong_averages_are_rejected(replacements, hint):
    verdict = check.average_gradients(variant(NOTEBOOK, "average_gradients", *replacements))
    assert verdict.passed is False
    assert hint in verdict.hint, verdict


@pytest.mark.parametrize(
    ("replacements", "hint"),
    [
        ([(SEND, "pass")], "still has its own weights"),
        ([("p.copy_(torch.from_numpy(weights))", "p = torch.from_numpy(weights)")], "copy what arrives"),
        ([(SEND, "comm.Bcast(weights, root=comm.size - 1)")], "the root is rank 0"),
        ([(SEND, "comm.Allreduce(MPI.IN_PLACE, weights); weights /= comm.size")], "the mean of the ranks'"),
        ([(SEND, "comm.Allreduce(MPI.IN_PLACE, weights)")], "the sum of the ranks'"),
        ([(LOOP, "for p in list(model.parameters())[::2]:")], "go through all of model.parameters()"),
    ],
)
def test_wrong_broadcasts_are_rejected(replacements, hint):
    replacements = [(old, new) for old, new in replacements]
    verdict = check.broadcast_weights(variant(NOTEBOOK, "broadcast_weights", *replacements))
    assert verdict.passed is False
    assert hint in verdict.hint, verdict


def test_it_is_the_learners_function_that_ran(tmp_path):
    text = IMPORTS + f"def f(model, comm):\n    open(r'{tmp_path}/' + str(comm.rank), 'w').close()\n"
    check.broadcast_weights(from_source(text, "f"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]
