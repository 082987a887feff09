"""Sharded states in a checkpoint: whole in the file, so that any number of ranks, and any backend of PyTorch,
can go on from it."""

import itertools

import pytest
from needs import needs_backend
from training.ladder import STEPS_PER_EPOCH, cases, difference
from training.test_ladder_sharded import sharded_run

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]  # the first test waits for all training runs

RUNGS = ("fsdp", "deepspeed-0", "deepspeed-1", "deepspeed-3")
STOP_AFTER = STEPS_PER_EPOCH + 8
RANKS = 2


QUICK_ELSEWHERE = ("fsdp", "deepspeed-3")  # on other numbers of ranks, in `make test-full`


def part(folder, rung, name, ranks=RANKS, resume=False, **more):
    """A run of two epochs."""
    options = {"max_steps": None, "epochs": 2, "resume": resume}
    return sharded_run(folder, rung, "adam", ranks, f"{rung}-{name}", options, **more)


def resumed(folder, rung, ranks):
    """What was stopped on two ranks goes on, on one without any backend."""
    run = part(folder, rung, f"on-{ranks}", ranks, resume=True, copy_of=str(folder / f"{rung}-first.pt"))
    if ranks == 1:
        run["options"] |= {"backend": "mpi", "zero_stage": None}
        run["backend_object"] = "base"
    return run | {"exhaustive": ranks != RANKS and rung not in QUICK_ELSEWHERE}


def training_runs(folder):
    """Two epochs whole, and stopped in the second and resumed: on as many ranks, on 4, and on one."""
    whole = [part(folder, rung, "whole") for rung in RUNGS]
    first = [part(folder, rung, "first", stop_after=STOP_AFTER) for rung in RUNGS]
    again = {ranks: [resumed(folder, rung, ranks) for rung in RUNGS] for ranks in (1, RANKS, 4)}
    return again | {RANKS: [*whole, *first, *again[RANKS]]}


@pytest.mark.parametrize("rung", [pytest.param(rung, marks=needs_backend(rung)) for rung in RUNGS])
def test_on_as_many_ranks_bit_for_bit(trained, rung):
    _, found = trained
    whole, first, second = (found[f"{rung}-{name}"] for name in ("whole", "first", f"on-{RANKS}"))
    assert [rank.get("error") for rank in whole + first + second] == [None] * 3 * RANKS
    assert first[0]["record"]["stopped"]
    assert first[0]["record"]["weights_sha256"] != whole[0]["record"]["weights_sha256"]
    assert second[0]["record"]["weights_sha256"] == whole[0]["record"]["weights_sha256"]


@pytest.mark.parametrize(
    ("rung", "ranks"), cases(itertools.product(RUNGS, (1, 4)), lambda rung, ranks: rung in QUICK_ELSEWHERE)
)
def test_on_another_number_of_ranks_up_to_rounding(trained, rung, ranks):
    folder, found = trained
    assert [rank.get("error") for rank in found[f"{rung}-on-{ranks}"]] == [None] * ranks
    assert difference(folder, f"{rung}-on-{ranks}", f"{rung}-whole") < 5e-6
    rows = [found[f"{rung}-{name}"][0]["record"]["epochs"] for name in (f"on-{ranks}", "whole")]
    for name in ("train_loss", "test_loss"):  # what the ranks had summed before the stop is in it once
        assert rows[0][-1][name] == pytest.approx(rows[1][-1][name], rel=1e-4)
